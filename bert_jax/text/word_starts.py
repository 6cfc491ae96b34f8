"""Tables of word starts for pieces that carry no mark inside a word.

A piece of byte-level BPE begins a word if a space precedes it (``Ġthe``). Punctuation has no such
mark: in ``the dog, barks`` the pieces are ``the Ġdog , Ġbarks``. So the table looks at the first
and the last character of a piece instead:

- A piece continues a word if its first character is a letter, a number or a mark, but no CJK
  ideograph. White space, punctuation, symbols and ideographs begin a word, as in WordPiece.
- A piece ends a word if its last character is white space, punctuation, a symbol or an ideograph.
  The next piece begins a word: in ``(word`` the pieces are ``( word``.

A character may be divided among several pieces. A piece that begins within a character continues a
word. If a piece has only the first bytes of its first character, it begins a word if all characters
with these bytes do.
"""

import functools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from bert_jax.text.basic_tokenizer import is_chinese, is_word_character

_SPACE = b" "


class WordBounds(NamedTuple):
    """Where words begin and end, by id: two bool arrays ``[vocab_size]``."""

    continues: np.ndarray  # whether the piece continues the word before it
    ends: np.ndarray  # whether the next piece begins a word in any case


def word_bounds(texts: Iterable[bytes | None]) -> WordBounds:
    """Returns the tables for pieces, given as UTF-8 with their spaces, or None for special pieces.

    ``word_bounds([b" dog", b"s", b","])`` -> continues ``[no, yes, no]``, ends ``[no, no, yes]``
    """
    held = list(texts)
    return WordBounds(
        np.array([text is not None and _continues(text) for text in held], np.bool_),
        np.array([text is None or _ends(text) for text in held], np.bool_),
    )


def continuations(
    input_ids: np.ndarray, is_continuation: np.ndarray, ends_word: np.ndarray | None
) -> np.ndarray:
    """Returns whether each piece continues the word of the piece before it, bool [n].

    The tables are a tokenizer's attributes of these names, bool [vocab_size].
    """
    found = is_continuation[input_ids]
    if ends_word is not None:
        found[1:] &= ~ends_word[input_ids[:-1]]
    return found


def _inside_word(character: str) -> bool:
    return is_word_character(character) and not is_chinese(character)


def _continues(text: bytes) -> bool:
    if not text:
        return False
    if 0x80 <= text[0] < 0xC0:  # the rest of a character
        return True
    length = _length(text[0])
    if length <= len(text):
        return any(map(_inside_word, text[:length].decode("utf-8", "ignore")))
    return _may_continue(text)


def _ends(text: bytes) -> bool:
    if text == _SPACE:  # the space before a word whose first letter has a piece of its own
        return False
    last = text[-4:].decode("utf-8", "ignore")
    divided = not text.endswith(last[-1:].encode()) or not last
    return bool(text) and not divided and not _inside_word(last[-1])


def _length(lead: int) -> int:
    """Returns the number of bytes of a character with this first byte."""
    return 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


@functools.cache
def _may_continue(start: bytes) -> bool:
    """Returns whether a character that begins with these bytes may be inside a word."""
    missing = _length(start[0]) - len(start)
    bits = {2: 0x1F, 3: 0x0F, 4: 0x07}[_length(start[0])] & start[0]
    for byte in start[1:]:
        bits = bits << 6 | byte & 0x3F
    first = bits << 6 * missing
    last = min(first + (1 << 6 * missing), 0x110000)
    return any(_inside_word(chr(code)) for code in range(first, last))
