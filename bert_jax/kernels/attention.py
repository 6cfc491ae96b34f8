"""Fused attention: one kernel computes scores, softmax, dropout and the sum over values in VMEM.

No [length, length] array is written to HBM. All keys and values of a head are in VMEM. Long rows
are split into tiles of queries, not of keys, so that the softmax sees all scores of a query. Both
passes compute the dropout mask with `random_bits`, so `fused` and `xla` drop the same elements.
Tests compare the results with `bert_jax.model.xla_attention`.

If attention is causal, a tile of queries reads only the keys up to its last query.

If heads are narrower than the 128 lanes of a vector register, a block has several heads side by
side, as the projections store them, so nothing is transposed. In the product of one head, the lanes
of the other heads contain encoded segments. So the product also masks the scores, at no cost: the
matrix unit pads to 128 lanes anyway.

The kernels are in `attention_kernels`, and their block shapes in `attention_tiles`.
"""

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from bert_jax.kernels.attention_kernels import (
    FROM_BASE_TWO,
    backward_kernel,
    centred_keys,
    forward_kernel,
    scale,
)
from bert_jax.kernels.attention_tiles import CODE, HIDDEN, Shape, padded, padded_queries
from bert_jax.kernels.distances import NO_DISTANCES, Distances
from bert_jax.kernels.pallas_call import launch, on_each_device
from bert_jax.kernels.random_bits import composes_words, line_words
from bert_jax.parallel.sharding_rules import LogicalAxes, constrain

Array = jax.Array

_Triple: TypeAlias = tuple[Array, Array, Array]
# Logical axes of the kernels' operands and results. `heads` shards heads or their columns.
_AXES: Final[dict[str, LogicalAxes]] = {
    **dict.fromkeys(("query_words", "key_words"), ("batch", "heads", "length")),
    **dict.fromkeys(("query_segments", "key_segments"), ("batch", "length")),
    "query_places": ("batch", "rest", "length"),
    **dict.fromkeys(("queries", "keys"), ("batch", "length", "heads")),
    **dict.fromkeys(("slopes", "query_slopes", "key_slopes"), ("rest", "batch", "length", "heads")),
    "logs": ("batch", "heads", "rest", "length"),
    "sums": ("rest", "batch", "rest", "heads"),
    "table": ("rest", "heads"),
    "turned_table": ("heads", "rest"),
    "table_slopes": ("batch", "rest", "heads", "rest"),
}
# Operands of both kernels, as keys of `_AXES`; see `attention_kernels.Read`. `query_places` and
# tables follow, if attention is causal or depends on distances.
_READ: Final = (
    *("query_words", "key_words", "query_segments", "key_segments"),
    *("queries", "keys", "keys"),
)


class DropoutWords(NamedTuple):
    """Random words of queries and keys, int32 [B, heads, tokens]."""

    of_queries: Array
    of_keys: Array


def dropout_words(seeds: Array, *, length: int, queries_BQ: Array | None = None) -> DropoutWords:
    """Returns the words of dropout for rows of `length` tokens.

    `seeds` are from `tile_seeds`, int32 [2, B, heads]. For `queries_BQ`, see `fused_attention`.
    """
    queries = keys = jnp.arange(padded(length), dtype=jnp.int32)
    if queries_BQ is not None:
        missing = padded_queries(queries_BQ.shape[1], length=length) - queries_BQ.shape[1]
        queries = jnp.pad(queries_BQ, ((0, 0), (0, missing)))[:, None]
    words = (
        line_words(lines, seed[..., None])
        for lines, seed in zip((queries, keys), seeds, strict=True)
    )
    return DropoutWords(*(constrain(each, *_AXES["key_words"]) for each in words))


def fused_attention(
    qkv_BLW: tuple[Array, Array, Array],
    bias_3W: Array,
    segment_ids: Array,
    words: DropoutWords | None,
    *,
    columns: int,
    rate: float,
    causal: bool = False,
    queries_BQ: Array | None = None,
    distances: Distances = NO_DISTANCES,
) -> Array:
    """Returns softmax(q·kᵀ/√columns) · v for each head, with dropout: [B, Q, heads · columns].

    Biases are added here, so that the backward kernel can sum their gradients in VMEM. Without a
    TPU, the kernels are interpreted, for tests.

    Args:
        qkv_BLW: queries [B, Q, heads · columns], keys and values [B, L, heads · columns] without
            their biases.
        bias_3W: biases of queries, keys and values, float32 [3, heads · columns].
        segment_ids: int32 [B, L], from 0 to 65,534. A token attends only to tokens in its segment.
            A token of segment −1 attends to segment 1, and no token attends to it.
        words: words of dropout. If None, nothing is dropped.
        columns: width of a head.
        rate: dropout rate of probabilities.
        causal: whether a token attends only to itself and to earlier tokens.
        queries_BQ: positions of the queries, int32, in any order; positions may repeat. If None,
            every token is a query.
        distances: terms of the scores that depend on the distance; not with `queries_BQ`. The
            scale of scores is then 1/√(columns · number of all terms).
    """
    if words is None:
        seeds = jnp.zeros((2, len(segment_ids), bias_3W.shape[1] // columns), jnp.int32)
        words = dropout_words(seeds, length=segment_ids.shape[1], queries_BQ=queries_BQ)
        rate = 0.0
    places = jnp.arange(segment_ids.shape[1], dtype=jnp.int32)
    of_queries = jnp.abs(segment_ids)
    tokens = _Tokens(places[None], of_queries, segment_ids)
    if queries_BQ is not None:
        of_queries = jnp.take_along_axis(of_queries, queries_BQ, axis=1)
        tokens = _Tokens(queries_BQ, of_queries, segment_ids)
    facts = _Facts(
        *(columns, rate, causal),
        selected=queries_BQ is not None,
        has_keys=distances.keys is not None,
        has_queries=distances.queries is not None,
    )
    return _attend(qkv_BLW, bias_3W, distances, tokens, words, facts)


class _Facts(NamedTuple):
    """Settings of the kernels."""

    columns: int  # width of a head
    rate: float  # dropout rate
    causal: bool
    selected: bool  # whether queries have any positions; otherwise every token is a query
    has_keys: bool  # whether there are `Distances.keys`
    has_queries: bool  # whether there are `Distances.queries`

    @property
    def terms(self) -> int:
        """Number of terms of the scores that depend on the distance."""
        return self.has_keys + self.has_queries

    @property
    def scale(self) -> float:
        """The scale of scores."""
        return scale(self.columns, terms=self.terms)


class _Tokens(NamedTuple):
    """Positions and segments of queries and keys, int32."""

    positions: Array  # positions of queries in their row, [B, Q] or [1, Q]
    of_queries: Array  # segments of queries, [B, Q]
    of_keys: Array  # segments of keys, [B, L]


def _padded(x: Array, tokens: _Tokens, *, keys: bool = False) -> Array:
    """Pads the tokens of an array [B, tokens, …] of queries or keys for the kernels."""
    queries, length = tokens.of_queries.shape[1], tokens.of_keys.shape[1]
    most = padded(length) if keys else padded_queries(queries, length=length)
    missing = most - x.shape[1]
    return jnp.pad(x, ((0, 0), (0, missing), *((0, 0),) * (x.ndim - 2))) if missing else x


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(
    qkv: _Triple,
    bias: Array,
    distances: Distances,
    tokens: _Tokens,
    words: DropoutWords,
    facts: _Facts,
) -> Array:
    return _forward(qkv, bias, distances, tokens, words, facts)[0]


def _forward(
    qkv: _Triple,
    bias: Array,
    distances: Distances,
    tokens: _Tokens,
    words: DropoutWords,
    facts: _Facts,
) -> tuple[Array, tuple[Any, ...]]:
    with_bias = [x.astype(jnp.float32) + each for x, each in zip(qkv, bias, strict=True)]
    with_bias[0] *= facts.scale
    q, k, v = (x.astype(qkv[0].dtype) for x in with_bias)
    # Add 1: segment 0 is padding that the kernels add, segment 1 is padding of the caller.
    of_queries = _padded(tokens.of_queries + 1, tokens)
    of_keys = _padded(tokens.of_keys + 1, tokens, keys=True)
    operands = (
        *words,
        *(of_queries, of_keys, _padded(q, tokens)),
        *(_padded(each, tokens, keys=True) for each in (k, v)),
    )
    if facts.causal:
        positions = _padded(tokens.positions, tokens)
        operands += (jnp.broadcast_to(positions, of_queries.shape)[:, None],)
    turned: tuple[Array, ...] = ()
    if distances.keys is not None:
        operands += (distances.keys,)
        turned += (centred_keys(distances.keys).T,)
    if distances.queries is not None:
        queries = (distances.queries.astype(jnp.float32) * facts.scale).astype(q.dtype)
        operands += (jnp.roll(queries[::-1], 1, axis=0),)
        turned += (queries.T,)
    out, logs = _run(forward_kernel, operands, (), ("queries", "logs"), tokens, facts)
    return out[:, : qkv[0].shape[1]], (tokens, operands, turned, out, logs)


def _backward(
    facts: _Facts, residuals: tuple[Any, ...], gradient: Array
) -> tuple[_Triple, Array, Distances, None, None]:
    tokens, operands, turned, out, logs = residuals
    queries, length = tokens.of_queries.shape[1], tokens.of_keys.shape[1]
    slopes = ("slopes",) if queries == length else ("query_slopes", "key_slopes")
    *found, sums = _run(
        backward_kernel,
        (*operands, *turned, out, logs, _padded(gradient, tokens)),
        (*("turned_table",) * facts.terms, "queries", "logs", "queries"),
        (*slopes, *("table_slopes",) * (facts.terms > 0), "sums"),
        tokens,
        facts,
    )
    of_distances = NO_DISTANCES
    if facts.terms:
        of_distances = _of_distances(found.pop().sum(0), facts, out.dtype)
    of_q = found[0][0, :, :queries]
    of_k, of_v = found[-1][-2:, :, :length]
    return (of_q, of_k, of_v), sums.sum((1, 2)), of_distances, None, None


def _of_distances(slopes: Array, facts: _Facts, dtype: Any) -> Distances:
    """Returns the gradients of the tables from the sums of the kernel, [tables, W, distances]."""
    factors = FROM_BASE_TWO, FROM_BASE_TWO * facts.scale
    tables = iter(slopes.swapaxes(1, 2))
    has = facts.has_keys, facts.has_queries
    return Distances(
        *(
            (next(tables) * factor).astype(dtype) if each else None
            for each, factor in zip(has, factors, strict=True)
        )
    )


_attend.defvjp(_forward, _backward)


def coded_segments(segments: Array, shape: Any, dtype: Any, *, of_keys: bool) -> Array:
    """Encodes segments [B, L] of queries or keys for the kernels, [B, L, lanes].

    Each of 16 bits takes two lanes. If query and key differ in a bit, query × key is `HIDDEN` in
    one of the bit's lanes. If they agree, it is zero in both lanes.
    """
    lane = jnp.arange(shape.lanes_of_segments, dtype=jnp.int32) % CODE
    bits = (segments[..., None] >> (lane // 2)) + lane & 1
    return ((1 - bits) * int(HIDDEN) if of_keys else bits).astype(dtype)


def _run(
    body: Callable[..., None],
    operands: tuple[Array, ...],
    more: tuple[str, ...],
    results: tuple[str, ...],
    tokens: _Tokens,
    facts: _Facts,
) -> tuple[Array, ...]:
    """Runs a kernel on each device, for the device's rows and heads. Returns `results`.

    `more` are the operands after those that both kernels read. They and `results` are keys of
    `_AXES`. A gradient has the key of its array.
    """
    forward = body is forward_kernel
    places = ("query_places",) if facts.causal else ()
    names = (*_READ, *places, *("table",) * facts.terms, *more)

    def run(*arrays: Array) -> tuple[Array, ...]:
        *words, of_queries, of_keys, q, k, v = arrays[: len(_READ)]
        batch, heads, _ = words[0].shape
        shape = Shape(
            batch=batch,
            length=tokens.of_keys.shape[1],
            queries=tokens.of_queries.shape[1],
            heads=heads,
            itemsize=q.dtype.itemsize,
            forward=forward,
            **facts._asdict(),
            composes=composes_words(),
        )
        arrays = (
            *words,
            coded_segments(of_queries, shape, q.dtype, of_keys=False),
            coded_segments(of_keys, shape, q.dtype, of_keys=True),
            *(q, k, v, *arrays[len(_READ) :]),
        )
        scores = batch * heads * shape.scores
        return launch(
            functools.partial(body, shape=shape),
            *arrays,
            name="attention_forward" if forward else "attention_backward",
            made=[shape.array(name, dtype=q.dtype) for name in results],
            order=shape.order,
            vmem=shape.vmem,
            flops=(2 + facts.terms if forward else 5 + 3 * facts.terms)
            * 2
            * scores
            * facts.columns,
            transcendentals=scores,
            grid=shape.grid,
            in_specs=[shape.block(name) for name in names],
            out_specs=[shape.block(name) for name in results],
            scratch_shapes=shape.running,
        )

    return on_each_device(run, operands, axes=_AXES, arguments=names, results=results)
