"""Examples as spans of a corpus' tokens, and the steps that several pairing kinds share."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from bert_jax.data.dataset.recipe import MIN_PAIR_TOKENS
from bert_jax.data.rng import stream


class Pair(NamedTuple):
    """``[CLS] A [SEP] B [SEP]``: two spans of the corpus' tokens."""

    first_start: int
    first_stop: int
    second_start: int
    second_stop: int
    next_sentence_label: int
    """0 if the second span follows the first in its document; 1 if it comes from another document
    (``nsp``) or precedes the first in its own (``sop``)."""

    @property
    def token_ranges(self) -> tuple[tuple[int, int], ...]:
        """Start and stop of each run of tokens between special tokens, in order."""
        return (self.first_start, self.first_stop), (self.second_start, self.second_stop)

    @property
    def first_length(self) -> int:
        """Tokens of type 0: ``[CLS] A [SEP]``."""
        return self.first_stop - self.first_start + 2

    @property
    def length(self) -> int:
        """Tokens of ``[CLS] A [SEP] B [SEP]``."""
        return self.first_length + self.second_stop - self.second_start + 1


class Single(NamedTuple):
    """``[CLS] A [SEP]``, or ``[CLS] A [SEP] A' [SEP]`` across a document's end: all of type 0."""

    token_ranges: tuple[tuple[int, int], ...]  # start and stop of each document's part, in order

    @property
    def next_sentence_label(self) -> int:
        """0, without meaning where there is no second span."""
        return 0

    @property
    def first_length(self) -> int:
        """Equals :attr:`length`, which says that there is no second span."""
        return self.length

    @property
    def length(self) -> int:
        """Tokens, [CLS] and a [SEP] after each document's part included."""
        return 1 + sum(stop - start + 1 for start, stop in self.token_ranges)


class SentenceOffsets(NamedTuple):
    """Where sentences and documents begin; lists, since bisection looks at single numbers."""

    bounds: list[int]  # token offset of every sentence of all documents, and of the end
    starts: list[int]  # first sentence of every document, and the number of sentences


class DocumentPass(NamedTuple):
    """One of the passes in which documents become examples."""

    number: int
    of: int  # passes in all
    documents: list[int]  # numbers of the documents in this pass, ascending
    keys: list[int]  # of all documents
    seed: int

    def rng(self, document: int) -> np.random.Generator:
        """Returns the random stream of a document in this pass."""
        return stream(self.seed, "pairing", self.number, self.keys[document])

    def shuffled(self) -> list[int]:
        """Returns the documents in an order of this pass; of a single pass in their own order."""
        if self.of == 1:
            return self.documents
        ranks = stream(self.seed, "order", self.number).random(len(self.keys))[self.documents]
        return np.asarray(self.documents)[np.argsort(ranks, kind="stable")].tolist()


def draw_target(max_tokens: int, short_seq_prob: float, draw: Callable[[], float]) -> int:
    """Returns the target length of the pairs of one pass over a document.

    Source: ``create_instances_from_document`` in google-research/bert
    ``create_pretraining_data.py``.

    Args:
        max_tokens: of both spans without special tokens.
        short_seq_prob: probability of a uniform length from 2 to ``max_tokens`` instead.
        draw: uniform in [0, 1).
    """
    if draw() < short_seq_prob:
        return MIN_PAIR_TOKENS + below(max_tokens - MIN_PAIR_TOKENS + 1, draw)
    return max_tokens


def truncate(
    first: tuple[int, int], second: tuple[int, int], *, max_tokens: int, rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Shortens two spans to ``max_tokens``: ``(0, 5), (5, 10)`` to 6, say ``1, 4, 7, 10``.

    google-research/bert removes one token at a time from the longer span (the second, when they are
    equal), at its front or its back with equal probability. The remaining lengths follow, and the
    tokens lost at the front are binomially distributed. Returns start and stop of each span.
    """
    length_a, length_b = first[1] - first[0], second[1] - second[0]
    if length_a + length_b > max_tokens:
        shorter = min(length_a, length_b, max_tokens // 2)
        if length_b == shorter or min(length_a, length_b) > shorter:
            kept_a, kept_b = max_tokens - shorter, shorter
        else:
            kept_a, kept_b = shorter, max_tokens - shorter
        first = _lose(first, length_a - kept_a, rng)
        second = _lose(second, length_b - kept_b, rng)
    return *first, *second


def below(count: int, draw: Callable[[], float]) -> int:
    """Returns a uniform number in ``[0, count)``, up to one part in 2**53 / count."""
    return int(draw() * count)


def _lose(span: tuple[int, int], count: int, rng: np.random.Generator) -> tuple[int, int]:
    """Removes ``count`` tokens, each at the front or the back with equal probability."""
    if not count:
        return span
    # A fair binomial draw is the number of ones among that many random bits.
    bits = int.from_bytes(rng.bytes((count + 7) // 8), "little") & ((1 << count) - 1)
    front = bits.bit_count()
    return span[0] + front, span[1] - (count - front)
