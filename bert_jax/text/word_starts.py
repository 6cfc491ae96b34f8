"""Finds where words begin among pieces that carry no mark inside a word.

A piece of byte-level BPE begins a word if a space precedes it (``Ġthe``). Punctuation has no such
mark: in ``the dog, barks`` the pieces are ``the Ġdog , Ġbarks``. So the characters on both sides of
a boundary decide:

- White space, punctuation, symbols and emoji begin and end a word, as in WordPiece. A letter or a
  number continues the word of a letter or a number.
- In scripts without spaces, such as Chinese, kana, Thai, Lao, Khmer and Burmese, each letter begins
  and ends a word. So a piece of several letters is one word.
- A mark or an invisible character belongs to the character before it. A piece of one space belongs
  to the piece after it.

A character may be divided among several pieces. They belong to one word.
"""

import dataclasses
import functools
import re
from collections.abc import Iterable
from typing import Final, NamedTuple, Self

import numpy as np

from bert_jax.text.basic_tokenizer import is_attached, is_chinese, is_word_character

# Letters of scripts without spaces, beside the ideographs of `is_chinese`.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19ff\u1a20-\u1aaf\u3005-\u3007\u3021-\u312f"
    "\u31a0-\u31ff\ua000-\ua48f\ua9e0-\ua9ff\uaa60-\uaadf\uff66-\uff9f\U00016fe0-\U0001b2ff"
    "\U0002ebf0-\U0002ee5f\U00030000-\U000323af]"
)


# Kinds of the first and the last character of a piece. NumPy compares an IntEnum slowly.
_ALONE: Final = 0  # begins and ends a word
_LETTER: Final = 1  # continues the word of a letter
_ATTACHED: Final = 2  # belongs to the character before it, whose kind decides about the next piece
_SPACE: Final = 3  # white space as the first character; as the last one, a piece of one space
_DIVIDED: Final = 4  # the next pieces have the rest of the first character

# Whether a piece continues the word before it, by the last kind before it and its first kind.
_CONTINUES = np.zeros((4, 4), np.bool_)
_CONTINUES[:, _ATTACHED] = True
_CONTINUES[_LETTER, _LETTER] = True
_CONTINUES[_SPACE, [_ALONE, _LETTER]] = True


class _Piece(NamedTuple):
    """Properties that decide the boundaries of a piece. `WordBounds` has an array of each field."""

    first: int  # kind of the first character
    last: int  # kind of the last whole character that is not attached; if none, `_ATTACHED`
    tail: int = 0  # first bits of a character that the next pieces complete
    missing: int = 0  # number of bytes that this character lacks
    head: int = 0  # last bits of a character that earlier pieces begin
    held: int = 0  # number of bytes of these


@dataclasses.dataclass(frozen=True)
class WordBounds:
    """Finds words by the characters of pieces. Has the fields of `_Piece`, each [vocab_size]."""

    first: np.ndarray
    last: np.ndarray
    tail: np.ndarray
    missing: np.ndarray
    head: np.ndarray
    held: np.ndarray

    @classmethod
    def of(cls, texts: Iterable[bytes | None]) -> Self:
        """Returns the bounds of pieces, given as UTF-8 with their spaces.

        A special piece is None. A piece for an unknown part of a word is empty.
        """
        columns = zip(*map(_of_piece, texts), strict=True)
        return cls(*(np.array(column, np.int32) for column in columns))

    @property
    def continues(self) -> np.ndarray:
        """Whether the first character of a piece may continue a word, bool [vocab_size]."""
        return (self.first == _LETTER) | (self.first == _ATTACHED)

    def continuations(self, input_ids: np.ndarray) -> np.ndarray:
        """Returns whether each piece continues the word of the piece before it, bool [n]."""
        ids = input_ids.astype(np.intp)  # `take` is fastest with this type
        first, last = self.first.take(ids), self.last.take(ids)
        divided = self.missing.take(ids).nonzero()[0]
        if len(divided):
            kinds = self._divided(ids, divided)
            first[divided] = np.where(first[divided] == _DIVIDED, kinds, first[divided])
            last[divided] = np.where(kinds == _ATTACHED, last[divided], kinds)
        attached = last == _ATTACHED
        if attached.any():
            places = np.where(attached, 0, np.arange(len(ids)))
            last = last.take(np.maximum.accumulate(places))
        found = np.zeros(len(ids), np.bool_)
        found[1:] = _CONTINUES.take(last[:-1] * len(_CONTINUES) + first[1:])
        return found

    def _divided(self, ids: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Returns the kinds of the characters that the pieces at k `places` begin, int [k]."""
        pieces = ids.take(places)
        code, missing = self.tail.take(pieces), self.missing.take(pieces)
        for later in range(1, 4):
            pieces = ids.take(places + later, mode="clip")
            held = self.held.take(pieces)
            taken = np.minimum(held, missing)
            code = code << 6 * taken | self.head.take(pieces) >> 6 * (held - taken)
            missing -= taken
            if not missing.any():
                break
        code <<= 6 * missing  # a character that the end of the text cuts
        return np.array([_kind_of_code(each) for each in code.tolist()], np.int32)


def continuations(
    input_ids: np.ndarray, is_continuation: np.ndarray, ends_word: WordBounds | None
) -> np.ndarray:
    """Returns whether each piece continues the word of the piece before it, bool [n].

    The last two arguments are a tokenizer's attributes of these names.
    """
    return is_continuation[input_ids] if ends_word is None else ends_word.continuations(input_ids)


def _of_piece(text: bytes | None) -> _Piece:
    if text is None:
        return _Piece(_ALONE, _ALONE)
    if not text:
        return _Piece(_ALONE, _LETTER)
    start = next((at for at, byte in enumerate(text[:3]) if not _is_rest(byte)), min(len(text), 3))
    tail = next((at for at in range(len(text), start, -1) if not _is_rest(text[at - 1])), 0) - 1
    missing = 0 if tail < 0 else max(_length(text[tail]) - (len(text) - tail), 0)
    whole = text[start : tail if missing else None].decode("utf-8", "ignore")
    kinds = (kind for kind in map(_kind, reversed(whole)) if kind != _ATTACHED)
    last = _SPACE if text == b" " else next(kinds, _ATTACHED)
    if start:
        first = _ATTACHED
    elif whole:
        first = _SPACE if whole[0].isspace() else _kind(whole[0])
    else:
        first = _DIVIDED if missing else _ALONE
    bits = text[tail] & 0x7F >> _length(text[tail]) if missing else 0
    return _Piece(
        first, last, _join(bits, text[tail + 1 :] if missing else b""), missing,
        _join(0, text[:start]), start,
    )  # fmt: skip


def _join(bits: int, rest: bytes) -> int:
    """Returns the bits of a character with the bits of its next bytes."""
    return functools.reduce(lambda code, byte: code << 6 | byte & 0x3F, rest, bits)


def _is_rest(byte: int) -> bool:
    """Returns whether a byte is inside a character."""
    return 0x80 <= byte < 0xC0


def _length(lead: int) -> int:
    """Returns the number of bytes of a character with this first byte."""
    return 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


@functools.cache
def _kind(character: str) -> int:
    if is_attached(character):
        return _ATTACHED
    unspaced = is_chinese(character) or _UNSPACED.match(character) is not None
    return _LETTER if is_word_character(character) and not unspaced else _ALONE


@functools.cache
def _kind_of_code(code: int) -> int:
    return _kind(chr(min(code, 0x10FFFF)))
