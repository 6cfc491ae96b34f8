"""Attention in plain JAX: the reference that every other implementation is held to.

Its gradient is written out. What the backward pass needs of a probability, and whether dropout kept
it, is one number: negative where it was dropped, else scaled up. So no mask is made twice, scores
are not kept, and of the arrays of size length × length only they are float32.
"""

import functools
from typing import Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.model.dropout import TileFactors, kept_elements, tile_factors
from bert_jax.parallel.rules import on_one_cpu

# Finite, so that a row without any visible key gives a uniform average and not a NaN.
MASKED: Final = -1e9

# On a CPU: as many parts as most machines have cores, each large enough to be worth its calls.
_MOST_PARTS: Final = 8
_LEAST_SCORES: Final = 2**17


def xla_attention(
    q_BLHK: Float[Array, "batch length heads head_dim"],
    k_BLHK: Float[Array, "batch length heads head_dim"],
    v_BLHK: Float[Array, "batch length heads head_dim"],
    segment_ids: Int[Array, "batch length"],
    *,
    dropout_rate: float,
    dropout_key: Array | None,
) -> Float[Array, "batch length heads head_dim"]:
    """Bidirectional attention.

    softmax(q·kᵀ/√K) in float32 over the keys of the query's own segment, dropout on the
    probabilities, times v (google-research/bert `modeling.py`, `attention_layer`).

    `segment_ids`: 1, 2, … for the packed example a token belongs to, 0 for padding; a token attends
    to its own segment only. `dropout_key`: None in evaluation.
    """
    batch, length, heads, _ = q_BLHK.shape
    factors = None
    if dropout_key is not None and dropout_rate > 0.0:
        factors = tile_factors((batch, heads, length, length), dropout_key, dropout_rate)
    core = functools.partial(_attended, rate=dropout_rate)
    arrays = (q_BLHK, k_BLHK, v_BLHK, segment_ids, factors)
    parts = _parts(q_BLHK)
    if parts == 1:
        return core(*arrays)
    operands, structure = jax.tree.flatten(arrays)
    each_part = zip(*(jnp.split(operand, parts) for operand in operands), strict=True)
    return jnp.concatenate([core(*jax.tree.unflatten(structure, part)) for part in each_part])


def _attended(
    q_BLHK: Array,
    k_BLHK: Array,
    v_BLHK: Array,
    segment_ids: Array,
    factors: TileFactors | None,
    *,
    rate: float,
) -> Array:
    # Heads first: the product of a head is then one of whole matrices, which CPUs are faster at.
    # TPU programs are the same either way.
    q, k, v = (each.swapaxes(1, 2) for each in (q_BLHK, k_BLHK, v_BLHK))
    out: Array = _attend(q, k, v, segment_ids, factors, 0.0 if factors is None else rate)
    return out.swapaxes(1, 2)


def _parts(q_BLHK: Array) -> int:
    """Returns how many parts of a batch are computed apart from each other.

    XLA's CPU client computes a product of many small matrices on one core, and what does not depend
    on one another side by side.
    """
    if not on_one_cpu():
        return 1
    batch, length, heads, _ = q_BLHK.shape
    most = min(_MOST_PARTS, batch * heads * length**2 // _LEAST_SCORES)
    return next((parts for parts in range(most, 1, -1) if batch % parts == 0), 1)


def masked_scores(q_BHLK: Array, k_BHLK: Array, visible: Array) -> Array:
    """Returns q·kᵀ/√K where a key is visible, [B, H, L, M] float32."""
    scores_BHLM = jnp.einsum("bhlk,bhmk->bhlm", q_BHLK, k_BHLK, preferred_element_type=jnp.float32)
    return jnp.where(visible, scores_BHLM * _scale(q_BHLK), MASKED)


def same_segment(segment_ids: Array) -> Array:
    """Returns which keys are of a query's segment, bool [B, 1, L, M]."""
    return segment_ids[:, None, :, None] == segment_ids[:, None, None, :]


def _scale(q_BHLK: Array) -> float:
    return q_BHLK.shape[-1] ** -0.5


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(
    q: Array, k: Array, v: Array, segment_ids: Array, factors: TileFactors | None, rate: float
) -> Array:
    return _forward(q, k, v, segment_ids, factors, rate)[0]


def _forward(
    q: Array, k: Array, v: Array, segment_ids: Array, factors: TileFactors | None, rate: float
) -> tuple[Array, tuple[Array, ...]]:
    weights = jax.nn.softmax(masked_scores(q, k, same_segment(segment_ids)), axis=-1)
    if factors is not None:
        weights = jnp.where(kept_elements(factors), weights * (1 / (1 - rate)), -weights)
    signed = weights.astype(v.dtype)
    out = jnp.einsum("bhlm,bhmk->bhlk", jnp.maximum(signed, 0), v)
    return out, (q, k, v, signed, out)


def _backward(
    rate: float, saved: tuple[Array, ...], gradient: Array
) -> tuple[Array, Array, Array, None, None]:
    q, k, v, signed, out = saved
    # Σ weights · their gradients, for each query and head: what softmax takes off.
    taken_off = (gradient.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)
    kept = jnp.maximum(signed, 0)
    slopes = jnp.einsum("bhlk,bhmk->bhlm", gradient, v, preferred_element_type=jnp.float32)
    weights = jnp.maximum(signed.astype(jnp.float32) * (1 - rate), -signed)
    slopes = kept * slopes - weights * taken_off[..., None]
    slopes = (slopes * _scale(q)).astype(v.dtype)
    return (
        jnp.einsum("bhlm,bhmk->bhlk", slopes, k),
        jnp.einsum("bhlm,bhlk->bhmk", slopes, q),
        jnp.einsum("bhlm,bhlk->bhmk", kept, gradient),
        None,
        None,
    )


_attend.defvjp(_forward, _backward)
