"""Makes examples from tokenised documents: two spans for a pair task, or full sentences.

Each document has its own random stream, so its examples depend on other documents only through
random next sentences. Masking happens in the loader.

Next sentence prediction (BERT): in half of the cases the second span comes from another document.
The rules follow ``create_instances_from_document`` in google-research/bert's
``create_pretraining_data.py``, with one deliberate difference: a random next sentence never comes
from the document itself. google-research/bert draws at most ten documents, and then accepts the
document itself.

Sentence order prediction (ALBERT, arXiv 1909.11942, section 3.1): in half of the cases the two
spans are swapped. Chunks and truncation are as in next sentence prediction. One deliberate
difference: here both spans always come from one document. ALBERT's ``create_pretraining_data.py``
takes the second span from another document if a chunk has a single sentence, and labels the pair as
swapped.

Full sentences follow RoBERTa (arXiv 1907.11692, section 4.2).
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np

from bert_jax.data.dataset.provenance import MIN_PAIR_TOKENS, PairingSection
from bert_jax.data.rng import stream
from bert_jax.pipelines.tokenised.documents import TokenisedDocuments, join_key

_RANDOM_NEXT_PROBABILITY: Final = 0.5
_SWAP_PROBABILITY: Final = 0.5
_SPECIAL_TOKENS: Final = 2  # [CLS] and the last [SEP]


class Pair(NamedTuple):
    """Two spans of the corpus' tokens, for an example ``[CLS] A [SEP] B [SEP]``."""

    first_start: int
    first_stop: int
    second_start: int
    second_stop: int
    next_sentence_label: int
    """0 if the second span follows the first in its document. 1 if it comes from another document
    (``nsp``) or precedes the first (``sop``)."""
    separators: int = 1
    """Number of separators between the spans."""

    @property
    def token_ranges(self) -> tuple[tuple[int, int], ...]:
        """Start and stop of both spans."""
        return (self.first_start, self.first_stop), (self.second_start, self.second_stop)

    @property
    def first_length(self) -> int:
        """Number of tokens of type 0: ``[CLS] A [SEP]``."""
        return self.first_stop - self.first_start + 1 + self.separators

    @property
    def length(self) -> int:
        """Number of tokens of ``[CLS] A [SEP] B [SEP]``."""
        return self.first_length + self.second_stop - self.second_start + 1


class Single(NamedTuple):
    """An example without a second span, ``[CLS] A [SEP]``; all tokens have type 0.

    If it crosses the end of a document, it is ``[CLS] A [SEP] A' [SEP]``.
    """

    token_ranges: tuple[tuple[int, int], ...]  # start and stop of each document's part, in order

    @property
    def next_sentence_label(self) -> int:
        """Always 0: without a second span the label has no meaning."""
        return 0

    @property
    def first_length(self) -> int:
        """Number of tokens of type 0, which is the whole :attr:`length`."""
        return self.length

    @property
    def length(self) -> int:
        """Number of tokens, with [CLS] and a [SEP] after each document's part."""
        return 1 + sum(stop - start + 1 for start, stop in self.token_ranges)


class SentenceOffsets(NamedTuple):
    """Starts of sentences and documents. Lists are faster than arrays for bisection."""

    bounds: list[int]  # token offset of every sentence; the last entry is the number of tokens
    starts: list[int]  # first sentence of every document; the last entry is the number of sentences


def pair_document(
    offsets: SentenceOffsets,
    document: int,
    section: PairingSection,
    *,
    rng: np.random.Generator,
    separators: int = 1,
) -> Iterator[Pair]:
    """Yields the examples of one pass over one document, for next sentence prediction.

    A chunk is a run of sentences that reaches the target length or the end of the document. It is
    cut at a random sentence into two spans. If the chunk has a single sentence, and otherwise in
    half of the cases, a span of another document replaces the second span. The replaced sentences
    begin the next chunk.
    """
    bounds, starts = offsets
    draw = rng.random
    max_tokens = section.max_seq_length - _SPECIAL_TOKENS - separators
    target = draw_target(max_tokens, section.short_seq_prob, draw)
    begin, end = starts[document], starts[document + 1]
    while begin < end:
        # The fewest sentences whose tokens reach the target, or all remaining sentences.
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
        yield Pair(*truncate(first, second, max_tokens=max_tokens, rng=rng), label, separators)


def _random_span(
    offsets: SentenceOffsets, document: int, wanted: int, draw: Callable[[], float]
) -> tuple[int, int]:
    """Returns the token range of sentences of another document.

    The range begins at a random sentence. It ends with the sentence that reaches ``wanted`` tokens,
    or with the document.
    """
    bounds, starts = offsets
    other = below(len(starts) - 2, draw)
    other += other >= document
    begin = starts[other] + below(starts[other + 1] - starts[other], draw)
    stop = bisect_left(bounds, bounds[begin] + wanted, begin + 1, starts[other + 1])
    return bounds[begin], bounds[stop]


def order_document(
    offsets: SentenceOffsets,
    document: int,
    section: PairingSection,
    *,
    rng: np.random.Generator,
    separators: int = 1,
) -> Iterator[Pair]:
    """Yields the examples of one pass over one document, for sentence order prediction.

    A chunk has at least two sentences, and in half of the cases its two parts are swapped. If one
    sentence remains at the end, it forms a chunk with the sentence before it, which is thus used
    twice. A document of a single sentence gives no example.
    """
    bounds, starts = offsets
    begin, end = starts[document], starts[document + 1]
    if end - begin < 2:
        return
    draw = rng.random
    max_tokens = section.max_seq_length - _SPECIAL_TOKENS - separators
    target = draw_target(max_tokens, section.short_seq_prob, draw)
    while begin < end:
        begin = min(begin, end - 2)
        stop = bisect_left(bounds, bounds[begin] + target, begin + 2, end)
        cut = begin + 1 + below(stop - begin - 1, draw)
        first, second = (bounds[begin], bounds[cut]), (bounds[cut], bounds[stop])
        swapped = draw() < _SWAP_PROBABILITY
        if swapped:
            # Swap before truncating. If `max_tokens` is odd, truncation keeps one more token of the
            # first span, so a later swap would reveal the label.
            first, second = second, first
        kept = truncate(first, second, max_tokens=max_tokens, rng=rng)
        yield Pair(*kept, int(swapped), separators)
        begin = stop


def draw_target(max_tokens: int, short_seq_prob: float, draw: Callable[[], float]) -> int:
    """Returns the target length of both spans together, without special tokens.

    The length is uniform from 2 to ``max_tokens`` with probability ``short_seq_prob``, and
    otherwise ``max_tokens``.
    """
    if draw() < short_seq_prob:
        return MIN_PAIR_TOKENS + below(max_tokens - MIN_PAIR_TOKENS + 1, draw)
    return max_tokens


def truncate(
    first: tuple[int, int], second: tuple[int, int], *, max_tokens: int, rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Shortens two spans to ``max_tokens``, for example ``(0, 5), (5, 10)`` to ``1, 4, 7, 10``.

    google-research/bert removes one token at a time from the longer span (from the second if both
    are equal), at the front or the back with equal probability. The remaining lengths are thus
    deterministic. The number of tokens removed at the front is binomial; here it is a single draw.

    Returns start and stop of each span.
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
    """Returns a uniform integer in ``[0, count)``; probabilities are exact up to 2**-53."""
    return int(draw() * count)


def _lose(span: tuple[int, int], count: int, rng: np.random.Generator) -> tuple[int, int]:
    """Removes ``count`` tokens, each at the front or the back with equal probability."""
    if not count:
        return span
    # The number of ones among `count` random bits is a fair binomial draw.
    bits = int.from_bytes(rng.bytes((count + 7) // 8), "little") & ((1 << count) - 1)
    front = bits.bit_count()
    return span[0] + front, span[1] - (count - front)


def _fill(offsets: SentenceOffsets, documents: Iterable[int], room: int) -> Iterator[Single]:
    """Yields examples of as many contiguous sentences as fit into ``room`` tokens.

    If a document ends within an example, a [SEP] separates it from the next document. Every token
    is in exactly one example. If a sentence is longer than an example, it is cut, and its remainder
    counts as a sentence.
    """
    bounds, starts = offsets
    held: list[tuple[int, int]] = []
    left = room
    for document in documents:
        first, last = starts[document], starts[document + 1]
        at, end = bounds[first], bounds[last]
        while at < end:
            # `held` has parts of earlier documents; add all sentences that still fit.
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
    documents: TokenisedDocuments,
    section: PairingSection,
    *,
    seed: int,
    boost: float = 1.0,
    separators: int = 1,
) -> Iterator[Pair | Single]:
    """Yields the examples of ``dupe_factor * boost`` passes over every document.

    The fractional part of this product is the probability of one more pass over a document. A
    document without a pass can still be a source of random next sentences. The seed, the keys of
    the documents and the settings decide every random choice. At least ``section.min_documents``
    documents are required. `separators` is the number of separators between two spans.
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
            if len(passes) > 1:  # each pass has its own order
                ranks = stream(seed, "order", number).random(len(keys))[chosen]
                chosen = np.asarray(chosen)[np.argsort(ranks, kind="stable")].tolist()
            yield from _fill(offsets, chosen, room)
            continue
        for document in chosen:
            if section.kind == "doc_sentences":
                yield from _fill(offsets, (document,), room)
            else:
                rng = stream(seed, "pairing", number, keys[document])
                yield from pair(offsets, document, section, rng=rng, separators=separators)


def draw_passes(keys: np.ndarray, *, mean: float, seed: int) -> list[list[int]]:
    """Returns the documents of every pass, for example ``[[0, 1, 2], [1]]`` with a mean of 1.4.

    Every document is in ``floor(mean)`` passes. The fractional part of the mean is the probability
    of one more pass, which depends on the key and the seed alone. ``keys`` is ``[d, 2]`` uint64.
    """
    whole = math.floor(mean)
    passes = [list(range(len(keys))) for _ in range(whole)]
    if rest := mean - whole:
        chances = (stream(seed, "passes", join_key(key)).random() for key in keys)
        passes.append([number for number, chance in enumerate(chances) if chance < rest])
    return passes
