"""The sizes of an encoder. Needs no JAX."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import pydantic

from bert_jax.errors import SettingError
from bert_jax.section import Section

Activation = Literal["gelu_tanh", "gelu_erf", "relu", "silu"]
PositionEmbedding = Literal["learned", "sinusoidal", "none"]
Sublayer = Literal["attention", "ffn"]
"""A part of a layer, with the LayerNorm that follows it in post-LayerNorm layers."""

VOCAB_MULTIPLE: Final = 128

TRAINING: Final = 3
"""FLOPs of a train step in units of a forward pass: one forward, two backward."""


class EncoderArchitecture(Section):
    """Sizes and settings that determine the parameters and the function of an encoder.

    The class of each encoder adds its own settings, limits and defaults.
    """

    kind: ClassVar[str]
    """Name of the encoder, as in `model.kind`."""
    pooled_heads: ClassVar[frozenset[str]] = frozenset()
    """Tasks whose head reads the pooler. The next-sentence head always reads it."""
    attention_dropout_setting: ClassVar[str] = "attention_probs_dropout_prob"
    """The setting with the dropout rate of attention weights."""
    dropout_settings: ClassVar[tuple[str, ...]]
    """The settings with dropout rates of the encoder."""
    relative_scores: ClassVar[bool] = False
    """Whether attention scores have terms beside the product of query and key."""
    rotary_setting: ClassVar[str | None] = None
    """The setting that a phase's `rotary_theta` changes. None without rotary positions."""
    embedding_width_setting: ClassVar[str | None] = None
    """The setting with the width of embeddings. None if it is the width of the layers."""
    generator_ratios: ClassVar[tuple[float, float]] = (1.0, 0.5)
    """Width and depth of a generator of this kind in ELECTRA's objective, relative to the model."""

    # The upper bounds reject mistyped or hostile sizes. They are far larger than any BERT.
    vocab_size: int = pydantic.Field(ge=1, le=1 << 24)
    """Number of rows of the embedding table, at least the number of pieces of the tokenizer. The
    softmax of the MLM head includes all rows."""
    hidden_size: int = pydantic.Field(ge=1, le=1 << 16)
    """Width of hidden states."""
    num_hidden_layers: int = pydantic.Field(ge=1, le=1000)
    """Number of layers of the encoder."""
    num_attention_heads: int = pydantic.Field(ge=1, le=1 << 10)
    """Number of attention heads per layer. It must divide `hidden_size`."""

    if TYPE_CHECKING:  # limits and defaults differ between encoders
        intermediate_size: int
        max_position_embeddings: int
        hidden_act: Activation
        initializer_range: float
        layer_norm_eps: float

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.hidden_size // self.num_attention_heads

    @property
    def key_heads(self) -> int:
        """Number of heads of keys and values. Each serves as many consecutive heads of queries."""
        return self.num_attention_heads

    @property
    def embedding_width(self) -> int:
        """Width of the embedding table, which the MLM head uses as its decoder."""
        return self.hidden_size

    @property
    def embedding_tables(self) -> Mapping[str, str]:
        """Paths of the embedding tables, which another network may share, by name."""
        return {"word": "encoder/word"}

    @property
    def sharing(self) -> tuple[int, ...]:
        """Number of consecutive layers in each group of layers that share parameters."""
        return (1,) * self.num_hidden_layers

    def sharing_of(self, sublayer: Sublayer) -> tuple[int, ...]:
        """Returns the number of layers that use each entry of a sublayer's stacked parameters.

        It is `sharing`, or 1 for every layer if groups do not share this sublayer.
        """
        del sublayer
        return self.sharing

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the table with padding to a multiple of 128, for matrix units and sharding."""
        return -(-self.vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    def with_changes(self, changes: Mapping[str, Any]) -> EncoderArchitecture:
        """Returns the architecture with some settings changed."""
        return type(self).model_validate({**self.model_dump(), **changes})

    def with_dropout(self, rate: float) -> EncoderArchitecture:
        """Returns the architecture with the same dropout rate everywhere."""
        return self.model_copy(update=dict.fromkeys(self.dropout_settings, rate))

    @abc.abstractmethod
    def forward_flops(
        self, *, seq_length: int, read: int | None = None, predictions: int = 0, pooled: int = 0
    ) -> float:
        """Returns the FLOPs of one row's forward pass through encoder and pretraining heads.

        A product of [m, k] with [k, n] has 2·m·k·n FLOPs. Lookups, softmax, LayerNorm and
        activations are not included, as in PaLM's definition of MFU (arXiv 2204.02311, appendix B).

        Args:
            seq_length: tokens of the row, padding included.
            read: number of tokens whose states the heads read. Default: all. For other tokens, the
                last layer computes only keys and values.
            predictions: number of masked positions.
            pooled: number of tokens that the head of a pair task reads.
        """

    @pydantic.model_validator(mode="after")
    def _whole_heads(self) -> EncoderArchitecture:
        if self.hidden_size % self.num_attention_heads:
            heads, allowed = (
                self.num_attention_heads,
                f"a divisor of hidden_size {self.hidden_size}",
            )
            raise SettingError.wrong("model.heads", heads, allowed, place="num_attention_heads")
        return self


class PostNormArchitecture(EncoderArchitecture):
    """The architecture of the encoders that share BERT's post-LayerNorm layers."""

    dropout_settings = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    fixed_head_act: ClassVar[Activation | None] = None
    """Activation of the MLM head. None: the activation of the FFN."""

    intermediate_size: int = pydantic.Field(ge=1, le=1 << 18)
    """Width of the hidden layer of the FFN."""
    max_position_embeddings: int = pydantic.Field(default=512, ge=1, le=1 << 20)
    """Maximum length of a row. Each of its tokens has a position embedding."""
    position_embedding: PositionEmbedding = "learned"
    """`learned`: a table of parameters. `sinusoidal`: fixed sines and cosines (arXiv 1706.03762),
    as in tensor2tensor. `none`: embeddings do not depend on positions."""
    type_vocab_size: int = pydantic.Field(default=2, ge=1, le=1 << 10)
    """Number of token types. With 1, both spans have the same type."""
    hidden_act: Activation = "gelu_tanh"
    """Activation of the FFN and the MLM head. google-research/bert calls `gelu_tanh` "gelu"."""
    hidden_dropout_prob: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Dropout rate of embeddings and of the outputs of attention and FFN."""
    attention_probs_dropout_prob: float = pydantic.Field(default=0.1, ge=0, lt=1)
    """Dropout rate of attention weights."""
    initializer_range: float = pydantic.Field(default=0.02, gt=0)
    """Standard deviation of the truncated normal distribution of initial parameters."""
    layer_norm_eps: float = pydantic.Field(default=1e-12, gt=0)
    """Constant that is added to the variance in LayerNorm."""

    @property
    def embedding_tables(self) -> Mapping[str, str]:
        """Paths of the embedding tables by name, see `EncoderArchitecture`."""
        learned, typed = self.position_embedding == "learned", self.type_vocab_size > 0
        names = ("word", *["position"] * learned, *["type"] * typed)
        return {name: f"encoder/embeddings/{name}" for name in names}

    @property
    def projects_embeddings(self) -> bool:
        """Whether a projection without activation maps embeddings to the width of the layers."""
        return self.embedding_width != self.hidden_size

    @property
    def first_position(self) -> int:
        """Row of the position table for the first token. The rows before it are not used."""
        return 0

    @property
    def head_act(self) -> Activation:
        """Activation of the MLM head."""
        return self.fixed_head_act or self.hidden_act

    def forward_flops(
        self, *, seq_length: int, read: int | None = None, predictions: int = 0, pooled: int = 0
    ) -> float:
        """Returns the FLOPs of one row's forward pass, see `EncoderArchitecture`."""
        width, inner = self.hidden_size, self.intermediate_size

        def layer(queries: int) -> int:
            projections = 2 * (queries * (2 * width * width + 2 * width * inner))
            keys_and_values = 2 * seq_length * 2 * width * width
            return projections + keys_and_values + 2 * 2 * queries * seq_length * width

        narrow = self.embedding_width
        embedding = 2 * seq_length * narrow * width if self.projects_embeddings else 0
        encoder = embedding + (self.num_hidden_layers - 1) * layer(seq_length)
        encoder += layer(seq_length if read is None else read)
        mlm = 2 * predictions * (width * narrow + narrow * self.vocab_size)
        next_sentence = 2 * pooled * (width * width + 2 * width)
        return float(encoder + mlm + next_sentence)


class FactorisedArchitecture(PostNormArchitecture):
    """A post-LayerNorm architecture with an embedding table that may be narrower than its layers.

    A projection without activation widens the embeddings (arXiv 1909.11942, section 3.1).
    """

    embedding_width_setting = "embedding_size"
    generator_ratios = (0.25, 1.0)

    embedding_size: int | None = pydantic.Field(default=None, ge=1, le=1 << 16)
    """Width of the embeddings. Default: `hidden_size`."""

    @property
    def embedding_width(self) -> int:
        """Width of the embedding table, which the MLM head uses as its decoder."""
        return self.embedding_size or self.hidden_size
