"""Settings of ModernBERT. Needs no JAX."""

from typing import ClassVar, Literal, Self

import pydantic

from bert_jax.errors import SettingError
from bert_jax.model.architecture import Activation, EncoderArchitecture
from bert_jax.model.section import ArchitectureChanges, ModelSection

Pooling = Literal["cls", "mean"]


class ModernBertArchitecture(EncoderArchitecture):
    """Sizes and settings that determine the parameters and the function of ModernBERT.

    The defaults are the settings of ModernBERT-base (arXiv 2412.13663, table 4).
    """

    kind = "modernbert"
    attention_dropout_setting = "attention_dropout"
    rotary_setting = "global_theta"

    vocab_size: int = pydantic.Field(ge=1, le=1 << 24)
    """Number of rows of the embedding table, at least the number of pieces of the tokenizer."""
    hidden_size: int = pydantic.Field(ge=1, le=1 << 16)
    """Width of hidden states."""
    num_hidden_layers: int = pydantic.Field(ge=1, le=1000)
    """Number of layers of the encoder."""
    num_attention_heads: int = pydantic.Field(ge=1, le=1 << 10)
    """Number of attention heads per layer. It must divide `hidden_size`."""
    intermediate_size: int = pydantic.Field(ge=1, le=1 << 18)
    """Width of the gate, and of the values that it multiplies (GeGLU)."""
    max_position_embeddings: int = pydantic.Field(default=8192, ge=1, le=1 << 20)
    """Maximum length of a row. Rotary positions have no parameters."""
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
    embedding_dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Dropout rate of the embeddings."""
    attention_dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Dropout rate of attention weights, and of the output of attention."""
    mlp_dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Dropout rate inside the FFN."""
    initializer_range: float = pydantic.Field(default=0.02, gt=0)
    """Standard deviation of the truncated normal distribution of initial parameters. For the output
    projections of attention and FFN, it is divided by √(2 · layers)."""
    layer_norm_eps: float = pydantic.Field(default=1e-5, gt=0)
    """Constant that is added to the variance in LayerNorm."""
    pooling: Pooling = "cls"
    """Input of the head of a sequence task: the state of the first token, or the mean state."""

    @pydantic.model_validator(mode="after")
    def _even(self) -> Self:
        for name, found in (("window", self.window), ("hidden_size", self.head_dim)):
            if found % 2:
                what = "number" if name == "window" else "number of columns per head"
                raise SettingError.wrong(
                    "modernbert.odd", getattr(self, name), f"an even {what}", place=name
                )
        return self

    @property
    def output_range(self) -> float:
        """Standard deviation of the initial output projections of attention and FFN."""
        return self.initializer_range / (2 * self.num_hidden_layers) ** 0.5

    def is_global(self, layer: int) -> bool:
        """Returns whether a token attends to all tokens in a layer."""
        return layer % self.global_every == 0

    def with_dropout(self, rate: float) -> Self:
        """Returns the architecture with the same dropout rate everywhere."""
        rates = ("embedding_dropout", "attention_dropout", "mlp_dropout")
        return self.model_copy(update=dict.fromkeys(rates, rate))

    def forward_flops(
        self, *, seq_length: int, read: int | None = None, predictions: int = 0, pooled: int = 0
    ) -> float:
        """Returns the FLOPs of one row's forward pass, see `EncoderArchitecture`.

        In a local layer, a token has scores with `window` + 1 tokens.
        """
        del pooled  # no head of a pair task
        width, inner, last = self.hidden_size, self.intermediate_size, self.num_hidden_layers - 1

        def layer(at: int) -> int:
            queries = seq_length if at < last or read is None else read
            keys = seq_length if self.is_global(at) else min(seq_length, self.window + 1)
            projections = 2 * queries * (2 * width * width + 3 * width * inner)
            keys_and_values = 2 * seq_length * 2 * width * width
            return projections + keys_and_values + 2 * 2 * queries * keys * width

        mlm = 2 * predictions * (width * width + width * self.vocab_size)
        return float(sum(map(layer, range(self.num_hidden_layers))) + mlm)


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
