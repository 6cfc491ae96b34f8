"""Examples from documents: two spans with a pair task, or full sentences without one.

A document's draws come from a stream of its own, so that its examples depend on the documents
around it only through the random next. No masking here: the loader draws masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Final

import numpy as np

from bert_jax.data.dataset.recipe import PairingSection
from bert_jax.data.rng import stream
from bert_jax.pipelines.pairing.full_sentences import doc_sentences, full_sentences
from bert_jax.pipelines.pairing.language_sampling import draw_passes
from bert_jax.pipelines.pairing.next_sentence import pair_document
from bert_jax.pipelines.pairing.sentence_order import order_document
from bert_jax.pipelines.pairing.spans import Pair, Single
from bert_jax.pipelines.tokenised.documents import TokenisedDocuments, join_key

_OF_A_DOCUMENT: Final = {"nsp": pair_document, "sop": order_document}


def pair_documents(
    documents: TokenisedDocuments, section: PairingSection, *, seed: int, boost: float = 1.0
) -> Iterator[Pair | Single]:
    """Yields the examples of every document, ``dupe_factor`` times over.

    Args:
        documents: at least ``section.min_documents``.
        section: kind, lengths and rates.
        seed: with the documents' keys and the settings it decides every draw.
        boost: factor of ``dupe_factor``. What is not whole of the product is the chance of one more
            pass over a document. A document without a pass may still be a random next.

    Raises:
        ValueError: fewer documents than that.
    """
    if len(documents) < section.min_documents:
        raise ValueError(
            f"{len(documents)} document(s): kind {section.kind} needs at least "
            f"{section.min_documents}"
        )
    # Lists, since bisection and indexing work on single numbers.
    bounds: list[int] = documents.sentence_starts.tolist()
    starts: list[int] = documents.document_starts.tolist()
    length = section.max_seq_length
    passes = draw_passes(documents.keys, mean=section.dupe_factor * boost, seed=seed)
    if section.kind == "full_sentences":
        for order in _orders(passes, len(documents), seed=seed):
            yield from full_sentences(bounds, starts, order, max_seq_length=length)
    elif section.kind == "doc_sentences":
        for document in chain.from_iterable(passes):
            yield from doc_sentences(bounds, starts, document, max_seq_length=length)
    else:
        pair = _OF_A_DOCUMENT[section.kind]
        keys = [join_key(halves) for halves in documents.keys]
        for dupe, chosen in enumerate(passes):
            for document in chosen:
                yield from pair(
                    bounds,
                    starts,
                    document,
                    max_seq_length=length,
                    short_seq_prob=section.short_seq_prob,
                    rng=stream(seed, "pairing", dupe, keys[document]),
                )


def _orders(passes: list[list[int]], count: int, *, seed: int) -> Iterator[list[int]]:
    """Yields the documents of each pass in an order of its own; a single one as they come."""
    if len(passes) == 1:
        yield passes[0]
        return
    for dupe, chosen in enumerate(passes):
        draws = stream(seed, "order", dupe).random(count)[chosen]
        yield np.asarray(chosen)[np.argsort(draws, kind="stable")].tolist()
