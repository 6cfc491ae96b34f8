"""Settings of NeoBERT. Needs no JAX."""

from typing import ClassVar, Literal

import pydantic

from bert_jax.model.pre_norm_architecture import PreNormArchitecture
from bert_jax.model.section import ArchitectureChanges, ModelSection


class NeoBertArchitecture(PreNormArchitecture):
    """Sizes and settings that determine the parameters and the function of NeoBERT.

    The defaults are the settings of the released model (arXiv 2502.19587).
    """

    kind = "neobert"

    intermediate_size: int = pydantic.Field(ge=8, le=1 << 18, multiple_of=8)
    """Width of the FFN's gate, and of the values that it multiplies. Hugging Face's file has 3/2 of
    it."""
    max_position_embeddings: int = pydantic.Field(default=4096, ge=1, le=1 << 20)
    """Maximum length of a row. Rotary positions have no parameters."""
    rope_theta: float = pydantic.Field(default=10_000.0, gt=0)
    """Base of the rotary frequencies. The authors' code has no other than 10,000."""


class NeoBertArchitectureChanges(ArchitectureChanges, of=NeoBertArchitecture):
    """Settings of `NeoBertArchitecture`, all optional."""


class NeoBertSection(ModelSection):
    """NeoBERT: sizes from a name, other settings, heads and execution.

    ``model: {kind: neobert, size: 250m}``
    """

    architecture_type = NeoBertArchitecture
    # config.json of chandar-lab/NeoBERT on the Hugging Face Hub.
    named_sizes: ClassVar = {"250m": (28, 768, 12, 2048)}

    kind: Literal["neobert"] = "neobert"
    """The encoder: `neobert`."""
    size: Literal["250m"] | None = None
    """The released size: 28 layers × hidden size 768 × 12 heads × FFN 2,048."""
    architecture: NeoBertArchitectureChanges = NeoBertArchitectureChanges()
    """The whole architecture, or changes to `size`, such as the positions. Layers, widths and heads
    must come from one source."""
