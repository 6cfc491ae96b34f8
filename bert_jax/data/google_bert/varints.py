"""Whole numbers as protobuf packs them: seven bits to a byte, the low ones first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

_MORE: Final = 0x80  # set in all bytes of a number but its last
_WITH_MORE: Final = bytes(range(_MORE, 256))
_MOST_BYTES: Final = 10


def decode_varints(packed: bytes) -> np.ndarray:
    r"""Returns the numbers: ``b"\x01\xac\x02" -> [1, 300]``.

    Returns:
        int64 ``[n]``.

    Raises:
        ValueError: the last number is cut short, or one takes more than ten bytes.
    """
    spelled = np.frombuffer(packed, np.uint8)
    if packed.isascii():  # a byte each
        return spelled.astype(np.int64)
    (ends,) = (spelled < _MORE).nonzero()
    if not len(ends) or ends[-1] != len(spelled) - 1:
        raise ValueError("found a number that is cut short, allowed: whole numbers")
    widths = ends + 1
    widths[1:] -= widths[:-1].copy()
    if (widest := widths.max()) > _MOST_BYTES:
        raise ValueError(f"found a number of {widest} bytes, allowed: at most {_MOST_BYTES}")
    numbers = spelled[ends].astype(np.int64)
    for byte in range(1, widest):
        (longer,) = (widths > byte).nonzero()
        numbers[longer] = numbers[longer] << 7 | (spelled[ends[longer] - byte] & 0x7F)
    return numbers


def decode_lists(packed: Sequence[bytes]) -> tuple[np.ndarray, list[int]]:
    """Returns the numbers of several lists end to end, and how many each list has.

    In one go, since most of the work is per call. Takes and raises what :func:`decode_varints`
    does, of each list.
    """
    if any(held and held[-1] >= _MORE for held in packed):  # or it would run on into the next list
        raise ValueError("found a number that is cut short, allowed: whole numbers")
    counts = [
        len(held) if held.isascii() else len(held.translate(None, _WITH_MORE)) for held in packed
    ]
    return decode_varints(b"".join(packed)), counts
