"""Selects the tokens to mask: single tokens, whole words or spans of words."""

import dataclasses
import functools
import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import numpy as np

from bert_jax.errors import UserError, commas
from bert_jax.text.basic_tokenizer import is_chinese
from bert_jax.user_function import load_function

_KEY: Final = "objective.masking.segmenter"
_BLOCK: Final = 64  # words converted to a list at once; most examples need only one block


class Words(NamedTuple):
    """The w words of an example, as ranges of its candidates (the tokens that may be masked)."""

    starts: np.ndarray  # index of each word's first candidate, int [w]
    lengths: np.ndarray  # number of tokens in each word, int [w]
    opens_run: np.ndarray  # whether a word is the first, or follows a special token, bool [w]


class WordSpan(NamedTuple):
    """Consecutive words that are masked as a whole."""

    first: int  # index of the first word
    size: int  # number of words
    start: int  # index of the first candidate
    tokens: int  # number of tokens


def find_words(candidates: np.ndarray, continues: np.ndarray) -> Words:
    """Finds an example's words: candidates ``[1, 2, 4]``, all continuing -> lengths ``[2, 1]``.

    A word ends before a special token. So a continuation at the start of the second span is a word
    of its own; in google-research/bert it joins the last word of the first span.

    Args:
        candidates: ascending positions [c] of the tokens that may be masked; at least one.
        continues: whether each candidate continues the word of the token before it, bool [c].
    """
    after_special = np.empty(len(candidates), bool)
    after_special[0] = True
    np.not_equal(candidates[1:], candidates[:-1] + 1, out=after_special[1:])
    starts = np.flatnonzero(~continues | after_special)
    lengths = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], out=lengths[:-1])
    lengths[-1] = len(candidates) - starts[-1]
    return Words(starts, lengths, after_special[starts])


def choose_tokens(keys: np.ndarray, budget: int) -> np.ndarray:
    """Returns a uniformly random choice of ``budget`` of c candidates, bool [c].

    The keys are c uniform random numbers.
    """
    chosen = np.zeros(len(keys), bool)
    chosen[keys.argpartition(budget - 1)[:budget]] = True
    return chosen


def choose_words(words: Words, keys: np.ndarray, budget: int) -> np.ndarray:
    """Returns the tokens of randomly chosen words, at most ``budget`` tokens, as bool [c].

    The keys are a uniform random number for each word.
    """
    order = keys.argsort()
    ordered = words.lengths[order]
    ends = ordered.cumsum()
    fitting = int(ends.searchsorted(budget, side="right"))
    left = budget - (int(ends[fitting - 1]) if fitting else 0)
    chosen = np.zeros(len(order), bool)
    chosen[order[:fitting]] = True
    # The next word exceeds the budget. Later words may be short enough.
    later = fitting + np.flatnonzero(ordered[fitting:] <= left) if left else order[:0]
    for at, length in zip(later.tolist(), ordered[later].tolist(), strict=True):
        if length <= left:
            chosen[order[at]] = True
            left -= length
            if not left:
                break
    return chosen.repeat(words.lengths)


def choose_spans(
    words: Words, *, keys: np.ndarray, sizes: np.ndarray, chances: np.ndarray, budget: int
) -> list[WordSpan]:
    """Chooses spans of whole words, in random order, until ``budget`` tokens are chosen.

    A span begins at a uniformly random word that is not yet chosen, and has a random size. It ends
    early at a special token, a chosen word, or a word that exceeds the budget. If no further word
    fits, the spans have fewer tokens than the budget.

    Args:
        words: words of the example.
        keys: uniform random numbers [w] that order the words.
        sizes: uniform random numbers [w]; each gives the size of a span that begins at that word.
        chances: probabilities of 1, 2, … words.
        budget: maximum number of tokens.
    """
    # Reading single elements of a NumPy array is slow, so lists and bytes are used.
    limits = list(itertools.accumulate(chances[:-1].tolist()))
    lengths, opens_run = words.lengths.tolist(), words.opens_run.tobytes()
    taken = bytearray(len(lengths) + 1)
    taken[-1] = 1  # sentinel: no span continues past the last word
    left = budget
    spans: list[WordSpan] = []
    order = keys.argsort()
    blocks = (order[at : at + _BLOCK].tolist() for at in range(0, len(order), _BLOCK))
    for first in itertools.chain.from_iterable(blocks):
        if taken[first] or lengths[first] > left:
            continue
        before, at, stop = left, first, first + 1 + bisect_right(limits, sizes.item(first))
        while True:
            taken[at] = 1
            left -= lengths[at]
            at += 1
            if at == stop or taken[at] or opens_run[at] or lengths[at] > left:
                break
        spans.append(WordSpan(first, at - first, words.starts.item(first), before - left))
        if not left:
            break
    return spans


def tokens_of_spans(spans: Sequence[WordSpan], *, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens of disjoint spans in ascending order, and each token's span: both int [k].

    If the first span has one token at 3, and the second has three tokens at 0, the tokens are ``[0,
    1, 2, 3]`` and their spans ``[1, 1, 1, 0]``.
    """
    owners = np.zeros(total, np.int64)
    for number, span in enumerate(spans, 1):
        owners[span.start : span.start + span.tokens] = number
    tokens = owners.nonzero()[0]
    return tokens, owners[tokens] - 1


@functools.cache
def ngram_chances(most: int) -> np.ndarray:
    """Returns p(n) ∝ 1/n for 1 to ``most`` words: ``3`` -> ``[6/11, 3/11, 2/11]``.

    Source: ALBERT, arXiv 1909.11942, section 3.1 ("n-gram masking").
    """
    weights = 1.0 / np.arange(1, most + 1)
    return weights / weights.sum()


@functools.cache
def geometric_chances(stop: float, most: int) -> np.ndarray:
    """Returns p(n) ∝ stop · (1 - stop)^(n - 1) for 1 to ``most`` words.

    The distribution is truncated and renormalised, as in SpanBERT's code (arXiv 1907.10529, section
    3.1). With ``stop`` 0.2 and ``most`` 10 the mean is 3.8 words, as in the paper.
    """
    weights = (1.0 - stop) ** np.arange(most)
    return weights / weights.sum()


@dataclasses.dataclass(frozen=True)
class Segmenter:
    """Finds the words in runs of Chinese characters with a user's function.

    BERT's tokenizers split Chinese text into single characters, so tokens do not show where words
    begin. The loader finds words when it masks, so one dataset serves every masking unit. A
    segmenter can be pickled, since it stores only the function's name.
    """

    # Name of the function, "module:function", such as "jieba:lcut". It takes text without white
    # space and returns the words in order. They must concatenate to the text.
    hook: str
    pieces: tuple[str, ...] = dataclasses.field(repr=False)  # pieces of the vocabulary
    # Whether a piece consists only of Chinese characters, bool [vocab_size].
    is_ideograph: np.ndarray = dataclasses.field(repr=False, compare=False)

    @classmethod
    def create(cls, hook: str, pieces: Sequence[str]) -> Self:
        """Returns the segmenter for a vocabulary.

        Raises UserError if the hook cannot be imported.
        """
        load_function(hook, key=_KEY)
        ideographs = [bool(piece) and all(map(is_chinese, piece)) for piece in pieces]
        return cls(hook, tuple(pieces), np.array(ideographs, bool))

    def join(self, input_ids: np.ndarray, continues: np.ndarray) -> np.ndarray:
        """Marks the characters that continue a word: ``我 爱 北 京`` -> ``no no no yes``.

        Returns a copy of ``continues``, bool [n], with new marks at the Chinese characters of
        ``input_ids``, int [n]. Raises UserError if the hook's words do not concatenate to the text.
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
                "masking.segmenter",
                f'{self.hook} returned {commas(words[:5])}, which is not "{text[:20]}"',
                place=_KEY,
            )
        return {0, *itertools.accumulate(map(len, words))}
