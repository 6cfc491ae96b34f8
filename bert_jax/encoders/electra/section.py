"""Settings of ELECTRA. Needs no JAX."""

from typing import ClassVar, Literal

from bert_jax.model.architecture import Activation, FactorisedArchitecture
from bert_jax.model.section import ArchitectureChanges, ModelSection


class ElectraArchitecture(FactorisedArchitecture):
    """Sizes and settings that determine the parameters and the function of ELECTRA."""

    kind = "electra"
    fixed_head_act = "gelu_erf"

    hidden_act: Activation = "gelu_erf"
    """Activation of the FFN."""


class ElectraArchitectureChanges(ArchitectureChanges, of=ElectraArchitecture):
    """Settings of `ElectraArchitecture`, all optional."""


class ElectraSection(ModelSection):
    """ELECTRA: sizes from a name, other settings, heads and execution.

    ``model: {kind: electra, size: small}``
    """

    architecture_type = ElectraArchitecture
    # arXiv 2003.10555, table 6.
    named_sizes: ClassVar = {
        "small": (12, 256, 4, 1024, 128),
        "base": (12, 768, 12, 3072),
        "large": (24, 1024, 16, 4096),
    }

    kind: Literal["electra"] = "electra"
    """The encoder: `electra`."""
    size: Literal["small", "base", "large"] | None = None
    """A released size. Layers × hidden size × heads: small 12 × 256 × 4 with embeddings of 128
    columns, base 12 × 768 × 12, large 24 × 1,024 × 16."""
    architecture: ElectraArchitectureChanges = ElectraArchitectureChanges()
