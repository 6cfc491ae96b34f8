"""Identity of what was read from a fine-tuning file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final, Protocol

# Where an example stood in its file is no part of it: an empty line more changes nothing.
_PLACES: Final = ("line", "lines")


class _Record(Protocol):
    def _asdict(self) -> dict[str, Any]: ...


def content_hash(examples: Iterable[_Record]) -> str:
    """Returns 32 hexadecimal digits that change with any text, any label and the order.

    Args:
        examples: named tuples of plain values.
    """
    digest = hashlib.blake2b(digest_size=16)
    for example in examples:
        values = [
            sorted(value) if isinstance(value, frozenset) else value
            for name, value in example._asdict().items()
            if name not in _PLACES
        ]
        digest.update(repr(values).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()
