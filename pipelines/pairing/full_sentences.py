"""Full sentences without a pair task (RoBERTa, arXiv 1907.11692, section 4.2)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Final

from bert_jax.pipelines.pairing.spans import Single

SINGLE_SPECIAL_TOKENS: Final = 2
"""``[CLS]`` and the last ``[SEP]``."""


def full_sentences(
    bounds: list[int], starts: list[int], documents: Iterable[int], *, max_seq_length: int
) -> Iterator[Single]:
    """Yields examples of contiguous sentences that go on from one document into the next.

    As many sentences as fit; where a document ends within an example, a [SEP] stands before the
    next one. Every token is in exactly one example. A sentence is cut only where it is longer than
    an example; its rest counts as a sentence.

    Args:
        bounds: token offset of every sentence of all documents, and of the end.
        starts: first sentence of every document, and the end.
        documents: numbers of the documents, in the order in which they follow each other.
        max_seq_length: longest example, special tokens included.
    """
    room = max_seq_length - SINGLE_SPECIAL_TOKENS
    held: list[tuple[int, int]] = []
    left = room
    for document in documents:
        first, last = starts[document], starts[document + 1]
        at, end = bounds[first], bounds[last]
        while at < end:
            # What is held is of earlier documents: one example takes all it can of this one.
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


def doc_sentences(
    bounds: list[int], starts: list[int], document: int, *, max_seq_length: int
) -> Iterator[Single]:
    """Yields examples of one document's contiguous sentences, the last of them as short as it is.

    Takes the arguments of :func:`full_sentences`, and one document's number.
    """
    return full_sentences(bounds, starts, (document,), max_seq_length=max_seq_length)
