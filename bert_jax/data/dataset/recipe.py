"""The settings that a dataset was made with: how documents were paired, how languages were mixed.

They are part of a dataset's provenance, so they are here and not with the code that pairs.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import pydantic

from bert_jax.section import Section

PairingKind = Literal["nsp", "sop", "full_sentences", "doc_sentences"]

# Those whose examples have a second span.
PAIR_KINDS: Final = ("nsp", "sop")

PAIR_SPECIAL_TOKENS: Final = 3
"""[CLS] A [SEP] B [SEP]."""

MIN_PAIR_TOKENS: Final = 2
"""A token in each span."""


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
        return self.kind in PAIR_KINDS

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


class MixtureSection(Section):
    """How much of each language there is to be."""

    smoothing: Annotated[float, pydantic.Field(ge=0.0, le=1.0)] = 0.7
    """The power S that a language's share is taken to: 1 leaves the corpus as it is, 0 gives all
    languages as much."""
