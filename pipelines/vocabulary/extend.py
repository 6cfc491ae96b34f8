"""Chooses new words for a vocabulary, and adds them to its tokenizer.

A word of the sample that has k pieces so far and occurs n times saves n · (k − 1) pieces. The words
that save most are added. Each becomes one piece, with the next free id. All other ids stay.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from bert_jax.errors import UserError
from bert_jax.text.basic_tokenizer import is_chinese, is_word_character
from bert_jax.text.library_tokenizer import JOINERS, LibraryTokenizer
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.wordpiece import WordPieceTokenizer

MIN_COUNT: Final = 5  # least number of occurrences of a new word in the sample

_BATCH: Final = 10_000  # lines that are encoded at a time

Extendable: TypeAlias = WordPieceTokenizer | LibraryTokenizer


class NewWord(NamedTuple):
    """A word that becomes one piece."""

    word: str
    old: tuple[int, ...]  # ids of its pieces so far
    occurrences: int  # in the sample

    @property
    def saved(self) -> int:
        """Number of pieces that the sample has fewer."""
        return self.occurrences * (len(self.old) - 1)


def require_extendable(tokenizer: Tokenizer, *, place: str) -> Extendable:
    """Returns the tokenizer. Raises UserError if words cannot be added without other changes."""
    if isinstance(tokenizer, WordPieceTokenizer):
        return tokenizer
    if isinstance(tokenizer, LibraryTokenizer) and tokenizer.takes_words:
        return tokenizer
    raise UserError(
        "vocab.extend_kind",
        f"found {type(tokenizer).__name__}, allowed: WordPiece, or BPE without add_prefix_space",
        place=place,
    )


def choose_words(tokenizer: Extendable, lines: Iterable[str], *, count: int) -> list[NewWord]:
    """Returns up to `count` words that save most pieces, best first.

    A new word has at least two characters, no digits and no CJK ideographs, begins with a letter,
    ends with a letter or a mark (Hindi's vowel signs), occurs at least `MIN_COUNT` times and has
    more than one piece so far. None is unknown. A word is left out if it is a piece that only
    follows other pieces: ``mod`` in byte-level BPE without ``Ġmod``, since the library allows one
    piece of a spelling.
    """
    pieces = frozenset(tokenizer.pieces(range(tokenizer.vocab_size)))
    counts = Counter(word for line in lines for word in tokenizer.words(line))
    frequent = {word: n for word, n in counts.items() if n >= MIN_COUNT and _is_word(word)}
    words = [word for word in frequent if word not in pieces]
    # A space before the word: byte-level pieces of a word within a text begin with it.
    encoded = tokenizer.encode_parts([["", *words]])[0][1:]
    found = [
        NewWord(word, tuple(ids), frequent[word])
        for word, ids in zip(words, encoded, strict=True)
        if len(ids) > 1 and tokenizer.special.unk not in ids
    ]
    return sorted(found, key=lambda new: (-new.saved, new.word))[:count]


def extended(tokenizer: Extendable, words: Sequence[NewWord]) -> Extendable:
    """Returns a tokenizer with the new words at the ids after all others."""
    return tokenizer.with_words([new.word for new in words])


def pieces_per_word(tokenizer: Tokenizer, lines: Sequence[str]) -> float:
    """Returns the mean number of pieces of a word. Words are separated by white space."""
    batches = (lines[start : start + _BATCH] for start in range(0, len(lines), _BATCH))
    pieces = sum(len(ids) for batch in batches for ids in tokenizer.encode_batch(batch))
    return pieces / sum(len(line.split()) for line in lines)


def _is_word(word: str) -> bool:
    return (
        len(word) > 1
        and word[0].isalpha()
        and is_word_character(word[-1])
        and all(c in JOINERS or (is_word_character(c) and not _is_foreign(c)) for c in word)
    )


def _is_foreign(character: str) -> bool:
    return character.isnumeric() or is_chinese(character)
