"""Next sentence prediction: two spans, the second in half of the cases from another document.

The rules are those of ``create_instances_from_document`` in google-research/bert's
``create_pretraining_data.py``. One thing differs, on purpose: a random next never comes from the
document itself (the release gives up after ten tries and labels it random all the same).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from bert_jax.data.dataset.recipe import PAIR_SPECIAL_TOKENS
from bert_jax.pipelines.pairing.spans import Pair, below, draw_target, truncate

_RANDOM_NEXT_PROBABILITY: Final = 0.5


def pair_document(
    bounds: list[int],
    starts: list[int],
    document: int,
    *,
    max_seq_length: int,
    short_seq_prob: float,
    rng: np.random.Generator,
) -> Iterator[Pair]:
    """Yields one pass's examples of one document.

    Sentences are gathered until they reach the target length or the document ends; the chunk is cut
    at a random sentence; in half of the cases, and whenever the chunk is a single sentence, the
    second span is replaced by one of another document, and the sentences it displaced go into the
    next chunk.

    Args:
        bounds: token offset of every sentence of all documents, and of the end.
        starts: first sentence of every document, and the end; at least two documents.
        document: number of the document.
        max_seq_length: longest example, special tokens included.
        short_seq_prob: chance that the pass aims at a shorter length.
        rng: the stream of this document and pass.
    """
    draw = rng.random
    max_tokens = max_seq_length - PAIR_SPECIAL_TOKENS
    target = draw_target(max_tokens, short_seq_prob, draw)
    begin, end = starts[document], starts[document + 1]
    while begin < end:
        # The fewest sentences whose tokens reach the target, or all that are left.
        stop = bisect_left(bounds, bounds[begin] + target, begin + 1, end)
        cut = begin + 1 if stop == begin + 1 else begin + 1 + below(stop - begin - 1, draw)
        first = bounds[begin], bounds[cut]
        if stop == begin + 1 or draw() < _RANDOM_NEXT_PROBABILITY:
            wanted = target - (first[1] - first[0])
            second = _random_span(bounds, starts, document, wanted, draw)
            label, begin = 1, cut
        else:
            second = bounds[cut], bounds[stop]
            label, begin = 0, stop
        yield Pair(*truncate(first, second, max_tokens=max_tokens, rng=rng), label)


def _random_span(
    bounds: list[int], starts: list[int], document: int, wanted: int, draw: Callable[[], float]
) -> tuple[int, int]:
    """Returns sentences of another document: at least one, until they hold ``wanted`` tokens."""
    other = below(len(starts) - 2, draw)
    other += other >= document
    begin = starts[other] + below(starts[other + 1] - starts[other], draw)
    stop = bisect_left(bounds, bounds[begin] + wanted, begin + 1, starts[other + 1])
    return bounds[begin], bounds[stop]
