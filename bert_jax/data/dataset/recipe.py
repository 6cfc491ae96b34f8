"""Settings of a dataset's content: pairing of documents, mixture of languages.

Here and not with the pairing code, because they are part of a dataset's provenance.
"""

from typing import Annotated, Any, Final, Literal, Self

import pydantic

from bert_jax.section import Section

PairingKind = Literal["nsp", "sop", "full_sentences", "doc_sentences"]

PAIR_KINDS: Final = ("nsp", "sop")  # kinds whose examples have a second span
PAIR_SPECIAL_TOKENS: Final = 3  # of `[CLS] A [SEP] B [SEP]`
MIN_PAIR_TOKENS: Final = 2  # one token in each span


class PairingSection(Section):
    """How documents become examples: google-research/bert's flags and defaults, RoBERTa's kinds."""

    kind: PairingKind = "nsp"
    """``nsp``: two spans, the second random in half of the cases (arXiv 1810.04805). ``sop``: two
    spans of one document, swapped in half of the cases (ALBERT, arXiv 1909.11942).
    ``full_sentences``: one span of as many contiguous sentences as fit, continued in the next
    document after a separator; ``doc_sentences``: the same within a document (RoBERTa, arXiv
    1907.11692)."""
    max_seq_length: Annotated[
        int, pydantic.Field(ge=PAIR_SPECIAL_TOKENS + MIN_PAIR_TOKENS, lt=1 << 16)
    ] = 512
    """Longest example in tokens, special tokens included. (google-research/bert: 128.)"""
    dupe_factor: Annotated[int, pydantic.Field(ge=1)] = 10
    """How often each document is used, each time with other random numbers. Without a pair task the
    default is 1; further passes of ``full_sentences`` take the documents in another order."""
    short_seq_prob: Annotated[float, pydantic.Field(ge=0.0, le=1.0)] = 0.1
    """Share of the passes over a document with a random target length; 0 without a pair task."""

    @property
    def has_pairs(self) -> bool:
        """Whether examples have a second span and a label."""
        return self.kind in PAIR_KINDS

    @property
    def min_documents(self) -> int:
        """Fewest documents: a random next sentence needs a second one."""
        return 2 if self.kind == "nsp" else 1

    @pydantic.model_validator(mode="before")
    @classmethod
    def _defaults_of_kind(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("kind") in ("full_sentences", "doc_sentences"):
            return {"dupe_factor": 1, "short_seq_prob": 0.0, **values}
        return values

    @pydantic.model_validator(mode="after")
    def _draws_fit_kind(self) -> Self:
        if not self.has_pairs and self.short_seq_prob:
            raise ValueError(
                f"short_seq_prob: found {self.short_seq_prob:g}, allowed: 0 with kind {self.kind}, "
                "whose examples are as long as possible"
            )
        if self.kind == "doc_sentences" and self.dupe_factor > 1:
            raise ValueError(
                f"dupe_factor: found {self.dupe_factor}, allowed: 1 with kind doc_sentences, "
                "which is not random: each pass would make the same examples"
            )
        return self


class MixtureSection(Section):
    """Share of each language."""

    smoothing: Annotated[float, pydantic.Field(ge=0.0, le=1.0)] = 0.7
    """Exponent S of each language's share: 1 keeps the corpus as it is, 0 makes all languages
    equal."""
