"""Sentence order prediction (ALBERT, arXiv 1909.11942, section 3.1): did the two spans swap?

Chunks and truncation are those of next sentence prediction. One deliberate difference from ALBERT's
``create_pretraining_data.py``: there, a chunk of a single sentence gets its second span from
another document and the label of a swapped one. Here both spans always come from one document.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Final

from bert_jax.data.dataset.recipe import PAIR_SPECIAL_TOKENS, PairingSection
from bert_jax.pipelines.pairing.spans import (
    DocumentPass,
    Pair,
    SentenceOffsets,
    below,
    draw_target,
    truncate,
)

_SWAP_PROBABILITY: Final = 0.5


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
