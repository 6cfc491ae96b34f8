"""Vectorised decoding of protobuf's varints: seven bits per byte, low bits first."""

from collections.abc import Sequence
from typing import Final

import numpy as np

_MORE: Final = 0x80  # set in every byte of a number except the last
_WITH_MORE: Final = bytes(range(_MORE, 256))
_MOST_BYTES: Final = 10


def decode_varints(packed: bytes) -> np.ndarray:
    r"""Returns the numbers, int64 ``[n]``: ``b"\x01\xac\x02" -> [1, 300]``.

    Raises:
        ValueError: the last number is truncated, or one takes more than ten bytes.
    """
    content = np.frombuffer(packed, np.uint8)
    if packed.isascii():  # one byte per number
        return content.astype(np.int64)
    (ends,) = (content < _MORE).nonzero()
    if not len(ends) or ends[-1] != len(content) - 1:
        raise ValueError("found a truncated number, allowed: whole numbers")
    widths = ends + 1
    widths[1:] -= widths[:-1].copy()
    if (widest := widths.max()) > _MOST_BYTES:
        raise ValueError(f"found a number of {widest} bytes, allowed: at most {_MOST_BYTES}")
    numbers = content[ends].astype(np.int64)
    for byte in range(1, widest):
        (longer,) = (widths > byte).nonzero()
        numbers[longer] = numbers[longer] << 7 | (content[ends[longer] - byte] & 0x7F)
    return numbers


def decode_lists(packed: Sequence[bytes]) -> tuple[np.ndarray, list[int]]:
    """Returns the numbers of several lists, concatenated, and the count of each list.

    In one call of `decode_varints`, since most of its cost is per call; raises as it does.
    """
    if any(held and held[-1] >= _MORE for held in packed):  # would continue in the next list
        raise ValueError("found a truncated number, allowed: whole numbers")
    counts = [
        len(held) if held.isascii() else len(held.translate(None, _WITH_MORE)) for held in packed
    ]
    return decode_varints(b"".join(packed)), counts
