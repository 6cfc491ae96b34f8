"""Examples from documents: two spans with a pair task, or full sentences without one.

A document's draws come from a stream of its own, so that its examples depend on the documents
around it only through the random next. No masking here: the loader draws masks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Annotated, Any, Final, Literal

import numpy as np
import pydantic

from bert_jax.data.mixture import draw_passes
from bert_jax.data.pairing_nsp import pair_document
from bert_jax.data.pairing_sentences import doc_sentences, full_sentences
from bert_jax.data.pairing_sop import order_document
from bert_jax.data.rng import stream
from bert_jax.data.spans import MIN_PAIR_TOKENS, PAIR_SPECIAL_TOKENS, Pair, Single
from bert_jax.data.tokenised import TokenisedDocuments, join_key
from bert_jax.section import Section

__all__ = ["Pair", "PairingKind", "PairingSection", "Single", "pair_documents"]

PairingKind = Literal["nsp", "sop", "full_sentences", "doc_sentences"]

_OF_A_DOCUMENT: Final = {"nsp": pair_document, "sop": order_document}


class PairingSection(Section):
    """How documents become examples: the release's flags with its defaults, and RoBERTa's ways."""

    kind: PairingKind = "nsp"
    """``nsp``: two spans, the second random in half of the cases (arXiv 1810.04805). ``sop``: two
    spans of one document, swapped in half of the cases (ALBERT, arXiv 1909.11942).
    ``full_sentences``: one span of as many contiguous sentences as fit, going on into the next
    document after a separator; ``doc_sentences``: the same within a document (RoBERTa, arXiv
    1907.11692)."""
    max_seq_length: Annotated[
        int, pydantic.Field(ge=PAIR_SPECIAL_TOKENS + MIN_PAIR_TOKENS, lt=1 << 16)
    ] = 512
    """Longest example in tokens, special tokens included. (The release's flag defaults to 128.)"""
    dupe_factor: Annotated[int, pydantic.Field(ge=1)] = 10
    """How often each document is used, each time with other draws. Without a pair task it is 1
    unless it is set; each pass of ``full_sentences`` is then in another order of documents."""
    short_seq_prob: Annotated[float, pydantic.Field(ge=0.0, le=1.0)] = 0.1
    """Share of the passes over a document that aim at a length drawn at random; 0 without a pair
    task."""

    @property
    def has_pairs(self) -> bool:
        """Whether examples have a second span, and a label that tells how it was chosen."""
        return self.kind in _OF_A_DOCUMENT

    @property
    def min_documents(self) -> int:
        """Fewest documents that examples can be made of: a random next needs a second one."""
        return 2 if self.kind == "nsp" else 1

    @pydantic.model_validator(mode="before")
    @classmethod
    def _defaults_of_kind(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("kind") in ("full_sentences", "doc_sentences"):
            return {"dupe_factor": 1, "short_seq_prob": 0.0, **values}
        return values

    @pydantic.model_validator(mode="after")
    def _draws_fit_kind(self) -> PairingSection:
        if not self.has_pairs and self.short_seq_prob:
            raise ValueError(
                f"short_seq_prob: found {self.short_seq_prob:g}, allowed: 0 with kind {self.kind}, "
                "whose examples are as long as they can be"
            )
        if self.kind == "doc_sentences" and self.dupe_factor > 1:
            raise ValueError(
                f"dupe_factor: found {self.dupe_factor}, allowed: 1 with kind doc_sentences, "
                "which draws nothing: each pass would make the same examples"
            )
        return self


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
