"""Attention in plain JAX: the reference for every other implementation.

Its gradient is written out. One number holds a probability and its dropout: negative if dropped,
otherwise scaled up. So no mask is made twice, scores are not kept, and only scores are float32.
"""

import functools
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.kernels.attention_kernels import centred_keys
from bert_jax.model.dropout import TileFactors, kept_elements, tile_factors
from bert_jax.parallel.rules import on_one_cpu

# Finite: a row without a visible key gives a uniform average and no NaN.
MASKED: Final = -1e9

# On a CPU: as many parts as most machines have cores, of at least this many scores each.
_MOST_PARTS: Final = 8
_LEAST_SCORES: Final = 2**17


def xla_attention(
    q_BQHK: Float[Array, "batch queries heads head_dim"],
    k_BLHK: Float[Array, "batch length heads head_dim"],
    v_BLHK: Float[Array, "batch length heads head_dim"],
    segment_ids: Int[Array, "batch length"],
    *,
    dropout_rate: float,
    dropout_key: Array | None,
    queries_BQ: Int[Array, "batch queries"] | None = None,
) -> Float[Array, "batch queries heads head_dim"]:
    """Bidirectional attention.

    softmax(q·kᵀ/√K) in float32 over the keys of the query's own segment, dropout on the
    probabilities, times v (google-research/bert `modeling.py`, `attention_layer`).

    `segment_ids` number a row's packed examples 1, 2, …; padding is 0. `queries_BQ` are the tokens
    of the queries, None for all in order. `dropout_key` is None in evaluation.
    """
    batch, length, heads, _ = k_BLHK.shape
    of_queries, lines = segment_ids, None
    if queries_BQ is not None:
        of_queries = jnp.take_along_axis(segment_ids, queries_BQ, axis=1)
        lines = queries_BQ[:, None]
    factors = None
    if dropout_key is not None and dropout_rate > 0.0:
        tiles = batch, heads, q_BQHK.shape[1], length
        factors = tile_factors(tiles, dropout_key, dropout_rate, lines=lines)
    core = functools.partial(_attended, rate=dropout_rate)
    arrays = (q_BQHK, k_BLHK, v_BLHK, _Segments(of_queries, segment_ids), factors)
    parts = _parts(q_BQHK, k_BLHK)
    if parts == 1:
        return core(*arrays)
    operands, structure = jax.tree.flatten(arrays)
    each_part = zip(*(jnp.split(operand, parts) for operand in operands), strict=True)
    return jnp.concatenate([core(*jax.tree.unflatten(structure, part)) for part in each_part])


class _Segments(NamedTuple):
    """The packed example of each token, [B, Q] and [B, L]."""

    of_queries: Array
    of_keys: Array


def _attended(
    q_BQHK: Array,
    k_BLHK: Array,
    v_BLHK: Array,
    segments: _Segments,
    factors: TileFactors | None,
    *,
    rate: float,
) -> Array:
    # Heads first: a head's product is then one of whole matrices, which is faster on CPUs. TPU
    # programs are the same either way.
    q, k, v = (each.swapaxes(1, 2) for each in (q_BQHK, k_BLHK, v_BLHK))
    out: Array = _attend(q, k, v, segments, factors, 0.0 if factors is None else rate)
    return out.swapaxes(1, 2)


def _parts(q_BQHK: Array, k_BLHK: Array) -> int:
    """Returns how many parts of a batch are computed separately.

    XLA's CPU client runs a product of many small matrices on one core, and independent products
    side by side.
    """
    if not on_one_cpu():
        return 1
    batch, queries, heads, _ = q_BQHK.shape
    most = min(_MOST_PARTS, batch * heads * queries * k_BLHK.shape[1] // _LEAST_SCORES)
    return next((parts for parts in range(most, 1, -1) if batch % parts == 0), 1)


def masked_scores(q_BHQK: Array, k_BHLK: Array, visible: Array) -> Array:
    """Returns q·kᵀ/√K where a key is visible, [B, H, Q, L] float32."""
    scores_BHQL = jnp.einsum("bhqk,bhlk->bhql", q_BHQK, k_BHLK, preferred_element_type=jnp.float32)
    return jnp.where(visible, scores_BHQL * _scale(q_BHQK), MASKED)


def same_segment(of_queries: Array, of_keys: Array) -> Array:
    """Returns which keys are in a query's segment: [B, Q] and [B, L] → bool [B, 1, Q, L]."""
    return of_queries[:, None, :, None] == of_keys[:, None, None, :]


def _scale(q_BHQK: Array) -> float:
    return q_BHQK.shape[-1] ** -0.5


def _forward(
    q: Array, k: Array, v: Array, segments: _Segments, factors: TileFactors | None, rate: float
) -> tuple[Array, tuple[Array, ...]]:
    weights = jax.nn.softmax(masked_scores(q, k, same_segment(*segments)), axis=-1)
    if factors is not None:
        weights = jnp.where(kept_elements(factors), weights * (1 / (1 - rate)), -weights)
    signed = weights.astype(v.dtype)
    out = jnp.einsum("bhql,bhlk->bhqk", jnp.maximum(signed, 0), v)
    return out, (q, k, v, signed, out)


def _backward(
    rate: float, saved: tuple[Array, ...], gradient: Array
) -> tuple[Array, Array, Array, None, None]:
    q, k, v, signed, out = saved
    # Σ weights · their gradients, for each query and head: softmax subtracts it.
    taken_off = (gradient.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)
    kept = jnp.maximum(signed, 0)
    slopes = jnp.einsum("bhqk,bhlk->bhql", gradient, v, preferred_element_type=jnp.float32)
    weights = jnp.maximum(signed.astype(jnp.float32) * (1 - rate), -signed)
    slopes = kept * slopes - weights * taken_off[..., None]
    slopes = (slopes * _scale(q)).astype(v.dtype)
    return (
        jnp.einsum("bhql,bhlk->bhqk", slopes, centred_keys(k)),
        jnp.einsum("bhql,bhqk->bhlk", slopes, q),
        jnp.einsum("bhql,bhqk->bhlk", kept, gradient),
        None,
        None,
    )


_attend = jax.custom_vjp(lambda *arguments: _forward(*arguments)[0], nondiff_argnums=(5,))
_attend.defvjp(_forward, _backward)
