"""Attention in plain JAX, the reference for the fused kernel.

The gradient is hand-written. The forward pass stores each probability and its dropout in one value:
negative if it is dropped, otherwise scaled up. So the backward pass needs neither the mask nor the
scores. Only scores are float32.
"""

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from bert_jax.kernels.attention_kernels import centred_keys
from bert_jax.kernels.precision import precision_of
from bert_jax.model.dropout import TileFactors, kept_elements, tile_factors
from bert_jax.parallel.sharding_rules import on_one_cpu

# Finite, so that a query without a visible key gets a uniform average instead of NaN.
MASKED: Final = -1e9

# On a CPU: maximum number of parts of a batch, and minimum number of scores per part.
_MOST_PARTS: Final = 8
_LEAST_SCORES: Final = 2**17


class ScoreTerms(NamedTuple):
    """Terms beside q·kᵀ in the scores."""

    add_up: Callable[[Array, Array, Array | None], Array]
    """Function of q [B, H, Q, K], k [B, H, L, K] and `queries_BQ`. It returns the sum of the terms,
    float32 [B, H, Q, L], before the scale."""
    number: int
    """Number of terms, q·kᵀ included. The scores are divided by √(K · number)."""


def xla_attention(
    q_BQHK: Float[Array, "batch queries heads head_dim"],
    k_BLHK: Float[Array, "batch length heads head_dim"],
    v_BLHK: Float[Array, "batch length heads head_dim"],
    segment_ids: Int[Array, "batch length"],
    *,
    dropout_rate: float,
    dropout_key: Array | None,
    window: int | None = None,
    causal: bool = False,
    queries_BQ: Int[Array, "batch queries"] | None = None,
    terms: ScoreTerms | None = None,
) -> Float[Array, "batch queries heads head_dim"]:
    """Returns softmax(q·kᵀ/√K)·v with dropout of the probabilities.

    The softmax is in float32, over the keys in the segment of the query. Source:
    google-research/bert `modeling.py`, `attention_layer`.

    `segment_ids` are 1, 2, … for the packed examples of a row, and 0 for padding. A token of
    segment −n attends to segment n, but no token attends to it. `queries_BQ` are the positions of
    the queries; if None, every token is a query. `dropout_key` is None in
    evaluation. With a `window`, which needs every query, a query sees only keys at most
    ``window / 2`` tokens away. If `causal`, a query sees no later key. `terms` are added to the
    scores.
    """
    batch, length, heads, _ = k_BLHK.shape
    factors = None
    if dropout_key is not None and dropout_rate > 0.0:
        tiles = batch, heads, q_BQHK.shape[1], length
        lines = None if queries_BQ is None else queries_BQ[:, None]
        factors = tile_factors(tiles, dropout_key, dropout_rate, lines=lines)
    core = functools.partial(_attended, rate=dropout_rate, window=window, terms=terms)
    tokens = _tokens(segment_ids, causal=causal, queries_BQ=queries_BQ)
    arrays = (q_BQHK, k_BLHK, v_BLHK, tokens, factors, queries_BQ)
    return in_parts(core, arrays, scores=batch * heads * q_BQHK.shape[1] * length)


def visible_keys(
    segment_ids: Int[Array, "batch length"],
    *,
    window: int | None = None,
    causal: bool = False,
    queries_BQ: Int[Array, "batch queries"] | None = None,
) -> Bool[Array, "batch 1 queries length"]:
    """Returns whether a query sees a key. The arguments are as for `xla_attention`."""
    return _tokens(segment_ids, causal=causal, queries_BQ=queries_BQ).visible(window)


class _Tokens(NamedTuple):
    """Segments of queries and keys, and positions of queries if attention is causal."""

    of_queries: Array  # [B, Q]
    of_keys: Array  # [B, L]
    places: Array | None  # [B, Q], positions of queries that do not see later keys

    def visible(self, window: int | None) -> Array:
        """Returns whether a query sees a key, bool [B, 1, Q, L]."""
        found = self.of_queries[:, None, :, None] == self.of_keys[:, None, None, :]
        keys = jnp.arange(self.of_keys.shape[1])
        if window is not None:
            found &= abs(keys[:, None] - keys) <= window // 2
        if self.places is not None:
            found &= self.places[:, None, :, None] >= keys
        return found


def _tokens(segment_ids: Array, *, causal: bool, queries_BQ: Array | None) -> _Tokens:
    of_queries, places = jnp.abs(segment_ids), None
    if queries_BQ is not None:
        of_queries = jnp.take_along_axis(of_queries, queries_BQ, axis=1)
    if causal:
        places = jnp.arange(segment_ids.shape[1])[None] if queries_BQ is None else queries_BQ
        places = jnp.broadcast_to(places, of_queries.shape)
    return _Tokens(of_queries, segment_ids, places)


def _attended(
    q_BQHK: Array,
    k_BLHK: Array,
    v_BLHK: Array,
    tokens: _Tokens,
    factors: TileFactors | None,
    queries_BQ: Array | None,
    *,
    rate: float,
    window: int | None,
    terms: ScoreTerms | None,
) -> Array:
    # With heads first, each head is a product of contiguous matrices, which is faster on CPUs. On
    # TPUs it makes no difference.
    q, k, v = (each.swapaxes(1, 2) for each in (q_BQHK, k_BLHK, v_BLHK))
    sums, number = None, 1
    if terms is not None:
        sums, number = terms.add_up(q, k, queries_BQ), terms.number
    rate = 0.0 if factors is None else rate
    out: Array = _attend(q, k, v, sums, tokens, factors, rate, window, number)
    return out.swapaxes(1, 2)


def in_parts(core: Callable[..., Array], arrays: Any, *, scores: Any) -> Array:
    """Returns ``core(*arrays)``, on one CPU computed for several parts of the batch.

    XLA's CPU client computes a batched product on one core, but independent products in parallel.
    `scores` is the number of scores of the batch, which is symbolic in an export.
    """
    if not on_one_cpu():
        return core(*arrays)
    operands, structure = jax.tree.flatten(arrays)
    batch, most = len(operands[0]), min(_MOST_PARTS, scores // _LEAST_SCORES)
    parts = next((parts for parts in range(most, 1, -1) if batch % parts == 0), 1)
    if parts == 1:
        return core(*arrays)
    each_part = zip(*(jnp.split(operand, parts) for operand in operands), strict=True)
    return jnp.concatenate([core(*jax.tree.unflatten(structure, part)) for part in each_part])


def masked_scores(
    q_BHQK: Array, k_BHLK: Array, visible: Array, sums: Array | None = None, number: int = 1
) -> Array:
    """Returns q·kᵀ/√K, float32 [B, H, Q, L], with `MASKED` for invisible keys.

    For `sums` of terms and their `number`, see `ScoreTerms`.
    """
    scores_BHQL = _product("bhqk,bhlk->bhql", q_BHQK, k_BHLK, preferred_element_type=jnp.float32)
    scores_BHQL = scores_BHQL if sums is None else scores_BHQL + sums
    return jnp.where(visible, scores_BHQL * _scale(q_BHQK, number), MASKED)


class Scores(NamedTuple):
    """The scores that attention computes internally, before the softmax."""

    scores: Array  # float32 [B, H, L, L]: rows are queries; `MASKED` for invisible keys
    visible: Array  # bool [B, 1, L, L]: False if query or key is padding

    @property
    def probabilities(self) -> Float[Array, "batch heads length length"]:
        """The softmax, without dropout. Invisible keys have the probability 0."""
        # A padding query sees no key: replace its uniform average by zeros.
        return jnp.where(self.visible, jax.nn.softmax(self.scores, axis=-1), 0.0)


def attention_scores(
    q_BLHK: Array,
    k_BLHK: Array,
    segment_ids: Array,
    *,
    causal: bool,
    window: int | None = None,
    terms: ScoreTerms | None = None,
) -> Scores:
    """Returns the scores of all queries.

    With a `window`, a query sees only keys at most ``window / 2`` tokens away. If `causal`, it sees
    no later key. `terms` are added to the scores.
    """
    visible = visible_keys(segment_ids, window=window, causal=causal)
    visible &= (segment_ids > 0)[:, None, None, :]
    q, k = q_BLHK.swapaxes(1, 2), k_BLHK.swapaxes(1, 2)
    if terms is None:
        return Scores(masked_scores(q, k, visible), visible)
    sums = terms.add_up(q, k, None)
    return Scores(masked_scores(q, k, visible, sums, terms.number), visible)


def _product(axes: str, a: Array, b: Array, **options: Any) -> Array:
    return jnp.einsum(axes, a, b, precision=precision_of(a.dtype), **options)


def _scale(q_BHQK: Array, number: int) -> float:
    return (q_BHQK.shape[-1] * number) ** -0.5


def _forward(
    q: Array,
    k: Array,
    v: Array,
    sums: Array | None,
    tokens: _Tokens,
    factors: TileFactors | None,
    rate: float,
    window: int | None,
    number: int,
) -> tuple[Array, tuple[Any, ...]]:
    scores = masked_scores(q, k, tokens.visible(window), sums, number)
    weights = jax.nn.softmax(scores, axis=-1)
    if factors is not None:
        weights = jnp.where(kept_elements(factors), weights * (1 / (1 - rate)), -weights)
    signed = weights.astype(v.dtype)
    out = _product("bhql,bhlk->bhqk", jnp.maximum(signed, 0), v)
    return out, (q, k, v, signed, out, None if sums is None else ())


def _backward(
    rate: float, window: int | None, number: int, saved: tuple[Any, ...], gradient: Array
) -> tuple[Array | None, ...]:
    del window
    q, k, v, signed, out, adds = saved
    # Σ weight · gradient for each query and head, a term of the softmax gradient.
    taken_off = (gradient.astype(jnp.float32) * out.astype(jnp.float32)).sum(-1)
    kept = jnp.maximum(signed, 0)
    slopes = _product("bhqk,bhlk->bhql", gradient, v, preferred_element_type=jnp.float32)
    weights = jnp.maximum(signed.astype(jnp.float32) * (1 - rate), -signed)
    slopes = kept * slopes - weights * taken_off[..., None]
    slopes = (slopes * _scale(q, number)).astype(v.dtype)
    return (
        _product("bhql,bhlk->bhqk", slopes, centred_keys(k)),
        _product("bhql,bhqk->bhlk", slopes, q),
        _product("bhql,bhqk->bhlk", kept, gradient),
        None if adds is None else slopes.astype(jnp.float32),
        None,
        None,
    )


_attend = jax.custom_vjp(lambda *arguments: _forward(*arguments)[0], nondiff_argnums=(6, 7, 8))
_attend.defvjp(_forward, _backward)
