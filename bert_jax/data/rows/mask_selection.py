"""Selection of the tokens to mask: single tokens, whole words, spans of words; Chinese words."""

import dataclasses
import functools
import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import numpy as np

from bert_jax.errors import UserError
from bert_jax.text.basic_tokenizer import is_chinese
from bert_jax.user_function import load_function

_KEY: Final = "objective.masking.segmenter"
_BLOCK: Final = 64  # words; most examples spend their budget within the first block


class Words(NamedTuple):
    """The words of an example, as ranges of its candidates (the tokens that may be masked)."""

    starts: np.ndarray  # int [w]: index of the first candidate of each
    lengths: np.ndarray  # int [w]: tokens
    opens_run: np.ndarray  # bool [w]: first word of the example or first after a special token


class WordSpan(NamedTuple):
    """Consecutive words that are masked as a whole."""

    first: int  # index of its first word
    size: int  # words
    start: int  # index of its first candidate
    tokens: int


def find_words(candidates: np.ndarray, continues: np.ndarray) -> Words:
    """Cuts an example into words: candidates ``[1, 2, 4]``, all continuing -> lengths ``[2, 1]``.

    A word ends before a special token. In google-research/bert a continuation that opens the second
    span joins the last word of the first across [SEP]; here it is a word of its own. Candidates,
    [c], are positions of the tokens that may be masked, ascending, at least one; ``continues``,
    bool [c], says of each whether it continues the word of the token before it.
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
    """Returns bool [c]: a uniformly random choice of ``budget`` candidates.

    The keys are uniform random numbers [c], the budget 1 to c.
    """
    chosen = np.zeros(len(keys), bool)
    chosen[keys.argpartition(budget - 1)[:budget]] = True
    return chosen


def choose_words(words: Words, keys: np.ndarray, budget: int) -> np.ndarray:
    """Returns bool [c]: the tokens of randomly chosen words, as many as fit into ``budget``.

    The keys are uniform random numbers [w].
    """
    order = keys.argsort()
    ordered = words.lengths[order]
    ends = ordered.cumsum()
    fitting = int(ends.searchsorted(budget, side="right"))
    left = budget - (int(ends[fitting - 1]) if fitting else 0)
    chosen = np.zeros(len(order), bool)
    chosen[order[:fitting]] = True
    # The next word exceeds the budget: continue with the later words that still fit.
    for at in (fitting + np.flatnonzero(ordered[fitting:] <= left)).tolist() if left else ():
        if ordered[at] <= left:
            chosen[order[at]] = True
            left -= int(ordered[at])
            if not left:
                break
    return chosen.repeat(words.lengths)


def choose_spans(
    words: Words, *, keys: np.ndarray, sizes: np.ndarray, chances: np.ndarray, budget: int
) -> list[WordSpan]:
    """Chooses spans of whole words, in random order, until ``budget`` tokens are spent.

    Each begins at a uniformly random word that is not yet taken and has a random size; it ends
    earlier at a special token, at a word already taken, and before a word that exceeds the budget.
    Like whole words, spans may fall short of the budget by less than a word.

    Args:
        words: of the example.
        keys: [w] uniform random numbers that order the words.
        sizes: [w] uniform random numbers that give the size of a span that begins at each word.
        chances: probabilities of 1, 2, … words.
        budget: tokens.
    """
    # Lists and bytes: only a few elements are read, one by one, where NumPy is far slower.
    limits = list(itertools.accumulate(chances[:-1].tolist()))
    lengths, opens_run = words.lengths.tolist(), words.opens_run.tobytes()
    taken = bytearray(len(lengths) + 1)
    taken[-1] = 1  # beyond the last word
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
    """Returns the tokens of disjoint spans, ascending, and the span of each: both int [k].

    Spans of one token at 3 and of three tokens at 0: tokens ``[0, 1, 2, 3]``, spans
    ``[1, 1, 1, 0]``.
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

    Source: SpanBERT, arXiv 1907.10529, section 3.1. Truncated and renormalised, as in its code: the
    mean is the paper's 3.8 words at 0.2 and 10.
    """
    weights = (1.0 - stop) ** np.arange(most)
    return weights / weights.sum()


@dataclasses.dataclass(frozen=True)
class Segmenter:
    """Finds the words in sequences of Chinese characters, by a segmenter of the user's choice.

    BERT's tokenizers split Chinese text into single characters, so the tokens of a word are not
    marked as such. The loader segments tokens, so that one dataset serves every masking unit.
    Picklable: it holds the hook's name.
    """

    # "module:function", such as "jieba:lcut": takes text without white space, returns its words in
    # order, which concatenate to the text.
    hook: str
    pieces: tuple[str, ...] = dataclasses.field(repr=False)  # the vocabulary
    # bool [vocab_size], true for pieces that consist of Chinese characters only.
    is_ideograph: np.ndarray = dataclasses.field(repr=False, compare=False)

    @classmethod
    def create(cls, hook: str, pieces: Sequence[str]) -> Self:
        """Returns the segmenter for a vocabulary; UserError: the hook cannot be imported."""
        load_function(hook, key=_KEY)
        ideographs = [bool(piece) and all(map(is_chinese, piece)) for piece in pieces]
        return cls(hook, tuple(pieces), np.array(ideographs, bool))

    def join(self, input_ids: np.ndarray, continues: np.ndarray) -> np.ndarray:
        """Marks the characters that continue a word: ``我 爱 北 京`` -> ``no no no yes``.

        Returns a copy of ``continues``, bool [n], in which the Chinese characters of ``input_ids``,
        int [n], form the hook's words. Raises UserError: the hook's words do not concatenate to the
        text.
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
                '{name} returned {found} for "{text}", allowed: words that concatenate to the text',
                place=_KEY,
                name=self.hook,
                found=words[:5],
                text=text[:20],
            )
        return {0, *itertools.accumulate(map(len, words))}
