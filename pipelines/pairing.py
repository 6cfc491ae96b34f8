"""Examples from tokenised documents: two spans with a pair task, or full sentences without one.

Each document has a random stream of its own, so its examples depend on other documents only through
the random next. There is no masking here: the loader masks.

Next sentence (BERT): in half of the cases the second span comes from another document. The rules
follow ``create_instances_from_document`` in google-research/bert ``create_pretraining_data.py``,
with one deliberate difference: a random next never comes from the document itself
(google-research/bert gives up after ten tries and still labels it random).

Sentence order (ALBERT, arXiv 1909.11942, section 3.1): are the two spans swapped? Chunks and
truncation are the same. One deliberate difference from ALBERT's ``create_pretraining_data.py``:
there, a chunk of a single sentence gets its second span from another document and the label of a
swapped one. Here both spans always come from one document.

Full sentences follow RoBERTa (arXiv 1907.11692, section 4.2).
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from bert_jax.data.dataset.provenance import MIN_PAIR_TOKENS, PAIR_SPECIAL_TOKENS, PairingSection
from bert_jax.data.rng import stream
from bert_jax.pipelines.tokenised.documents import TokenisedDocuments, join_key

_RANDOM_NEXT_PROBABILITY: Final = 0.5
_SWAP_PROBABILITY: Final = 0.5
_SPECIAL_TOKENS: Final = 2  # [CLS] and the last [SEP]


class Pair(NamedTuple):
    """``[CLS] A [SEP] B [SEP]``: two spans of the corpus' tokens."""

    first_start: int
    first_stop: int
    second_start: int
    second_stop: int
    next_sentence_label: int
    """0: the second span follows the first in its document. 1: it comes from another document
    (``nsp``) or precedes the first in its own (``sop``)."""

    @property
    def token_ranges(self) -> tuple[tuple[int, int], ...]:
        """Start and stop of both spans."""
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
        """Equals :attr:`length`: there is no second span."""
        return self.length

    @property
    def length(self) -> int:
        """Tokens, [CLS] and a [SEP] after each document's part included."""
        return 1 + sum(stop - start + 1 for start, stop in self.token_ranges)


class SentenceOffsets(NamedTuple):
    """Starts of sentences and documents; lists, since bisection reads single numbers."""

    bounds: list[int]  # token offset of every sentence of all documents, and of the end
    starts: list[int]  # first sentence of every document, and the number of sentences


def pair_document(
    offsets: SentenceOffsets, document: int, section: PairingSection, *, rng: np.random.Generator
) -> Iterator[Pair]:
    """Yields the examples of one pass over one document, for next sentence prediction.

    Sentences are gathered until they reach the target length or the document ends. The chunk is cut
    at a random sentence. In half of the cases, and for every chunk of a single sentence, a span of
    another document replaces the second span, and the replaced sentences go into the next chunk.
    """
    bounds, starts = offsets
    draw = rng.random
    max_tokens = section.max_seq_length - PAIR_SPECIAL_TOKENS
    target = draw_target(max_tokens, section.short_seq_prob, draw)
    begin, end = starts[document], starts[document + 1]
    while begin < end:
        # The fewest sentences whose tokens reach the target, or all that are left.
        stop = bisect_left(bounds, bounds[begin] + target, begin + 1, end)
        cut = begin + 1 if stop == begin + 1 else begin + 1 + below(stop - begin - 1, draw)
        first = bounds[begin], bounds[cut]
        if stop == begin + 1 or draw() < _RANDOM_NEXT_PROBABILITY:
            wanted = target - (first[1] - first[0])
            second = _random_span(offsets, document, wanted, draw)
            label, begin = 1, cut
        else:
            second = bounds[cut], bounds[stop]
            label, begin = 0, stop
        yield Pair(*truncate(first, second, max_tokens=max_tokens, rng=rng), label)


def _random_span(
    offsets: SentenceOffsets, document: int, wanted: int, draw: Callable[[], float]
) -> tuple[int, int]:
    """Returns sentences of another document: at least one, until they hold ``wanted`` tokens."""
    bounds, starts = offsets
    other = below(len(starts) - 2, draw)
    other += other >= document
    begin = starts[other] + below(starts[other + 1] - starts[other], draw)
    stop = bisect_left(bounds, bounds[begin] + wanted, begin + 1, starts[other + 1])
    return bounds[begin], bounds[stop]


def order_document(
    offsets: SentenceOffsets, document: int, section: PairingSection, *, rng: np.random.Generator
) -> Iterator[Pair]:
    """Yields the same for sentence order; nothing for a document of a single sentence.

    A chunk has at least two sentences, and in half of the cases its two parts are swapped. A single
    last sentence forms a chunk with the sentence before it, which is thus used twice.
    """
    bounds, starts = offsets
    begin, end = starts[document], starts[document + 1]
    if end - begin < 2:
        return
    draw = rng.random
    max_tokens = section.max_seq_length - PAIR_SPECIAL_TOKENS
    target = draw_target(max_tokens, section.short_seq_prob, draw)
    while begin < end:
        begin = min(begin, end - 2)
        stop = bisect_left(bounds, bounds[begin] + target, begin + 2, end)
        cut = begin + 1 + below(stop - begin - 1, draw)
        first, second = (bounds[begin], bounds[cut]), (bounds[cut], bounds[stop])
        swapped = draw() < _SWAP_PROBABILITY
        if swapped:
            # Before the truncation: it gives one span the odd token, and after it the lengths would
            # give the answer away.
            first, second = second, first
        yield Pair(*truncate(first, second, max_tokens=max_tokens, rng=rng), int(swapped))
        begin = stop


def draw_target(max_tokens: int, short_seq_prob: float, draw: Callable[[], float]) -> int:
    """Returns the target length of both spans, without special tokens, for a pass over a document.

    It is ``max_tokens`` or, with probability ``short_seq_prob``, a uniform length from 2.
    """
    if draw() < short_seq_prob:
        return MIN_PAIR_TOKENS + below(max_tokens - MIN_PAIR_TOKENS + 1, draw)
    return max_tokens


def truncate(
    first: tuple[int, int], second: tuple[int, int], *, max_tokens: int, rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Shortens two spans to ``max_tokens``: ``(0, 5), (5, 10)`` to 6, say ``1, 4, 7, 10``.

    google-research/bert removes one token at a time from the longer span (the second, if they are
    equal), at its front or its back with equal probability. That fixes the remaining lengths, and
    the number of tokens lost at the front is binomial. Returns start and stop of each span.
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


def _fill(offsets: SentenceOffsets, documents: Iterable[int], room: int) -> Iterator[Single]:
    """Yields examples of as many contiguous sentences as fit into ``room`` tokens.

    If a document ends within an example, a [SEP] precedes the next document. Every token is in
    exactly one example. Only a sentence longer than an example is cut; its rest counts as a
    sentence.
    """
    bounds, starts = offsets
    held: list[tuple[int, int]] = []
    left = room
    for document in documents:
        first, last = starts[document], starts[document + 1]
        at, end = bounds[first], bounds[last]
        while at < end:
            # `held` is of earlier documents: one example takes all that fits of this one.
            fitting = max(left - 1, 0) if held else room
            stop = bounds[bisect_right(bounds, at + fitting, first, last + 1) - 1]
            if stop <= at:
                if held:
                    yield Single(tuple(held))
                    held = []
                    continue
                stop = at + room
            held.append((at, stop))
            left, at = fitting - (stop - at), stop
            if at < end:
                yield Single(tuple(held))
                held = []
    if held:
        yield Single(tuple(held))


def pair_documents(
    documents: TokenisedDocuments, section: PairingSection, *, seed: int, boost: float = 1.0
) -> Iterator[Pair | Single]:
    """Yields the examples of ``dupe_factor`` passes over every document.

    There are at least ``section.min_documents``. The seed, the documents' keys and the settings
    decide every random choice. ``boost`` multiplies ``dupe_factor``; the fraction of the product is
    the probability of one more pass over a document. A document without a pass may still be a
    random next.
    """
    offsets = SentenceOffsets(
        documents.sentence_starts.tolist(), documents.document_starts.tolist()
    )
    passes = draw_passes(documents.keys, mean=section.dupe_factor * boost, seed=seed)
    keys = [join_key(halves) for halves in documents.keys]
    room = section.max_seq_length - _SPECIAL_TOKENS
    pair = order_document if section.kind == "sop" else pair_document
    for number, chosen in enumerate(passes):
        if section.kind == "full_sentences":
            if len(passes) > 1:  # each pass has an order of its own
                ranks = stream(seed, "order", number).random(len(keys))[chosen]
                chosen = np.asarray(chosen)[np.argsort(ranks, kind="stable")].tolist()
            yield from _fill(offsets, chosen, room)
            continue
        for document in chosen:
            if section.kind == "doc_sentences":
                yield from _fill(offsets, (document,), room)
            else:
                rng = stream(seed, "pairing", number, keys[document])
                yield from pair(offsets, document, section, rng=rng)


def draw_passes(keys: np.ndarray, *, mean: float, seed: int) -> list[list[int]]:
    """Returns the documents of every pass: three documents at 1.4 → ``[0, 1, 2]``, ``[1]``, say.

    Every document is in ``floor(mean)`` passes, and in one more with the remaining probability, a
    function of its key alone. The keys are ``[d, 2]`` uint64.
    """
    whole = math.floor(mean)
    passes = [list(range(len(keys))) for _ in range(whole)]
    if rest := mean - whole:
        chances = (stream(seed, "passes", join_key(key)).random() for key in keys)
        passes.append([number for number, chance in enumerate(chances) if chance < rest])
    return passes
