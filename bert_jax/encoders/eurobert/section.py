"""Settings of EuroBERT. Needs no JAX."""

from typing import ClassVar, Literal, Self

import pydantic

from bert_jax.errors import SettingError
from bert_jax.model.pre_norm_architecture import PreNormArchitecture
from bert_jax.model.section import SIZES, ArchitectureChanges, ModelSection

Pooling = Literal["bos", "mean", "late"]


class EuroBertArchitecture(PreNormArchitecture):
    """Sizes and settings that determine the parameters and the function of EuroBERT.

    The defaults are the settings of the released models (arXiv 2503.05500).
    """

    kind = "eurobert"

    num_key_value_heads: int | None = pydantic.Field(default=None, ge=1, le=1 << 10)
    """Number of heads of keys and values. It must divide `num_attention_heads`, its default."""
    attention_dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Dropout rate of attention weights."""
    rope_theta: float = pydantic.Field(default=250_000.0, gt=0)
    """Base of the rotary frequencies. Before annealing, it was 10,000 for rows of 2,048 tokens."""
    pooling: Pooling = "late"
    """Input of the head of a sequence task. `bos`: the state of the first token. `mean`: the mean
    state. `late`: every state; the logits are then averaged."""

    @pydantic.model_validator(mode="after")
    def _whole_groups(self) -> Self:
        if self.num_attention_heads % self.key_heads:
            allowed = f"a divisor of {self.num_attention_heads} heads"
            place = "num_key_value_heads"
            raise SettingError.wrong("eurobert.key_heads", self.key_heads, allowed, place=place)
        return self

    @property
    def key_heads(self) -> int:
        """Number of heads of keys and values. Each serves as many consecutive heads of queries."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def output_dropout(self) -> float:
        """Dropout rate of the output of attention."""
        return 0.0

    @property
    def task_pooling(self) -> Literal["first", "mean", "late"]:
        """Input of the head of a sequence task."""
        return "first" if self.pooling == "bos" else self.pooling


class EuroBertArchitectureChanges(ArchitectureChanges, of=EuroBertArchitecture):
    """Settings of `EuroBertArchitecture`, all optional."""


class EuroBertSection(ModelSection):
    """EuroBERT: sizes from a name, other settings, heads and execution.

    ``model: {kind: eurobert, size: 210m}``
    """

    architecture_type = EuroBertArchitecture
    size_settings = (*SIZES, "num_key_value_heads")
    # conversion/hf/to_hf.py of github.com/Nicolas-BZRD/EuroBERT, which wrote the released files.
    named_sizes: ClassVar = {
        "210m": (12, 768, 12, 3072, 12),
        "610m": (26, 1152, 18, 4096, 6),
        "2.1b": (32, 2304, 18, 6144, 6),
    }

    kind: Literal["eurobert"] = "eurobert"
    """The encoder: `eurobert`."""
    size: Literal["210m", "610m", "2.1b"] | None = None
    """A released size. Layers × hidden size × heads × FFN: 210m 12 × 768 × 12 × 3,072, 610m 26 ×
    1,152 × 18 × 4,096, 2.1b 32 × 2,304 × 18 × 6,144. The larger two have 6 heads of keys."""
    architecture: EuroBertArchitectureChanges = EuroBertArchitectureChanges()
    """The whole architecture, or changes to `size`, such as the positions. Layers, widths and heads
    must come from one source."""
