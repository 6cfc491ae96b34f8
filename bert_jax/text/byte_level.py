"""Byte-level pieces: the characters that stand for bytes, and the parts of words of GPT-2."""

import re
from typing import Final

import tokenizers


def _byte_of_character() -> dict[str, int]:
    """Returns the byte that each character of a byte-level piece stands for.

    Source: `bytes_to_unicode` in openai/gpt-2, `encoder.py`. Printable characters of Latin-1 stand
    for themselves; the other bytes are numbered from U+0100.
    """
    own = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in own]
    spelled = {chr(byte): byte for byte in own}
    return spelled | {chr(0x100 + number): byte for number, byte in enumerate(others)}


BYTES: Final = _byte_of_character()
SPELLINGS: Final = {byte: character for character, byte in BYTES.items()}
"""Character that stands for each byte in a byte-level piece: ``32 -> "Ġ"``."""

# GPT-2's expression. `_Classes` replaces the characters that Python's `re` has no classes for.
_PART: Final = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+"
)


def gpt2_parts(text: str) -> list[str]:
    """Returns the parts of a text: ``"don't  go!"`` -> ``["don", "'t", " ", " go", "!"]``."""
    if text.isascii() and text.isprintable():
        return _PART.findall(text)
    classes = text.translate(_CLASSES)
    return [text[found.start() : found.end()] for found in _PART.finditer(classes)]


def spelled(part: str) -> str:
    """Returns the characters that stand for the bytes of a part: ``" é"`` -> ``"ĠÃ©"``."""
    return part.encode().decode("latin-1").translate(SPELLINGS)


class _Classes(dict[int, str]):
    """A table for ``str.translate``: each character becomes an ASCII character of its class.

    The library says which class that is, because its Unicode version may differ from Python's.
    """

    def __init__(self) -> None:
        super().__init__({code: chr(code) for code in range(0x20, 0x7F)})
        self._library = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)

    def __missing__(self, code: int) -> str:
        """Returns the class whose characters make one part with this one, otherwise a space."""
        kept = "\t"
        for each in "z0!":  # no contraction has a "z"
            if len(self._library.pre_tokenize_str(each + chr(code))) == 1:
                kept = each
        self[code] = kept
        return kept


_CLASSES: Final = _Classes()
