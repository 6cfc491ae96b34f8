"""Settings of ModernBERT. Needs no JAX."""

from typing import ClassVar, Literal, Self

import pydantic

from bert_jax.errors import SettingError
from bert_jax.model.architecture import Activation
from bert_jax.model.pre_norm_architecture import PreNormArchitecture
from bert_jax.model.section import ArchitectureChanges, ModelSection

Pooling = Literal["cls", "mean"]


class ModernBertArchitecture(PreNormArchitecture):
    """Sizes and settings that determine the parameters and the function of ModernBERT.

    The defaults are the settings of ModernBERT-base (arXiv 2412.13663, table 4).
    """

    kind = "modernbert"
    rotary_setting = "global_theta"
    subtracts_mean = True
    norms_embeddings = True

    hidden_act: Activation = "gelu_erf"
    """Activation of the FFN's gate."""
    head_act: Activation = "gelu_erf"
    """Activation of the prediction head."""
    global_every: int = pydantic.Field(default=3, ge=1)
    """Layers 0, n, 2n, … are global: a token attends to all tokens. The other layers are local: a
    token attends to a window of `window` tokens."""
    window: int = pydantic.Field(default=128, ge=2)
    """Window of local layers: half of it is before the token, half after it."""
    global_theta: float = pydantic.Field(default=160_000.0, gt=0)
    """Base of the rotary frequencies in global layers."""
    local_theta: float = pydantic.Field(default=10_000.0, gt=0)
    """Base of the rotary frequencies in local layers."""
    initializer_range: float = pydantic.Field(default=0.02, gt=0)
    """Standard deviation of the truncated normal distribution of initial parameters. For the output
    projections of attention and FFN, it is divided by √(2 · layers)."""
    pooling: Pooling = "cls"
    """Input of the head of a sequence task: the state of the first token, or the mean state."""

    @pydantic.model_validator(mode="after")
    def _even(self) -> Self:
        if self.window % 2:
            raise SettingError.wrong(
                "modernbert.odd", self.window, "an even number", place="window"
            )
        return self

    @property
    def output_range(self) -> float:
        """Standard deviation of the initial output projections of attention and FFN."""
        return self.initializer_range / (2 * self.num_hidden_layers) ** 0.5

    @property
    def task_pooling(self) -> Literal["first", "mean"]:
        """Input of the head of a sequence task."""
        return "first" if self.pooling == "cls" else self.pooling

    @property
    def task_range(self) -> float:
        """Standard deviation of the initial task head."""
        return self.hidden_size**-0.5

    @property
    def period(self) -> int:
        """Number of layers after which the kinds of layers repeat."""
        return self.global_every

    def window_of(self, layer: int) -> int | None:
        """Returns the number of tokens in a layer's attention window. None: all tokens."""
        return self.window if layer % self.global_every else None

    def theta_of(self, layer: int) -> float:
        """Returns the base of a layer's rotary frequencies."""
        return self.local_theta if layer % self.global_every else self.global_theta

    @property
    def head_width(self) -> int:
        """Width of the prediction head before the decoder."""
        return self.hidden_size


class ModernBertArchitectureChanges(ArchitectureChanges, of=ModernBertArchitecture):
    """Settings of `ModernBertArchitecture`, all optional."""


class ModernBertSection(ModelSection):
    """ModernBERT: sizes from a name, other settings, heads and execution.

    ``model: {kind: modernbert, size: base, architecture: {window: 256}}``
    """

    architecture_type = ModernBertArchitecture
    # arXiv 2412.13663, table 4.
    named_sizes: ClassVar = {
        "base": (22, 768, 12, 1152),
        "large": (28, 1024, 16, 2624),
    }

    kind: Literal["modernbert"] = "modernbert"
    """The encoder: `modernbert`."""
    size: Literal["base", "large"] | None = None
    """A released size. Layers × hidden size × heads × FFN: base 22 × 768 × 12 × 1,152, large 28 ×
    1,024 × 16 × 2,624."""
    architecture: ModernBertArchitectureChanges = ModernBertArchitectureChanges()
    """The whole architecture, or changes to `size`, such as the window and the positions. Layers,
    widths and heads must come from one source."""
