"""Settings of DistilBERT. Needs no JAX."""

from typing import ClassVar, Literal

import pydantic

from bert_jax.model.architecture import Activation, PostNormArchitecture
from bert_jax.model.section import ArchitectureChanges, ModelSection


class DistilBertArchitecture(PostNormArchitecture):
    """Sizes and settings that determine the parameters and the function of DistilBERT."""

    kind = "distilbert"
    dropout_settings = (
        *PostNormArchitecture.dropout_settings,
        *("seq_classif_dropout", "qa_dropout"),
    )

    type_vocab_size: int = pydantic.Field(default=0, ge=0, le=0)
    """DistilBERT has no token types."""
    hidden_act: Activation = "gelu_erf"
    """Activation of the FFN and the MLM head."""
    layer_norm_eps: float = pydantic.Field(default=1e-12, ge=1e-12, le=1e-12)
    """Constant that is added to the variance in LayerNorm. It is always 1e-12."""
    seq_classif_dropout: float = pydantic.Field(default=0.2, ge=0, lt=1)
    """Dropout rate before the head of sequence classification and of multiple choice."""
    qa_dropout: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Dropout rate before the head of question answering."""


class DistilBertArchitectureChanges(ArchitectureChanges, of=DistilBertArchitecture):
    """Settings of `DistilBertArchitecture`, all optional."""


class DistilBertSection(ModelSection):
    """DistilBERT: sizes from a name, other settings, heads and execution.

    ``model: {kind: distilbert, size: base}``
    """

    architecture_type = DistilBertArchitecture
    named_sizes: ClassVar = {
        "base": (6, 768, 12, 3072),
    }

    kind: Literal["distilbert"] = "distilbert"
    """The encoder: `distilbert`."""
    size: Literal["base"] | None = None
    """The released size: 6 layers × hidden size 768 × 12 heads × FFN 3,072."""
    architecture: DistilBertArchitectureChanges = DistilBertArchitectureChanges()
