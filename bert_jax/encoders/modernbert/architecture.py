"""ModernBERT's sizes and settings."""

from typing import Literal, Self

import pydantic

from bert_jax.errors import SettingError
from bert_jax.model.config import Activation, EncoderArchitecture

Pooling = Literal["cls", "mean"]


class ModernBertArchitecture(EncoderArchitecture):
    """Sizes and settings that determine the parameters and the function they compute.

    The defaults are those of ModernBERT-base (arXiv 2412.13663, table 4).
    """

    vocab_size: int = pydantic.Field(ge=1, le=1 << 24)
    """Rows of the embedding table: one for each piece of the tokenizer, or more."""
    hidden_size: int = pydantic.Field(ge=1, le=1 << 16)
    """Columns of every hidden state."""
    num_hidden_layers: int = pydantic.Field(ge=1, le=1000)
    """Layers of the encoder."""
    num_attention_heads: int = pydantic.Field(ge=1, le=1 << 10)
    """Heads of each layer. The number of heads divides `hidden_size`."""
    intermediate_size: int = pydantic.Field(ge=1, le=1 << 18)
    """Columns of each of the FFN's two inner projections."""
    max_position_embeddings: int = pydantic.Field(default=8192, ge=1, le=1 << 20)
    """Tokens of the longest row. Rotary positions have no parameters."""
    hidden_act: Activation = "gelu_erf"
    """Activation of the FFN's gate."""
    head_act: Activation = "gelu_erf"
    """Activation of the prediction head."""
    global_every: int = pydantic.Field(default=3, ge=1)
    """Every n-th layer, from the first, attends to all tokens. The other layers attend to
    `window` tokens."""
    window: int = pydantic.Field(default=128, ge=2)
    """Tokens that a local layer attends to: half of them before a token, half after it."""
    global_theta: float = pydantic.Field(default=160_000.0, gt=0)
    """Base of the rotary frequencies in global layers."""
    local_theta: float = pydantic.Field(default=10_000.0, gt=0)
    """Base of the rotary frequencies in local layers."""
    embedding_dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Dropout rate of the embeddings."""
    attention_dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Dropout rate of attention weights, and of attention's output."""
    mlp_dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Dropout rate inside the FFN."""
    initializer_range: float = pydantic.Field(default=0.02, gt=0)
    """Standard deviation of the truncated normal that parameters start from. The last product of
    each half of a layer starts from this divided by √(2 · layers)."""
    layer_norm_eps: float = pydantic.Field(default=1e-5, gt=0)
    """Added to the variance in LayerNorm."""
    pooling: Pooling = "cls"
    """Vector of a row for a task: the first token's state, or the mean of all tokens' states."""

    @pydantic.model_validator(mode="after")
    def _even(self) -> Self:
        for name, found in (("window", self.window), ("hidden_size", self.head_dim)):
            if found % 2:
                raise SettingError(
                    "modernbert.odd",
                    "found {found}, allowed: an even {what}",
                    place=name,
                    found=getattr(self, name),
                    what="number" if name == "window" else "number of columns per head",
                )
        return self

    @property
    def output_range(self) -> float:
        """Standard deviation of the initial kernels that end each half of a layer."""
        return self.initializer_range / (2 * self.num_hidden_layers) ** 0.5

    def is_global(self, layer: int) -> bool:
        """Whether a layer attends to all tokens."""
        return layer % self.global_every == 0
