"""Byte-level pieces: the characters that stand for bytes."""

from typing import Final


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
