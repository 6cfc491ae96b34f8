"""Examples from documents: two spans with a pair task, or full sentences without one.

Each document has a random stream of its own, so that its examples depend on other documents only
through the random next. There is no masking here: the loader masks. Full sentences are those of
RoBERTa (arXiv 1907.11692, section 4.2).
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias

from bert_jax.data.dataset.recipe import PairingKind, PairingSection
from bert_jax.pipelines.pairing.language_sampling import draw_passes
from bert_jax.pipelines.pairing.sentence_pairs import next_sentence_pairs, sentence_order_pairs
from bert_jax.pipelines.pairing.spans import DocumentPass, Pair, SentenceOffsets, Single
from bert_jax.pipelines.tokenised.documents import TokenisedDocuments, join_key

_SPECIAL_TOKENS: Final = 2  # [CLS] and the last [SEP]

Pairing: TypeAlias = Callable[
    [SentenceOffsets, DocumentPass, PairingSection], Iterator[Pair] | Iterator[Single]
]


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


PAIRINGS: Final[dict[PairingKind, Pairing]] = {
    "nsp": next_sentence_pairs,
    "sop": sentence_order_pairs,
    "full_sentences": full_sentences,
    "doc_sentences": doc_sentences,
}
"""How each kind makes the examples of one pass. A new kind is a function, a line here, and its name
in ``bert_jax/data/dataset/recipe.py``, which datasets record."""


def pair_documents(
    documents: TokenisedDocuments, section: PairingSection, *, seed: int, boost: float = 1.0
) -> Iterator[Pair | Single]:
    """Yields the examples of every document, ``dupe_factor`` times over.

    The seed decides every random choice, with the documents' keys and the settings. ``boost`` is a
    factor of ``dupe_factor``; the fraction of the product is the probability of one more pass over
    a document. A document without a pass may still be a random next. Raises ValueError: fewer
    documents than ``section.min_documents``.
    """
    if len(documents) < section.min_documents:
        raise ValueError(
            f"{len(documents)} document(s): kind {section.kind} needs at least "
            f"{section.min_documents}"
        )
    offsets = SentenceOffsets(
        documents.sentence_starts.tolist(), documents.document_starts.tolist()
    )
    passes = draw_passes(documents.keys, mean=section.dupe_factor * boost, seed=seed)
    keys = [join_key(halves) for halves in documents.keys]
    for number, chosen in enumerate(passes):
        one_pass = DocumentPass(number, len(passes), chosen, keys, seed)
        yield from PAIRINGS[section.kind](offsets, one_pass, section)
