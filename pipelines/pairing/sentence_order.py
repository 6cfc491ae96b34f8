"""Sentence order prediction (ALBERT, arXiv 1909.11942, section 3.1): did the two spans swap?

Chunks and truncation are those of next sentence prediction. One thing differs from ALBERT's own
``create_pretraining_data.py``, on purpose: there, a chunk of a single sentence gets its second
span from another document and the label of a swapped one. Here both spans always come from one
document.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

import numpy as np

from bert_jax.data.dataset.recipe import PAIR_SPECIAL_TOKENS
from bert_jax.pipelines.pairing.spans import Pair, below, draw_target, truncate

_SWAP_PROBABILITY: Final = 0.5


def order_document(
    bounds: list[int],
    starts: list[int],
    document: int,
    *,
    max_seq_length: int,
    short_seq_prob: float,
    rng: np.random.Generator,
) -> Iterator[Pair]:
    """Yields one pass's examples of one document; none for a document of a single sentence.

    Sentences, at least two, are gathered until they reach the target length or the document ends;
    the chunk is cut at a random sentence, and in half of the cases the two parts change places. A
    last sentence that is left alone forms a chunk with the one before it, which is thus used twice.

    Args:
        bounds: token offset of every sentence of all documents, and of the end.
        starts: first sentence of every document, and the end.
        document: number of the document.
        max_seq_length: longest example, special tokens included.
        short_seq_prob: chance that the pass aims at a shorter length.
        rng: the stream of this document and pass.
    """
    draw = rng.random
    max_tokens = max_seq_length - PAIR_SPECIAL_TOKENS
    target = draw_target(max_tokens, short_seq_prob, draw)
    begin, end = starts[document], starts[document + 1]
    if end - begin < 2:
        return
    while begin < end:
        begin = min(begin, end - 2)
        stop = bisect_left(bounds, bounds[begin] + target, begin + 2, end)
        cut = begin + 1 + below(stop - begin - 1, draw)
        first, second = (bounds[begin], bounds[cut]), (bounds[cut], bounds[stop])
        swapped = draw() < _SWAP_PROBABILITY
        if swapped:
            # Before the truncation, which treats the spans alike but for the odd token: after it,
            # the lengths would give the answer away.
            first, second = second, first
        yield Pair(*truncate(first, second, max_tokens=max_tokens, rng=rng), int(swapped))
        begin = stop
