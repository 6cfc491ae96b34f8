"""JSON objects that carry a SHA-256 of their own values: what is changed afterwards is noticed.

A flipped digit is a number as good as any: nothing but a checksum tells it from what was written.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from bert_jax.errors import UserError

SEAL: Final = "sha256"


def sealed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a JSON object with its seal: ``{"a": 1}`` → ``{"sha256": "f9d86028…", "a": 1}``."""
    return {SEAL: _checksum(body), **body}


def is_intact(content: Mapping[str, Any]) -> bool:
    """Returns whether a JSON object, as it was read, holds what `sealed` was given.

    False without a seal.
    """
    return content.get(SEAL) == _checksum(unsealed(content))


def refuse_changed(content: Mapping[str, Any], *, where: str) -> None:
    """Raises UserError, which begins with `where`, if an object is not what was sealed.

    Those of earlier versions have no seal, and pass.
    """
    if SEAL in content and not is_intact(content):
        raise UserError(
            f"{where}: found other values than were written (its SHA-256 differs), allowed: a copy "
            "of the file as it was, or a new run_dir"
        )


def unsealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a JSON object without its seal, whether it is intact or not."""
    return {key: value for key, value in content.items() if key != SEAL}


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
