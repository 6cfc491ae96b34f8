"""Next sentence prediction: two spans, the second in half of the cases from another document.

The rules are those of ``create_instances_from_document`` in google-research/bert
``create_pretraining_data.py``, with one deliberate difference: a random next never comes from the
document itself (google-research/bert gives up after ten tries and labels it random all the same).
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from bert_jax.data.dataset.recipe import PAIR_SPECIAL_TOKENS, PairingSection
from bert_jax.pipelines.pairing.spans import (
    DocumentPass,
    Pair,
    SentenceOffsets,
    below,
    draw_target,
    truncate,
)

_RANDOM_NEXT_PROBABILITY: Final = 0.5


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
