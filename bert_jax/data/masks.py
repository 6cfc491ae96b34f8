"""Which positions of an example are chosen: single tokens, whole words, spans of words."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np


class Words(NamedTuple):
    """The words of an example: stretches of its candidates, the tokens that may be chosen."""

    starts: np.ndarray  # int [w]: where each begins, counted in candidates
    lengths: np.ndarray  # int [w]: tokens
    opens_run: np.ndarray  # bool [w]: a special token, or nothing, stands before it


class Spans(NamedTuple):
    """Spans of words, in the order in which they were drawn."""

    first: np.ndarray  # int [s]: first word
    size: np.ndarray  # int [s]: words


def find_words(candidates: np.ndarray, continues: np.ndarray) -> Words:
    """Cuts an example into words: candidates ``[1, 2, 4]``, all continuing -> lengths ``[2, 1]``.

    A word ends where a special token stands. The release lets a continuation that opens the second
    span join the last word of the first across [SEP]; here it is a word of its own.

    Args:
        candidates: [c] positions of the tokens that may be chosen, ascending, at least one.
        continues: bool [c], whether each continues the word of the token before it.
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
    """Returns bool [c]: ``budget`` of the candidates, each as likely as any other.

    Args:
        keys: [c] uniform draws.
        budget: at least 1, at most c.
    """
    chosen = np.zeros(len(keys), bool)
    chosen[keys.argpartition(budget - 1)[:budget]] = True
    return chosen


def choose_words(words: Words, keys: np.ndarray, budget: int) -> np.ndarray:
    """Returns bool [c]: the tokens of words drawn at random, as many as fit into ``budget``.

    Args:
        words: of the example.
        keys: [w] uniform draws.
        budget: tokens.
    """
    order = keys.argsort()
    ordered = words.lengths[order]
    ends = ordered.cumsum()
    fitting = int(ends.searchsorted(budget, side="right"))
    left = budget - (int(ends[fitting - 1]) if fitting else 0)
    chosen = np.zeros(len(order), bool)
    chosen[order[:fitting]] = True
    # The next word is too long, or there is none: of those after it, take the ones that still fit.
    for at in (fitting + np.flatnonzero(ordered[fitting:] <= left)).tolist() if left else ():
        if ordered[at] <= left:
            chosen[order[at]] = True
            left -= int(ordered[at])
            if not left:
                break
    return chosen.repeat(words.lengths)


def choose_spans(words: Words, *, keys: np.ndarray, sizes: np.ndarray, budget: int) -> Spans:
    """Draws spans of whole words until ``budget`` tokens are spent.

    Each begins at a word drawn uniformly from those not yet taken and goes on for the size drawn
    with that word; it ends earlier at a special token, at a word already taken, and before a word
    that the budget does not allow. Like whole words, spans may fall short of the budget by less
    than a word.

    Args:
        words: of the example.
        keys: [w] uniform draws, which put the words in order.
        sizes: int [w], the size drawn with each word, at least 1.
        budget: tokens.
    """
    order = keys.argsort()
    lengths, opens_run = words.lengths.tolist(), words.opens_run.tolist()
    taken = bytearray(len(lengths) + 1)
    taken[-1] = 1  # beyond the last word
    left = budget
    begun, counts = [], []
    for first, size in zip(order.tolist(), sizes[order].tolist(), strict=True):
        if taken[first] or lengths[first] > left:
            continue
        at, stop = first, first + size
        while True:
            taken[at] = 1
            left -= lengths[at]
            at += 1
            if at == stop or taken[at] or opens_run[at] or lengths[at] > left:
                break
        begun.append(first)
        counts.append(at - first)
        if not left:
            break
    return Spans(np.array(begun, np.int64), np.array(counts, np.int64))


def tokens_of_spans(words: Words, spans: Spans) -> tuple[np.ndarray, np.ndarray]:
    """Returns the tokens of spans in ascending order: int [k] in candidates, and whose each is.

    ``lengths [1, 2, 1], spans first [2, 0], size [1, 2]`` -> tokens ``[0, 1, 2, 3]``, spans
    ``[1, 1, 1, 0]``
    """
    order = spans.first.argsort()
    first, last = spans.first[order], (spans.first + spans.size)[order] - 1
    starts = words.starts[first]
    lengths = words.starts[last] + words.lengths[last] - starts
    ends = lengths.cumsum()
    tokens = np.arange(ends[-1] if len(ends) else 0) + (starts - ends + lengths).repeat(lengths)
    return tokens, order.repeat(lengths)


def draw_sizes(draws: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """Turns uniform draws into sizes from 1: ``[0.1, 0.9], chances [0.5, 0.5]`` -> ``[1, 2]``."""
    return 1 + np.cumsum(chances[:-1]).searchsorted(draws, side="right")


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

    Source: SpanBERT, arXiv 1907.10529, section 3.1. Longer draws are left out, not shortened to
    ``most``: only so is the mean the paper's 3.8 words at 0.2 and 10, and so does its code.
    """
    weights = (1.0 - stop) ** np.arange(most)
    return weights / weights.sum()
