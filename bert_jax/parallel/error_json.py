"""Errors as plain JSON, so that all processes can raise the error of one process."""

import numbers
from collections.abc import Mapping
from typing import Any, Final

from bert_jax.errors import KeyedError, PeerLost, RunStopped, UserError

_KINDS: Final = {kind.__name__: kind for kind in (UserError, RunStopped, PeerLost)}


def error_to_json(error: KeyedError) -> dict[str, Any]:
    """Returns an error as plain JSON.

    Values that are numbers, text or lists stay unchanged. All other values become text.
    """
    kind = next(name for name, kind in _KINDS.items() if isinstance(error, kind))
    values = {name: _plain(value) for name, value in error.values.items()}
    return {"kind": kind, "key": error.key, "message": error.message, "values": values}


def error_from_json(found: Mapping[str, Any]) -> KeyedError:
    """Returns the error that `error_to_json` encoded. A subclass becomes its base class."""
    kind = _KINDS[found["kind"]]
    return kind(found["key"], found["message"], **found["values"])


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, numbers.Real):  # a NumPy scalar
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return str(value)
