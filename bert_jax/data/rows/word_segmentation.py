"""Chinese word segmentation for whole-word masking, by a segmenter of the user's choice.

BERT's tokenizers split Chinese text into single characters, so that the tokens of a word are not
marked as such. The loader segments the tokens, not the pipeline: one dataset serves every masking
unit. The segmenter runs in every epoch: use the loader's worker processes.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Self

import numpy as np

from bert_jax.errors import UserError
from bert_jax.text.basic_tokenizer import is_chinese
from bert_jax.user_function import load_function

Hook = Callable[[str], Iterable[str]]

_KEY: Final = "objective.masking.segmenter"


@dataclasses.dataclass(frozen=True)
class Segmenter:
    """Finds the words in sequences of Chinese characters. Picklable: it holds the hook's name."""

    # "module:function", such as "jieba:lcut": takes text without white space, returns its words in
    # order, which concatenate to the text.
    hook: str
    pieces: tuple[str, ...] = dataclasses.field(repr=False)  # the vocabulary
    # bool [vocab_size], true for pieces that consist of Chinese characters only.
    is_ideograph: np.ndarray = dataclasses.field(repr=False, compare=False)

    @classmethod
    def create(cls, hook: str, pieces: Sequence[str]) -> Self:
        """Returns the segmenter for a vocabulary.

        Raises:
            UserError: the hook cannot be imported.
        """
        load_function(hook, key=_KEY)
        ideographs = [bool(piece) and all(map(is_chinese, piece)) for piece in pieces]
        return cls(hook, tuple(pieces), np.array(ideographs, bool))

    def join(self, input_ids: np.ndarray, continues: np.ndarray) -> np.ndarray:
        """Marks the characters that continue a word: ``我 爱 北 京`` -> ``no no no yes``.

        Returns a copy of ``continues``, bool [n], in which the Chinese characters of ``input_ids``,
        int [n], form the hook's words.

        Raises:
            UserError: the hook's words do not concatenate to the text.
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
                "that concatenate to the text"
            )
        starts, at = set(), 0
        for word in words:
            starts.add(at)
            at += len(word)
        return starts
