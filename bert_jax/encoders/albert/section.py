"""Settings of ALBERT. Needs no JAX."""

from collections import Counter
from typing import ClassVar, Literal, Self

import pydantic

from bert_jax.errors import SettingError
from bert_jax.model.architecture import FactorisedArchitecture, Sublayer
from bert_jax.model.section import ArchitectureChanges, ModelSection

Size = Literal["base", "large", "xlarge", "xxlarge"]


class AlbertArchitecture(FactorisedArchitecture):
    """Sizes and settings that determine the parameters and the function of ALBERT.

    The defaults are the settings of version 2 of the released models.
    """

    kind = "albert"
    pooled_heads = frozenset({"sequence_classification", "multiple_choice"})

    embedding_size: int | None = pydantic.Field(default=128, ge=1, le=1 << 16)
    """Width of the embeddings."""
    num_hidden_groups: int = pydantic.Field(default=1, ge=1, le=1000)
    """Number of groups of consecutive layers. The layers of a group share parameters. 1: all layers
    share them, as in the released models."""
    share: Literal["all", "attention", "ffn"] = "all"
    """The parameters that the layers of a group share (arXiv 1909.11942, section 4.5). `attention`:
    attention and its LayerNorm. `ffn`: the FFN and its LayerNorm. `all`: both, as in the released
    models."""
    hidden_dropout_prob: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Dropout rate of embeddings and of the outputs of attention and FFN."""
    attention_probs_dropout_prob: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Dropout rate of attention weights."""
    classifier_dropout_prob: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Dropout rate before the head of a task."""

    @property
    def sharing(self) -> tuple[int, ...]:
        """Number of layers in each group.

        Source: google-research/albert `modeling.py`, `transformer_model`.
        """
        depth, groups = self.num_hidden_layers, self.num_hidden_groups
        sizes = Counter(int(layer / (depth / groups)) for layer in range(depth))
        return tuple(sizes[group] for group in range(groups))

    def sharing_of(self, sublayer: Sublayer) -> tuple[int, ...]:
        """Returns the layers of each entry of a sublayer, see `EncoderArchitecture`."""
        if self.share in ("all", sublayer):
            return self.sharing
        return (1,) * self.num_hidden_layers

    @property
    def projects_embeddings(self) -> bool:
        """True: ALBERT projects embeddings even if `embedding_size` equals `hidden_size`."""
        return True

    @pydantic.model_validator(mode="after")
    def _groups_of_layers(self) -> Self:
        groups, layers = self.num_hidden_groups, self.num_hidden_layers
        if groups > layers:
            raise SettingError.wrong(
                "albert.groups", groups, f"up to {layers} layers", place="num_hidden_groups"
            )
        return self


class AlbertArchitectureChanges(ArchitectureChanges, of=AlbertArchitecture):
    """Settings of `AlbertArchitecture`, all optional."""


class AlbertSection(ModelSection):
    """ALBERT: sizes from a name, other settings, heads and execution.

    ``model: {kind: albert, size: base}``
    """

    architecture_type = AlbertArchitecture
    # The released models, version 2 (arXiv 1909.11942, table 1).
    named_sizes: ClassVar = {
        "base": (12, 768, 12, 3072),
        "large": (24, 1024, 16, 4096),
        "xlarge": (24, 2048, 16, 8192),
        "xxlarge": (12, 4096, 64, 16384),
    }

    kind: Literal["albert"] = "albert"
    """The encoder: `albert`."""
    size: Size | None = None
    """A released size. Layers × hidden size × heads: base 12 × 768 × 12, large 24 × 1,024 × 16,
    xlarge 24 × 2,048 × 16, xxlarge 12 × 4,096 × 64."""
    architecture: AlbertArchitectureChanges = AlbertArchitectureChanges()
