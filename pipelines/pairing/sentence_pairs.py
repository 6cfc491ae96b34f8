"""Two spans and a question about them: next sentence prediction, sentence order prediction.

Next sentence (BERT): the second span comes in half of the cases from another document. The rules
are those of ``create_instances_from_document`` in google-research/bert
``create_pretraining_data.py``, with one deliberate difference: a random next never comes from the
document itself (google-research/bert gives up after ten tries and labels it random all the same).

Sentence order (ALBERT, arXiv 1909.11942, section 3.1): did the two spans swap? Chunks and
truncation are the same. One deliberate difference from ALBERT's ``create_pretraining_data.py``:
there, a chunk of a single sentence gets its second span from another document and the label of a
swapped one. Here both spans always come from one document.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from bert_jax.data.dataset.recipe import MIN_PAIR_TOKENS, PAIR_SPECIAL_TOKENS, PairingSection
from bert_jax.pipelines.pairing.spans import DocumentPass, Pair, SentenceOffsets

_RANDOM_NEXT_PROBABILITY: Final = 0.5
_SWAP_PROBABILITY: Final = 0.5


def next_sentence_pairs(
    offsets: SentenceOffsets, documents: DocumentPass, section: PairingSection
) -> Iterator[Pair]:
    """Yields one pass's examples, document by document; the corpus has at least two."""
    for document in documents.documents:
        yield from pair_document(offsets, document, section, rng=documents.rng(document))


def pair_document(
    offsets: SentenceOffsets, document: int, section: PairingSection, *, rng: np.random.Generator
) -> Iterator[Pair]:
    """Yields one pass's examples of one document.

    Sentences are gathered until they reach the target length or the document ends; the chunk is cut
    at a random sentence; in half of the cases, and whenever the chunk is a single sentence, the
    second span is replaced by one of another document, and the sentences it displaced go into the
    next chunk.
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


def sentence_order_pairs(
    offsets: SentenceOffsets, documents: DocumentPass, section: PairingSection
) -> Iterator[Pair]:
    """Yields one pass's examples; none of a document of a single sentence.

    Sentences, at least two, are gathered until they reach the target length or the document ends;
    the chunk is cut at a random sentence, and in half of the cases the two parts are swapped. A
    remaining last sentence forms a chunk with the one before it, which is thus used twice.
    """
    bounds, starts = offsets
    max_tokens = section.max_seq_length - PAIR_SPECIAL_TOKENS
    for document in documents.documents:
        begin, end = starts[document], starts[document + 1]
        if end - begin < 2:
            continue
        rng = documents.rng(document)
        draw = rng.random
        target = draw_target(max_tokens, section.short_seq_prob, draw)
        while begin < end:
            begin = min(begin, end - 2)
            stop = bisect_left(bounds, bounds[begin] + target, begin + 2, end)
            cut = begin + 1 + below(stop - begin - 1, draw)
            first, second = (bounds[begin], bounds[cut]), (bounds[cut], bounds[stop])
            swapped = draw() < _SWAP_PROBABILITY
            if swapped:
                # Before the truncation, which treats the spans alike but for the odd token: after
                # it, the lengths would give the answer away.
                first, second = second, first
            yield Pair(*truncate(first, second, max_tokens=max_tokens, rng=rng), int(swapped))
            begin = stop


def draw_target(max_tokens: int, short_seq_prob: float, draw: Callable[[], float]) -> int:
    """Returns the target length of both spans, without special tokens, of a pass over a document.

    With probability ``short_seq_prob`` a uniform length from 2, else ``max_tokens``; ``draw`` is
    uniform in [0, 1). Source: ``create_instances_from_document`` in google-research/bert
    ``create_pretraining_data.py``.
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
