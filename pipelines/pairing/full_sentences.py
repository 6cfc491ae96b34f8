"""Full sentences without a pair task (RoBERTa, arXiv 1907.11692, section 4.2)."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from bert_jax.data.dataset.recipe import PairingSection
from bert_jax.pipelines.pairing.spans import DocumentPass, SentenceOffsets, Single

_SPECIAL_TOKENS: Final = 2  # [CLS] and the last [SEP]


def full_sentences(
    offsets: SentenceOffsets, documents: DocumentPass, section: PairingSection
) -> Iterator[Single]:
    """Yields examples of contiguous sentences that continue across document boundaries.

    As many sentences as fit; where a document ends within an example, a [SEP] precedes the next
    one. Every token is in exactly one example. A sentence is cut only where it is longer than an
    example; its rest counts as a sentence.
    """
    return _fill(offsets, documents.shuffled(), max_seq_length=section.max_seq_length)


def doc_sentences(
    offsets: SentenceOffsets, documents: DocumentPass, section: PairingSection
) -> Iterator[Single]:
    """Yields the same within each document; its last example may be short."""
    for document in documents.documents:
        yield from _fill(offsets, (document,), max_seq_length=section.max_seq_length)


def _fill(
    offsets: SentenceOffsets, documents: Iterable[int], *, max_seq_length: int
) -> Iterator[Single]:
    bounds, starts = offsets
    room = max_seq_length - _SPECIAL_TOKENS
    held: list[tuple[int, int]] = []
    left = room
    for document in documents:
        first, last = starts[document], starts[document + 1]
        at, end = bounds[first], bounds[last]
        while at < end:
            # What is held is of earlier documents: one example takes all that fits of this one.
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
