"""Sliding-window attention in plain JAX: time and memory grow with length · window.

A row is cut into blocks of half a window. The queries of a block see the keys of the block, of the
block before it and, unless attention is causal, of the block after it.

Shape suffixes: B batch, L length, N blocks, W tokens of a block, T keys of a block, H heads, K head
columns.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.model.dropout import dropout
from bert_jax.model.xla_attention import MASKED, in_parts


def local_attention(
    q_BLHK: Float[Array, "batch length heads columns"],
    k_BLHK: Float[Array, "batch length heads columns"],
    v_BLHK: Float[Array, "batch length heads columns"],
    segment_ids: Int[Array, "batch length"],
    *,
    window: int,
    dropout_rate: float,
    dropout_key: Array | None,
    causal: bool = False,
) -> Float[Array, "batch length heads columns"]:
    """Returns softmax(q·kᵀ/√K)·v over the keys that a query sees.

    A query sees a key of its own segment at most ``window / 2`` tokens away, and if `causal`, no
    later key. The backward pass computes the scores again, because they take three times the memory
    of the states per head.
    """
    length, size = q_BLHK.shape[1], window // 2
    # An export has a symbolic length. JAX can then reshape a multiple of `size`, but not a sum.
    padding = ((0, 0), (0, -(-length // size) * size - length), (0, 0), (0, 0))
    q, k, v = (jnp.pad(each, padding) for each in (q_BLHK, k_BLHK, v_BLHK))
    segments = jnp.pad(segment_ids + 1, padding[:2])  # a segment of its own for the new padding
    key = dropout_key if dropout_rate > 0.0 else None
    core = functools.partial(_attended, key=key, size=size, rate=dropout_rate, causal=causal)
    arrays = (q, k, v, segments)
    if key is not None:  # the parts of a batch would have the same random bits
        return jax.checkpoint(core)(*arrays)[:, :length]
    scores = q.shape[0] * q.shape[1] * q.shape[2] * 3 * size
    return in_parts(jax.checkpoint(core), arrays, scores=scores)[:, :length]


def is_short(length: Any, window: int) -> bool:
    """Returns whether all scores of a row are no more than the scores of its blocks.

    An export has a symbolic length, which is not short.
    """
    return isinstance(length, int) and length <= 3 * (window // 2)


def _attended(
    q: Array,
    k: Array,
    v: Array,
    segments: Array,
    *,
    key: Array | None,
    size: int,
    rate: float,
    causal: bool,
) -> Array:
    q_BNHWK = _blocks(q, size).swapaxes(2, 3)
    neighbours = functools.partial(_neighbours, causal=causal)
    k_BNHTK, v_BNHTK = (neighbours(_blocks(x, size)).swapaxes(2, 3) for x in (k, v))
    of_queries = _blocks(segments, size)
    of_keys = neighbours(of_queries)
    distance = jnp.arange(of_keys.shape[2]) - size - jnp.arange(size)[:, None]
    inside = abs(distance) <= size
    if causal:
        inside &= distance <= 0
    visible = inside & (of_queries[..., None] == of_keys[..., None, :])
    scores = jnp.einsum("bnhwk,bnhtk->bnhwt", q_BNHWK, k_BNHTK, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[:, :, None], scores * q.shape[-1] ** -0.5, MASKED)
    weights = dropout(jax.nn.softmax(scores, axis=-1).astype(v.dtype), rate, key)
    out = jnp.einsum("bnhwt,bnhtk->bnhwk", weights, v_BNHTK)
    return out.swapaxes(2, 3).reshape(q.shape)


def _blocks(x: Array, size: int) -> Array:
    """Returns `x` [B, L, …] as blocks [B, N, W, …]."""
    return x.reshape(x.shape[0], -1, size, *x.shape[2:])


def _neighbours(x: Array, *, causal: bool) -> Array:
    """Returns every block with its neighbours, [B, N, T, …]; zeros outside the row.

    The neighbours are the block before it and, unless `causal`, the block after it.
    """
    around = jnp.pad(x, ((0, 0), (1, 1), *((0, 0),) * (x.ndim - 2)))
    after = [] if causal else [around[:, 2:]]
    return jnp.concatenate([around[:, :-2], x, *after], axis=2)
