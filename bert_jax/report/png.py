"""A PNG of one byte per pixel, which no dependency writes."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Final

import numpy as np

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"


def png(levels: np.ndarray, *, colour: tuple[int, int, int]) -> bytes:
    """Returns a picture in one colour, its opacity given for each pixel.

    So it lies well on light and on dark ground (ISO/IEC 15948: a palette of 256 times the colour,
    with rising transparency).

    Args:
        levels: uint8 [height, width]; 0 is transparent, 255 opaque.
        colour: red, green, blue.
    """
    height, width = levels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    # Every row begins with the number of its filter; 0 is none.
    rows = np.pad(levels.astype(np.uint8), ((0, 0), (1, 0))).tobytes()
    return SIGNATURE + b"".join(
        (
            _chunk(b"IHDR", header),
            _chunk(b"PLTE", bytes(colour) * 256),
            _chunk(b"tRNS", bytes(range(256))),
            _chunk(b"IDAT", zlib.compress(rows, 9)),
            _chunk(b"IEND", b""),
        )
    )


def data_uri(content: bytes) -> str:
    """Returns a PNG as the address of itself."""
    return "data:image/png;base64," + base64.b64encode(content).decode()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )
