"""Pooling: from the states of a text's tokens to one vector."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.model.layers import gather_positions
from bert_jax.model.text_head import Pool


def position_of(
    pool: Pool, segment_ids: Int[Array, "batch length"]
) -> Int[Array, "batch 1"] | None:
    """Returns the position of the only token that a pooling reads; None for a mean."""
    if pool == "mean":
        return None
    if pool == "cls":
        return jnp.zeros((segment_ids.shape[0], 1), jnp.int32)
    tokens = (segment_ids > 0).sum(axis=1, keepdims=True, dtype=jnp.int32)
    return jnp.maximum(tokens - 1, 0)


def pooled_states(
    x_BLD: Float[Array, "batch length hidden"],
    segment_ids: Int[Array, "batch length"],
    *,
    pool: Pool,
) -> Float[Array, "batch hidden"]:
    """Returns the float32 vector of each text.

    A mean includes special tokens, as in sentence-transformers. The mean of a padding row is 0.
    """
    position_B1 = position_of(pool, segment_ids)
    if position_B1 is not None:
        return gather_positions(x_BLD, position_B1)[:, 0].astype(jnp.float32)
    real_BL1 = (segment_ids > 0).astype(jnp.float32)[..., None]
    counts_B1 = jnp.maximum(real_BL1.sum(axis=1), 1.0)
    return (x_BLD.astype(jnp.float32) * real_BL1).sum(axis=1) / counts_B1


def unit_length(x: Float[Array, "*rows width"]) -> Float[Array, "*rows width"]:
    """Returns vectors of length 1. The vector of a padding row stays 0."""
    squares = jnp.square(x).sum(axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(squares, 1e-24))
