"""Two-span examples from documents, as the 2018 release makes them.

The rules are those of ``create_instances_from_document`` and ``truncate_seq_pair`` in
google-research/bert's ``create_pretraining_data.py``. Two things differ, on purpose: a random next
never comes from the document itself (the release gives up after ten tries and labels it random all
the same), and a document's draws come from a stream of its own, so that its examples depend on the
documents around it only through the random next. No masking here: the loader draws masks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Annotated, Final, NamedTuple

import numpy as np
import pydantic

from bert_jax.data.rng import stream
from bert_jax.data.tokenised import TokenisedDocuments, join_key
from bert_jax.section import Section

SPECIAL_TOKENS: Final = 3
"""``[CLS]`` and two ``[SEP]``."""

_MIN_TOKENS: Final = 2
_RANDOM_NEXT_PROBABILITY: Final = 0.5


class PairingSection(Section):
    """How documents become two-span examples: the release's flags with its defaults."""

    max_seq_length: Annotated[int, pydantic.Field(ge=SPECIAL_TOKENS + _MIN_TOKENS, lt=1 << 16)] = (
        512
    )
    """Longest example in tokens, special tokens included. (The release's flag defaults to 128.)"""
    dupe_factor: Annotated[int, pydantic.Field(ge=1)] = 10
    """How often each document is paired, each time with other draws."""
    short_seq_prob: Annotated[float, pydantic.Field(ge=0.0, le=1.0)] = 0.1
    """Share of the passes over a document that aim at a length drawn at random."""


class Pair(NamedTuple):
    """One example as two stretches of a :class:`TokenisedDocuments`' ``tokens``."""

    first_start: int
    first_stop: int
    second_start: int
    second_stop: int
    next_sentence_label: int
    """0 if the second span follows the first in its document, 1 if it comes from another one."""

    @property
    def first_length(self) -> int:
        """Tokens of type 0: ``[CLS] A [SEP]``."""
        return self.first_stop - self.first_start + 2

    @property
    def length(self) -> int:
        """Tokens of ``[CLS] A [SEP] B [SEP]``."""
        return self.first_length + self.second_stop - self.second_start + 1


def pair_documents(
    documents: TokenisedDocuments, section: PairingSection, *, seed: int
) -> Iterator[Pair]:
    """Yields the examples of every document, ``dupe_factor`` times over.

    Args:
        documents: at least two: a random next must come from another document.
        section: lengths and rates.
        seed: with the documents' keys and the settings it decides every draw.

    Raises:
        ValueError: fewer than two documents.
    """
    if len(documents) < 2:
        raise ValueError(f"{len(documents)} document(s): a random next needs at least 2")
    # Lists, since bisection and indexing below work on single numbers.
    bounds: list[int] = documents.sentence_starts.tolist()
    starts: list[int] = documents.document_starts.tolist()
    keys = [join_key(halves) for halves in documents.keys]
    for dupe in range(section.dupe_factor):
        for document, key in enumerate(keys):
            rng = stream(seed, "pairing", dupe, key)
            yield from pair_document(bounds, starts, document, section, rng)


def pair_document(
    bounds: list[int],
    starts: list[int],
    document: int,
    section: PairingSection,
    rng: np.random.Generator,
) -> Iterator[Pair]:
    """Yields one pass's examples of one document.

    Sentences are gathered until they reach the target length or the document ends; the chunk is cut
    at a random sentence; in half of the cases, and whenever the chunk is a single sentence, the
    second span is replaced by one of another document, and the sentences it displaced go into the
    next chunk.

    Args:
        bounds: token offset of every sentence of all documents, and of the end.
        starts: first sentence of every document, and the end.
        document: number of the document.
        section: lengths and rates.
        rng: the stream of this document and pass.
    """
    draw = rng.random
    max_tokens = section.max_seq_length - SPECIAL_TOKENS
    target = max_tokens
    if draw() < section.short_seq_prob:
        target = _MIN_TOKENS + _below(max_tokens - _MIN_TOKENS + 1, draw)
    begin, end = starts[document], starts[document + 1]
    while begin < end:
        # The fewest sentences whose tokens reach the target, or all that are left.
        stop = bisect_left(bounds, bounds[begin] + target, begin + 1, end)
        cut = begin + 1 if stop == begin + 1 else begin + 1 + _below(stop - begin - 1, draw)
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
    other = _below(len(starts) - 2, draw)
    other += other >= document
    begin = starts[other] + _below(starts[other + 1] - starts[other], draw)
    stop = bisect_left(bounds, bounds[begin] + wanted, begin + 1, starts[other + 1])
    return bounds[begin], bounds[stop]


def truncate(
    first: tuple[int, int], second: tuple[int, int], *, max_tokens: int, rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Shortens two stretches to ``max_tokens``: ``(0, 5), (5, 10)`` to 6, say ``1, 4, 7, 10``.

    The release takes one token at a time from the longer span (the second, when they are equal),
    from its front or its back with equal chances. What remains has known lengths, and the tokens
    lost at the front are binomially distributed.

    Returns:
        Start and stop of the first stretch, start and stop of the second.
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


def _lose(span: tuple[int, int], count: int, rng: np.random.Generator) -> tuple[int, int]:
    """Takes ``count`` tokens off the ends, each from the front or the back with equal chances."""
    if not count:
        return span
    # A fair binomial draw is the number of ones among that many random bits.
    bits = int.from_bytes(rng.bytes((count + 7) // 8), "little") & ((1 << count) - 1)
    front = bits.bit_count()
    return span[0] + front, span[1] - (count - front)


def _below(count: int, draw: Callable[[], float]) -> int:
    """Returns a number in ``[0, count)``; each has its chance up to one part in 2**53 / count."""
    return int(draw() * count)
