"""Settings of ELECTRA. Needs no JAX."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from bert_jax.model.architecture import Activation, FactorisedArchitecture
from bert_jax.model.section import HeadsSection, ModelSection, changes_of
from bert_jax.section import Section


class ElectraArchitecture(FactorisedArchitecture):
    """Sizes and settings that determine the parameters and the function of ELECTRA."""

    kind = "electra"

    hidden_act: Activation = "gelu_erf"
    """Activation of the FFN."""

    @property
    def head_act(self) -> Activation:
        """Activation of the MLM head."""
        return "gelu_erf"


if TYPE_CHECKING:

    class ElectraArchitectureChanges(Section):
        """Settings of `ElectraArchitecture`, all optional."""

else:
    ElectraArchitectureChanges = changes_of(ElectraArchitecture)


class ElectraSection(ModelSection):
    """ELECTRA: sizes from a name, other settings, heads and execution.

    ``model: {kind: electra, size: small}``
    """

    architecture_type = ElectraArchitecture
    # arXiv 2003.10555, table 6.
    named_sizes: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "small": {
            "num_hidden_layers": 12,
            "hidden_size": 256,
            "num_attention_heads": 4,
            "intermediate_size": 1024,
            "embedding_size": 128,
        },
        "base": {
            "num_hidden_layers": 12,
            "hidden_size": 768,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
        },
        "large": {
            "num_hidden_layers": 24,
            "hidden_size": 1024,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
        },
    }

    kind: Literal["electra"] = "electra"
    """The encoder: `electra`."""
    size: Literal["small", "base", "large"] | None = None
    """A released size. Layers × hidden size × heads: small 12 × 256 × 4 with embeddings of 128
    columns, base 12 × 768 × 12, large 24 × 1,024 × 16."""
    architecture: ElectraArchitectureChanges = ElectraArchitectureChanges()
    """The whole architecture, or changes to `size`, such as dropout and positions. Layers, widths
    and heads must come from one source."""
    heads: HeadsSection = HeadsSection(pooler=False, next_sentence=False, replaced_tokens=True)
    """The heads of the model. In pretraining, the objective determines them."""
