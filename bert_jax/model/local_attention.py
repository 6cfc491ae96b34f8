"""Sliding-window attention in blocks: time and memory grow with length · window.

A row is cut into blocks. The queries of a block see the keys of the block, of half a window before
it and, unless attention is causal, of half a window after it. In plain JAX, a block is half a
window. cuDNN needs larger blocks.

Shape suffixes: B batch, L length, N blocks, W tokens of a block, T keys of a block, H heads, K head
columns.
"""

import functools
from typing import Any, Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.kernels.precision import precision_of
from bert_jax.model.cudnn_attention import cudnn_attention
from bert_jax.model.dropout import dropout
from bert_jax.model.xla_attention import MASKED, in_parts

# Queries of a block in cuDNN's attention. With 64, a step of attention takes twice as long.
_CUDNN_BLOCK: Final = 256


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
    q, k, v, segments = _padded(q_BLHK, k_BLHK, v_BLHK, segment_ids, size=size)
    key = dropout_key if dropout_rate > 0.0 else None
    core = functools.partial(_attended, key=key, size=size, rate=dropout_rate, causal=causal)
    arrays = (q, k, v, segments)
    if key is not None:  # the parts of a batch would have the same random bits
        return jax.checkpoint(core)(*arrays)[:, :length]
    scores = q.shape[0] * q.shape[1] * q.shape[2] * 3 * size
    return in_parts(jax.checkpoint(core), arrays, scores=scores)[:, :length]


def cudnn_local_attention(
    q_BLHK: Float[Array, "batch length heads columns"],
    k_BLHK: Float[Array, "batch length heads columns"],
    v_BLHK: Float[Array, "batch length heads columns"],
    segment_ids: Int[Array, "batch length"],
    *,
    window: int,
    causal: bool = False,
) -> Float[Array, "batch length heads columns"]:
    """Returns the result of `local_attention` without dropout, computed by cuDNN."""
    length, half = q_BLHK.shape[1], window // 2
    size = max(_CUDNN_BLOCK // half, 1) * half
    q, k, v, segments = _padded(q_BLHK, k_BLHK, v_BLHK, segment_ids, size=size)
    seen = functools.partial(_seen, half=half, causal=causal)
    of_queries = _blocks(segments, size)
    visible = _visible(of_queries, seen(of_queries), half=half, causal=causal)
    blocks = _blocks(q, size), seen(_blocks(k, size)), seen(_blocks(v, size)), visible[:, :, None]
    out = cudnn_attention(*(each.reshape(-1, *each.shape[2:]) for each in blocks))
    return out.reshape(q.shape)[:, :length]


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
    seen = functools.partial(_seen, half=size, causal=causal)
    k_BNHTK, v_BNHTK = (seen(_blocks(x, size)).swapaxes(2, 3) for x in (k, v))
    of_queries = _blocks(segments, size)
    visible = _visible(of_queries, seen(of_queries), half=size, causal=causal)
    product = functools.partial(jnp.einsum, precision=precision_of(q.dtype))
    scores = product("bnhwk,bnhtk->bnhwt", q_BNHWK, k_BNHTK, preferred_element_type=jnp.float32)
    scores = jnp.where(visible[:, :, None], scores * q.shape[-1] ** -0.5, MASKED)
    weights = dropout(jax.nn.softmax(scores, axis=-1).astype(v.dtype), rate, key)
    out = product("bnhwt,bnhtk->bnhwk", weights, v_BNHTK)
    return out.swapaxes(2, 3).reshape(q.shape)


def _padded(
    q: Array, k: Array, v: Array, segment_ids: Array, *, size: int
) -> tuple[Array, Array, Array, Array]:
    """Returns the arrays with rows padded to a multiple of `size` tokens."""
    length = q.shape[1]
    # An export has a symbolic length. JAX can then reshape a multiple of `size`, but not a sum.
    padding = ((0, 0), (0, -(-length // size) * size - length), (0, 0), (0, 0))
    # A segment of its own for the new padding: 0. Negative segments stay negative.
    segments = jnp.pad(jnp.where(segment_ids < 0, segment_ids, segment_ids + 1), padding[:2])
    return jnp.pad(q, padding), jnp.pad(k, padding), jnp.pad(v, padding), segments


def _visible(of_queries: Array, of_keys: Array, *, half: int, causal: bool) -> Array:
    """Returns whether a query sees a key: segments [B, N, W] and [B, N, T] → bool [B, N, W, T]."""
    distance = jnp.arange(of_keys.shape[2]) - half - jnp.arange(of_queries.shape[2])[:, None]
    inside = abs(distance) <= half
    if causal:
        inside &= distance <= 0
    of_queries = jnp.where(of_queries < 0, 1 - of_queries, of_queries)  # see `_padded`
    return inside & (of_queries[..., None] == of_keys[..., None, :])


def _blocks(x: Array, size: int) -> Array:
    """Returns `x` [B, L, …] as blocks [B, N, W, …]."""
    return x.reshape(x.shape[0], -1, size, *x.shape[2:])


def _seen(x: Array, *, half: int, causal: bool) -> Array:
    """Returns every block with the tokens around it, [B, N, T, …]; zeros outside the row.

    They are `half` a window before the block and, unless `causal`, half a window after it.
    """
    around = jnp.pad(x, ((0, 0), (1, 1), *((0, 0),) * (x.ndim - 2)))
    after = [] if causal else [around[:, 2:, :half]]
    return jnp.concatenate([around[:, :-2, -half:], x, *after], axis=2)
