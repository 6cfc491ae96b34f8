"""Computes character offsets of pieces in a text from the spelling of the pieces."""

import itertools
import re
import unicodedata
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_jax.text.library_tokenizer import LibraryTokenizer
from bert_jax.text.sentence_piece import WORD_START, SentencePieceTokenizer
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.wordpiece import CONTINUATION

# A word, delimited by the characters that `run_squad.py` treats as white space. The tokenizer
# handles other white space.
_WORD: Final = re.compile("[^ \t\r\n\u202f]+")
_REMEMBERED_WORDS: Final = 1 << 16
_LONGEST_REMEMBERED: Final = 64  # maximum number of characters in a cached word

_Spans = list[tuple[int, int]]


class OffsetPieces(NamedTuple):
    """The pieces of a text with their character offsets."""

    ids: list[int]
    starts: np.ndarray  # int32 [pieces], ascending
    ends: np.ndarray  # int32 [pieces], exclusive, ascending

    def touched(self, start: int, end: int) -> tuple[int, int] | None:
        """Returns the first and the last piece that overlap the characters ``[start:end]``.

        Returns None if no piece does, because the tokenizer drops these characters.
        """
        first = int(np.searchsorted(self.ends, start, side="right"))
        last = int(np.searchsorted(self.starts, end, side="left")) - 1
        return (first, last) if first <= last else None


class OffsetEncoder:
    """Encodes texts with the offsets of each piece.

    `OffsetEncoder(tokenizer).encode("an Élan")` → pieces `an`, `el`, `##an`, with starts 0, 3, 5
    and exclusive ends 2, 5, 7.

    A `LibraryTokenizer` knows the offsets. The other tokenizers encode a text word by word. They
    change case and accents and drop characters, so the comparison of a word with its pieces ignores
    case, accents and control characters. If word and pieces still do not match, each piece has the
    offsets of the whole word.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        marked = isinstance(tokenizer, SentencePieceTokenizer)
        self._mark = WORD_START if marked else CONTINUATION
        self._known: dict[str, tuple[list[int], _Spans]] = {}

    def encode(self, text: str) -> OffsetPieces:
        """Encodes a text, without special pieces."""
        if isinstance(self._tokenizer, LibraryTokenizer):
            found, places = self._tokenizer.encode_offsets(text)
            starts, ends = np.array(places, np.int32).reshape(-1, 2).T
            return OffsetPieces(found, starts.copy(), np.maximum.accumulate(ends))
        ids: list[int] = []
        spans: _Spans = []
        words: list[int] = []  # character offset of each word
        counts: list[int] = []  # number of pieces of each word
        for match in _WORD.finditer(text):
            word_ids, word_spans = self._word(match.group())
            ids += word_ids
            spans += word_spans
            words.append(match.start())
            counts.append(len(word_ids))
        places = np.array(spans, np.int32).reshape(-1, 2)
        places += np.repeat(np.array(words, np.int32), np.array(counts, np.int32))[:, None]
        return OffsetPieces(ids, places[:, 0].copy(), places[:, 1].copy())

    def _word(self, word: str) -> tuple[list[int], _Spans]:
        known = self._known.get(word)
        if known is not None:
            return known
        ids = self._tokenizer.encode(word)
        unknown = self._tokenizer.special.unk
        spelled = [
            None if piece_id == unknown else piece.removeprefix(self._mark)
            for piece_id, piece in zip(ids, self._tokenizer.pieces(ids), strict=True)
        ]
        found = ids, align(word, spelled)
        if len(word) <= _LONGEST_REMEMBERED:
            if len(self._known) >= _REMEMBERED_WORDS:
                self._known.clear()
            self._known[word] = found
        return found


def align(word: str, pieces: Sequence[str | None]) -> _Spans:
    """Returns (start, exclusive end) of each piece in its word.

    `align("(Élan)", ["(", "el", "an", ")"])` → `[(0, 1), (1, 3), (3, 5), (5, 6)]`

    An unknown piece (None) covers the characters between its neighbours. Consecutive unknown pieces
    share one span. If the pieces do not match the word, each piece covers the whole word.
    """
    if len(pieces) == 1:
        return [(0, len(word))]
    if None not in pieces:
        known = [piece for piece in pieces if piece is not None]
        joined = "".join(known)
        if joined == word or (len(joined) == len(word) and joined == word.lower()):
            ends = list(itertools.accumulate(map(len, known)))
            return list(zip([0, *ends[:-1]], ends, strict=True))
    characters = [_PLAIN[ord(character)] for character in word]
    places = [index for index, text in enumerate(characters) for _ in text]
    plain = [None if piece is None else piece.translate(_PLAIN) for piece in pieces]
    spans = _match("".join(characters), plain)
    if spans is None or not places:
        return [(0, len(word))] * len(pieces)
    return [_in_word(word, places, start, end) for start, end in spans]


def _match(plain: str, pieces: Sequence[str | None]) -> _Spans | None:
    """Returns the span of each piece, or None if the pieces do not match the word."""
    spans: _Spans = []
    at = 0
    for index, piece in enumerate(pieces):
        if piece is None:
            if index and pieces[index - 1] is None:
                spans.append(spans[-1])
                continue
            following = next((text for text in pieces[index:] if text), None)
            end = len(plain) if following is None else plain.find(following, at + 1)
            if end <= at:
                return None
        else:
            end = at + len(piece)
            if plain[at:end] != piece:
                return None
        spans.append((at, end))
        at = end
    return spans if at == len(plain) else None


def _in_word(word: str, places: Sequence[int], start: int, end: int) -> tuple[int, int]:
    if start == end:  # assign a piece that is only an accent to the letter before it
        start, end = max(start - 1, 0), max(end, 1)
    last = places[end - 1] + 1
    while last < len(word) and unicodedata.category(word[last]) == "Mn":
        last += 1
    return places[start], last


class _Plain(dict[int, str]):
    """Maps characters to their lower case without accents, to compare pieces with text."""

    def __missing__(self, code: int) -> str:
        text = unicodedata.normalize("NFKD", chr(code).lower()).lower().replace("ς", "σ")
        kept = (c for c in text if unicodedata.category(c) not in ("Mn", "Cc", "Cf"))
        self[code] = result = "".join(c for c in kept if c != "\ufffd" and not c.isspace())
        return result


_PLAIN: Final = _Plain()


class ContextWindows(NamedTuple):
    """The windows of one context."""

    pieces: int  # number of pieces in the context
    room: int  # number of pieces that fit in a window, at least 1
    stride: int  # number of pieces between the starts of windows

    @property
    def number(self) -> int:
        """Number of windows: 500 pieces, room 300, stride 128 → 3.

        An empty context has one window, so that its questions are predicted. (google-research/bert
        drops these questions.)
        """
        return 1 + -(-max(self.pieces - self.room, 0) // min(self.room, self.stride))

    def bounds(self, window: int) -> tuple[int, int]:
        """Returns the start and the exclusive end of a window."""
        start = window * min(self.room, self.stride)
        return start, min(start + self.room, self.pieces)

    def most_context(self, window: int) -> np.ndarray:
        """Returns whether each piece of a window has its maximum context there, bool [pieces].

        The context of a piece in a window is the smaller of the numbers of pieces before and after
        it, plus 0.01 × the window's length. The maximum is in exactly one window: the first one in
        a tie.
        """
        start, end = self.bounds(window)
        step = min(self.room, self.stride)
        reach = (self.room - 1) // step  # windows farther away do not overlap this window
        others = np.arange(max(window - reach, 0), min(window + reach + 1, self.number))
        starts = (others * step)[:, None]
        ends = np.minimum(starts + self.room, self.pieces)
        position = np.arange(start, end)[None]
        seen = np.minimum(position - starts, ends - 1 - position) + 0.01 * (ends - starts)
        inside = (position >= starts) & (position < ends)
        best = others[np.argmax(np.where(inside, seen, -np.inf), axis=0)]
        return best == window
