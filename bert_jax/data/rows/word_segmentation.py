"""Words of Chinese text, for masking them whole: a segmenter of the user's choice as a hook.

BERT's tokenizers set every Chinese character apart, so that a word of several is several tokens
that nothing holds together. The words are found in the loader, from the tokens: the dataset stays
the same for every way of masking, and who does not name a segmenter pays nothing. A segmenter's
price is its own time, in every epoch: leave it to the loader's worker processes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from bert_jax.errors import UserError
from bert_jax.text.basic_tokenizer import is_chinese
from bert_jax.user_function import load_function

Hook = Callable[[str], Iterable[str]]

_KEY: Final = "objective.masking.segmenter"


@dataclasses.dataclass(frozen=True)
class Segmenter:
    """Finds the words in runs of Chinese characters. Picklable: it holds the hook's name.

    Attributes:
        hook: ``"module:function"``, such as ``"jieba:lcut"``: takes text without white space,
            returns its words in order, which together are the text.
        pieces: the vocabulary.
        is_ideograph: bool [vocab_size], true for pieces of nothing but Chinese characters.
    """

    hook: str
    pieces: tuple[str, ...] = dataclasses.field(repr=False)
    is_ideograph: np.ndarray = dataclasses.field(repr=False, compare=False)

    @classmethod
    def create(cls, hook: str, pieces: Sequence[str]) -> Segmenter:
        """Returns the segmenter for a vocabulary.

        Raises:
            UserError: the hook cannot be imported.
        """
        load_function(hook, key=_KEY)
        ideographs = [bool(piece) and all(map(is_chinese, piece)) for piece in pieces]
        return cls(hook, tuple(pieces), np.array(ideographs, bool))

    def join(self, input_ids: np.ndarray, continues: np.ndarray) -> np.ndarray:
        """Marks the characters that continue a word: ``我 爱 北 京`` -> ``no no no yes``.

        Args:
            input_ids: int [n].
            continues: bool [n], as the tokenizer has it.

        Returns:
            A copy of ``continues`` in which the runs of Chinese characters are the hook's words.

        Raises:
            UserError: what the hook returns is not the text.
        """
        joined = continues.copy()
        inside = np.zeros(len(input_ids) + 2, bool)
        inside[1:-1] = self.is_ideograph[input_ids]
        edges = np.flatnonzero(inside[1:] != inside[:-1]).reshape(-1, 2)
        for start, stop in edges.tolist():
            run = [self.pieces[token] for token in input_ids[start:stop].tolist()]
            begins = self._word_starts("".join(run))
            at = 0
            for place, piece in enumerate(run, start):
                joined[place] = at not in begins
                at += len(piece)
        return joined

    def _word_starts(self, text: str) -> set[int]:
        words = list(load_function(self.hook, key=_KEY)(text))
        if not all(isinstance(word, str) for word in words) or "".join(words) != text:
            raise UserError(
                f'{_KEY}: {self.hook} returned {words[:5]!r} for "{text[:20]}", allowed: words '
                "that together are the text"
            )
        starts, at = set(), 0
        for word in words:
            starts.add(at)
            at += len(word)
        return starts
