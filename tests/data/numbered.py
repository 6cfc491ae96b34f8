"""Makes documents whose tokens equal their positions."""

from collections.abc import Iterable, Sequence

import numpy as np
from hypothesis import strategies as st

from bert_jax.data.dataset.provenance import PairingSection
from bert_jax.pipelines.pairing import Pair, Single, pair_documents
from bert_jax.pipelines.tokenised.documents import TokenisedDocuments
from tests.corpus import from_lists

# Lengths of the sentences of each document.
LENGTHS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=12), min_size=2, max_size=6)


def numbered(lengths: Iterable[Sequence[int]]) -> TokenisedDocuments:
    """Returns documents with given sentence lengths."""
    documents, place = [], 0
    for document in lengths:
        sentences = []
        for length in document:
            sentences.append(list(range(place, place + length)))
            place += length
        documents.append(sentences)
    return from_lists(range(len(documents)), documents, np.dtype(np.uint32))


def token_owner(documents: TokenisedDocuments) -> np.ndarray:
    """Returns the index of each token's document."""
    starts = documents.sentence_starts[documents.document_starts]
    return np.repeat(np.arange(len(documents)), np.diff(starts))


def pairs_of(documents: TokenisedDocuments, section: PairingSection, *, seed: int) -> list[Pair]:
    """Makes examples with a second span."""
    pairs = list(pair_documents(documents, section, seed=seed))
    assert all(isinstance(pair, Pair) for pair in pairs)
    return pairs  # pyright: ignore[reportReturnType]


def singles_of(
    documents: TokenisedDocuments, section: PairingSection, *, seed: int = 0
) -> list[Single]:
    """Makes examples without a second span."""
    singles = list(pair_documents(documents, section, seed=seed))
    assert all(isinstance(single, Single) for single in singles)
    return singles  # pyright: ignore[reportReturnType]
