"""The sizes of the encoders with pre-norm layers and rotary positions. Needs no JAX."""

from __future__ import annotations

from typing import ClassVar, Literal

import pydantic

from bert_jax.errors import SettingError
from bert_jax.model.architecture import Activation, EncoderArchitecture


class PreNormArchitecture(EncoderArchitecture):
    """The architecture of the encoders that share ModernBERT's layers.

    A layer normalises the input of attention and of the gated FFN. The last layer's output is
    normalised as well. There are no biases.
    """

    attention_dropout_setting = "attention_dropout"
    dropout_settings = ("embedding_dropout", "attention_dropout", "mlp_dropout")
    rotary_setting = "rope_theta"
    subtracts_mean: ClassVar[bool] = False
    """Whether norms are LayerNorm. Otherwise they are RMSNorm (arXiv 1910.07467)."""
    norms_embeddings: ClassVar[bool] = False
    """Whether embeddings are normalised. Attention of the first layer then reads them as is."""

    intermediate_size: int = pydantic.Field(ge=1, le=1 << 18)
    """Width of the FFN's gate, and of the values that it multiplies."""
    max_position_embeddings: int = pydantic.Field(default=8192, ge=1, le=1 << 20)
    """Maximum length of a row. Rotary positions have no parameters."""
    hidden_act: Activation = "silu"
    """Activation of the FFN's gate. With `silu`, the FFN is SwiGLU, otherwise GeGLU or ReGLU."""
    embedding_dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Dropout rate of the embeddings."""
    attention_dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Dropout rate of attention weights, and of the output of attention."""
    mlp_dropout: float = pydantic.Field(default=0.0, ge=0, lt=1)
    """Dropout rate inside the FFN."""
    initializer_range: float = pydantic.Field(default=0.02, gt=0)
    """Standard deviation of the truncated normal distribution of initial parameters."""
    layer_norm_eps: float = pydantic.Field(default=1e-5, gt=0)
    """Constant that is added to the variance, or to the mean square, in a norm."""

    @property
    def output_dropout(self) -> float:
        """Dropout rate of the output of attention."""
        return self.attention_dropout

    @property
    def output_range(self) -> float:
        """Standard deviation of the initial output projections of attention and FFN."""
        return self.initializer_range

    @property
    def period(self) -> int:
        """Number of layers after which the kinds of layers repeat."""
        return 1

    def window_of(self, layer: int) -> int | None:
        """Returns the number of tokens in a layer's attention window. None: all tokens."""
        del layer
        return None

    @property
    def task_pooling(self) -> Literal["first", "mean", "late"]:
        """Input of the head of a sequence task. `late`: every state, and a mean of the logits."""
        return "first"

    @property
    def task_range(self) -> float:
        """Standard deviation of the initial task head."""
        return self.initializer_range

    def theta_of(self, layer: int) -> float:
        """Returns the base of a layer's rotary frequencies."""
        del layer
        return getattr(self, str(self.rotary_setting))

    @pydantic.model_validator(mode="after")
    def _even_heads(self) -> PreNormArchitecture:
        if self.head_dim % 2:
            allowed = "an even number of columns per head"
            raise SettingError.wrong(
                "modernbert.odd", self.hidden_size, allowed, place="hidden_size"
            )
        return self

    def forward_flops(
        self, *, seq_length: int, read: int | None = None, predictions: int = 0, pooled: int = 0
    ) -> float:
        """Returns the FLOPs of one row's forward pass, see `EncoderArchitecture`.

        With a window, a token has scores with one more token than the window has.
        """
        width, inner, last = self.hidden_size, self.intermediate_size, self.num_hidden_layers - 1
        key_width = self.key_heads * self.head_dim

        def layer(at: int) -> int:
            queries = seq_length if at < last or read is None else read
            window = self.window_of(at)
            keys = seq_length if window is None else min(seq_length, window + 1)
            projections = 2 * queries * (2 * width * width + 3 * width * inner)
            keys_and_values = 2 * seq_length * 2 * width * key_width
            return projections + keys_and_values + 2 * 2 * queries * keys * width

        mlm = 2 * predictions * width * (self.vocab_size + self.head_width)
        next_sentence = 2 * pooled * (width * width + 2 * width)
        return float(sum(map(layer, range(self.num_hidden_layers))) + mlm + next_sentence)

    @property
    def head_width(self) -> int:
        """Width of the dense layer before the decoder; 0 without one."""
        return 0
