"""Adds a SHA-256 of the values to JSON and YAML files, to detect later changes."""

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.read import read_json_object

SEAL: Final = "sha256"
_FIRST_LINE: Final = re.compile(rf"# {SEAL}: [0-9a-f]{{64}}")


def sealed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Adds a seal to a JSON object: ``{"a": 1}`` → ``{"sha256": "f9d86028…", "a": 1}``."""
    return {SEAL: _sha256(json.dumps(body, sort_keys=True)), **body}


def is_intact(content: Mapping[str, Any]) -> bool:
    """Returns whether a JSON object has a seal and the seal matches its values."""
    return content.get(SEAL) == sealed(unsealed(content))[SEAL]


def refuse_changed(content: Mapping[str, Any], *, where: str) -> None:
    """Raises UserError if a JSON object does not match its seal.

    `where` names the file. An object without a seal passes.
    """
    if SEAL in content and not is_intact(content):
        raise _changed(where)


def unsealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Removes the seal from a JSON object, without checking it."""
    return {key: value for key, value in content.items() if key != SEAL}


def read_sealed(path: epath.Path) -> dict[str, Any]:
    """Returns the JSON object in a file, without its seal.

    Raises UserError like `read_json_object` and `refuse_changed`.
    """
    content = read_json_object(path)
    refuse_changed(content, where=str(path))
    return unsealed(content)


def sealed_yaml(text: str) -> str:
    """Adds a seal to YAML: a first line ``# sha256: 9f86d081…``."""
    return f"# {SEAL}: {_sha256(text)}\n{text}"


def refuse_changed_yaml(text: str, *, where: str) -> None:
    """Raises UserError if YAML does not match its seal.

    `where` names the file. YAML without a seal passes: users delete the seal to edit the file.
    """
    if _FIRST_LINE.match(text) and text != sealed_yaml(text.partition("\n")[2]):
        raise _changed(where).followed_by(" If you edited it, delete its first line.")


def _changed(where: str) -> UserError:
    return UserError(
        "file.changed",
        "changed since it was written: its SHA-256 differs. Restore a copy of the file.",
        place=where,
    )


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
