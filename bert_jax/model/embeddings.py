"""Word, position and type embeddings."""

import dataclasses
import math
from typing import Final

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bert_jax.kernels.precision import precision_of
from bert_jax.model.add_norm import embedding_norm
from bert_jax.model.architecture import PostNormArchitecture
from bert_jax.model.dropout import dropout
from bert_jax.model.initial import TruncatedNormal
from bert_jax.model.layers import Dense, LayerNorm, param
from bert_jax.model.section import Dtype, Execution
from bert_jax.model.tied_embedding import looked_up, shares_of
from bert_jax.parallel.sharding_rules import constrain

_LONGEST_WAVE: Final = 10_000.0  # tokens per radian of the slowest sine


def sinusoids(length: int, width: int) -> Float[Array, "length hidden"]:
    """Returns sinusoidal position embeddings, float32: first all sines, then all cosines.

    An odd width ends with a zero. Source: tensor2tensor `common_attention.py`,
    `get_timing_signal_1d`, which MLPerf's Transformer also has.
    """
    waves = width // 2
    decay = math.log(_LONGEST_WAVE) / max(waves - 1, 1)
    places, numbers = (jnp.arange(count, dtype=jnp.float32) for count in (length, waves))
    angles = places[:, None] * jnp.exp(-decay * numbers)
    found = jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=1)
    return jnp.pad(found, ((0, 0), (0, width % 2)))


class Embeddings(nnx.Module):
    """Computes dropout(LayerNorm(word + position + type)) for token ids.

    Sinusoidal positions have no parameters. An encoder may also have no positions, or no types.

    Source: google-research/bert `modeling.py`, `embedding_postprocessor`.
    """

    def __init__(self, *, architecture: PostNormArchitecture, execution: Execution) -> None:
        width = architecture.embedding_width
        normal = TruncatedNormal(architecture.initializer_range)
        # The padding rows after the vocabulary are zero and are never trained.
        pieces = dataclasses.replace(normal, rows=architecture.vocab_size)
        size = architecture.padded_vocab_size, width
        self.word = param(size, ("vocab", "embed"), pieces, read=execution.dtype)
        self.kind = architecture.position_embedding
        self.first_position = architecture.first_position if self.kind == "learned" else 0
        self.positions = self.first_position + architecture.max_position_embeddings, width
        if self.kind == "learned":
            self.position = param(self.positions, ("positions", "embed"), normal)
        self.types = architecture.type_vocab_size
        if self.types:
            self.type = param((self.types, width), ("types", "embed"), normal)
        parts = {"architecture": architecture, "execution": execution}
        self.norm = LayerNorm(width=width, **parts)
        self.projects = architecture.projects_embeddings
        if self.projects:
            size = (width, architecture.hidden_size)
            self.projection = Dense(size, ("embed", "pooled"), **parts)
        self.dtype: Dtype = execution.dtype
        self.gradient_dtype: Dtype = execution.sum_dtype
        self.dropout_rate = architecture.hidden_dropout_prob

    def look_up(self, input_ids: Int[Array, "batch length"]) -> tuple[Array, Array]:
        """Returns the embeddings of tokens, and shares for the decoder, see `tied_embedding`."""
        table_VD = self.word[...]
        shares_SVD = shares_of(table_VD, self.gradient_dtype)
        return looked_up(table_VD, shares_SVD, input_ids, self.dtype)

    def __call__(
        self,
        input_ids: Int[Array, "batch length"],
        token_type_ids: Int[Array, "batch length"],
        position_ids: Int[Array, "batch length"] | None = None,
        *,
        words_BLD: Float[Array, "batch length embedding"] | None = None,
        dropout_key: Array | None,
    ) -> Float[Array, "batch length hidden"]:
        """Returns the input of the first layer.

        Args:
            input_ids: token ids.
            token_type_ids: 0 in the first span, 1 in the second. Ignored if the model has one type.
            position_ids: positions within each packed example. Default: 0 to length − 1.
            words_BLD: word embeddings of `input_ids`. If None, they are looked up.
            dropout_key: threefry key, or None in evaluation.
        """
        x_BLD = self.look_up(input_ids)[0] if words_BLD is None else words_BLD
        if self.kind != "none":
            positions = self.position[...] if self.kind == "learned" else sinusoids(*self.positions)
            if position_ids is None:
                end = self.first_position + input_ids.shape[1]
                x_BLD += positions[self.first_position : end][None]
            else:
                x_BLD += positions[self.first_position + position_ids]
        if self.types == 1:  # every token has this type
            x_BLD += self.type[...][None]
        elif self.types > 1:
            types = self.type[...]
            # A product with a one-hot matrix is cheaper than a gather and its gradient.
            one_hot = jnp.equal(token_type_ids[..., None], jnp.arange(self.types))
            # Flatten the rows to one axis; see `project`.
            rows = one_hot.astype(types.dtype).reshape(-1, self.types)
            precision = precision_of(types.dtype)
            x_BLD += jnp.matmul(rows, types, precision=precision).reshape(x_BLD.shape)
        return self.finished(x_BLD, dropout_key=dropout_key)

    def finished(self, x_BLD: Array, *, dropout_key: Array | None) -> Array:
        """Returns the input of the first layer, from the sum of the embeddings."""
        x_BLD = embedding_norm(x_BLD, norm=self.norm, training=dropout_key is not None)
        x_BLD = constrain(x_BLD, "batch", "length", "hidden")
        x_BLD = dropout(x_BLD, self.dropout_rate, dropout_key)
        return self.projection(x_BLD) if self.projects else x_BLD
