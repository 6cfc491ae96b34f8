"""Settings of DistilBERT. Needs no JAX."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

import pydantic

from bert_jax.model.architecture import Activation, PostNormArchitecture
from bert_jax.model.section import HeadsSection, ModelSection, changes_of
from bert_jax.section import Section


class DistilBertArchitecture(PostNormArchitecture):
    """Sizes and settings that determine the parameters and the function of DistilBERT."""

    kind = "distilbert"

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

    def with_dropout(self, rate: float) -> PostNormArchitecture:
        """Returns the architecture with the same dropout rate everywhere."""
        heads = {"seq_classif_dropout": rate, "qa_dropout": rate}
        return super().with_dropout(rate).model_copy(update=heads)


if TYPE_CHECKING:

    class DistilBertArchitectureChanges(Section):
        """Settings of `DistilBertArchitecture`, all optional."""

else:
    DistilBertArchitectureChanges = changes_of(DistilBertArchitecture)


class DistilBertSection(ModelSection):
    """DistilBERT: sizes from a name, other settings, heads and execution.

    ``model: {kind: distilbert, size: base}``
    """

    architecture_type = DistilBertArchitecture
    named_sizes: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "base": {
            "num_hidden_layers": 6,
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
        },
    }

    kind: Literal["distilbert"] = "distilbert"
    """The encoder: `distilbert`."""
    size: Literal["base"] | None = None
    """The released size: 6 layers × hidden size 768 × 12 heads × FFN 3,072."""
    architecture: DistilBertArchitectureChanges = DistilBertArchitectureChanges()
    """The whole architecture, or changes to `size`, such as dropout and positions. Layers, widths
    and heads must come from one source."""
    heads: HeadsSection = HeadsSection(pooler=False, next_sentence=False)
    """The heads of the model. In pretraining, the objective determines them."""
