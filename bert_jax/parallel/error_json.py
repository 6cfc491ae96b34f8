"""Errors as plain JSON, so that all processes can raise the error of one process."""

from collections.abc import Mapping
from typing import Any, Final

from bert_jax.errors import KeyedError, PeerLost, RunStopped, UserError

_KINDS: Final = {kind.__name__: kind for kind in (UserError, RunStopped, PeerLost)}


def error_to_json(error: KeyedError) -> dict[str, Any]:
    """Returns an error as plain JSON."""
    kind = next(name for name, kind in _KINDS.items() if isinstance(error, kind))
    return {"kind": kind, "key": error.key, "message": error.message, "place": error.place}


def error_from_json(found: Mapping[str, Any]) -> KeyedError:
    """Returns the error that `error_to_json` encoded. A subclass becomes its base class."""
    kind = _KINDS[found["kind"]]
    return kind(found["key"], found["message"], place=found["place"])
