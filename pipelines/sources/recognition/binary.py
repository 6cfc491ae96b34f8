"""Recognises archives, other binary files and text that is not UTF-8 by their first bytes."""

import codecs
import re
import unicodedata
from typing import Final

from bert_jax.data.google_bert.tfrecord import masked_crc

ARCHIVES: Final = ("a zip archive", "a tar archive", "a RAR archive", "a 7-Zip archive", "LZ4 data")
UNNAMED: Final = (
    "gzip data without .gz",
    "bzip2 data without .bz2",
    "xz data without .xz",
    "Zstandard data without .zst",
)
ENCODINGS: Final = ("UTF-16 text", "UTF-32 text", "ISO-2022 text")
_SIGNS: Final = (
    (b"PK\x03\x04", "a zip archive"),
    (b"Rar!\x1a\x07", "a RAR archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive"),
    (b"\x04\x22\x4d\x18", "LZ4 data"),
    (b"\x1f\x8b", "gzip data without .gz"),
    (b"BZh", "bzip2 data without .bz2"),
    (b"\xfd7zXZ\x00", "xz data without .xz"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data without .zst"),
    (b"ARROW1", "an Arrow file"),
    (b"\xff\xff\xff\xff", "an Arrow stream"),
    (b"Obj\x01", "an Avro file"),
    (b"%PDF-", "a PDF"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a document of Microsoft Office"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\xff\xfe\x00\x00", "UTF-32 text"),
    (b"\x00\x00\xfe\xff", "UTF-32 text"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)
_TAR: Final = slice(257, 262)  # place of "ustar"
_ISO_2022: Final = re.compile(rb"\x1b\$(?:[@AB]|\([CDOPQ])")
_ESCAPE: Final = 0x1B
# Text may contain \b (overstruck pages), \x1a (the end of a file in DOS) and separators.
_CONTROLS: Final = bytes({*range(_ESCAPE)} - {*b"\b\t\n\v\f\r\x1a"})
_LEAST_SHARE: Final = 0.1  # share of control characters that shows that a file is not UTF-8 text


def binary_kind(start: bytes) -> str | None:
    """Returns the format of a file that is not UTF-8 text, or None.

    Single NULs in text are allowed. Text in an encoding of single bytes, such as Latin-1, gives
    None: its reader names the first byte that is not UTF-8.
    """
    found = next((name for sign, name in _SIGNS if start.startswith(sign)), None)
    if found is not None:
        return found
    if start[_TAR] == b"ustar":
        return "a tar archive"
    if len(start) >= 12 and masked_crc(start[:8]) == int.from_bytes(start[8:12], "little"):
        return "a TFRecord file"
    if _ISO_2022.search(start):
        return "ISO-2022 text"
    controls = len(start) - len(start.translate(None, _CONTROLS))
    is_text = _decoded(start, "utf-8") is not None
    if controls <= _LEAST_SHARE * len(start) and (is_text or b"\0" not in start):
        return None
    for encoding, name in (("utf-32", "UTF-32 text"), ("utf-16", "UTF-16 text")):
        if any(_is_text(_decoded(start, f"{encoding}-{order}")) for order in ("le", "be")):
            return name
    return "an ORC file" if start.startswith(b"ORC") else "binary data"


def _decoded(start: bytes, encoding: str) -> str | None:
    """Returns the text, which may end within a character, or None if it is malformed."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(start)
    except UnicodeDecodeError:
        return None


def _is_text(text: str | None) -> bool:
    """Returns whether a text has spaces or lines, and only characters of text."""
    found = set(text or "")
    if found.isdisjoint(" \n"):
        return False
    # Controls, characters for private use, and unassigned ones.
    odd = (unicodedata.category(each) in ("Cc", "Co", "Cn") for each in found - set("\t\n\v\f\r"))
    return not any(odd)
