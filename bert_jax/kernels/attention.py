"""`fused` attention: scores, softmax, dropout and the sum over values in one kernel, in VMEM.

No [length, length] array reaches HBM. All keys and values of a head are in VMEM; long rows come in
tiles of queries, so that softmax sees all scores of a query. The kernel multiplies dropout's words
from `random_bits`, and its backward pass does so again: `fused` and `xla` drop the same elements.
Held to `bert_jax.model.xla_attention`.

Several heads narrower than the 128 lanes of a vector register are side by side in one block, as
they come out of the projections: no transpose. A product for one head runs over all lanes; the
matrix unit pads to 128 in any case. The lanes of the other heads hold segments, so that the product
which makes the scores masks them as well: no element is compared or replaced.

The kernels are in `attention_kernels`, their blocks in `attention_shape`.
"""

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from bert_jax.kernels.attention_kernels import backward_kernel, forward_kernel, scale
from bert_jax.kernels.attention_shape import Shape, padded, padded_queries
from bert_jax.kernels.launch import launch, on_each_device
from bert_jax.kernels.random_bits import composes_words, line_words
from bert_jax.parallel.rules import LogicalAxes

Array = jax.Array

# Added to a score for every bit in which the segments of query and key differ: softmax gives 0.
_MASKED: Final = -(2.0**15)
_CODE: Final = 32  # lanes that a segment is written in, two a bit

_Triple: TypeAlias = tuple[Array, Array, Array]
# Arrays of the kernels, and what their axes mean: `heads` are split over devices, or lanes.
_AXES: Final[dict[str, LogicalAxes]] = {
    **dict.fromkeys(("query_words", "key_words"), ("batch", "heads", "length")),
    **dict.fromkeys(("query_segments", "key_segments"), ("batch", "length")),
    **dict.fromkeys(("queries", "keys"), ("batch", "length", "heads")),
    **dict.fromkeys(("slopes", "query_slopes", "key_slopes"), ("rest", "batch", "length", "heads")),
    "logs": ("batch", "heads", "rest", "length"),
    "sums": ("rest", "batch", "rest", "heads"),
}
# Operands of both kernels, see `Read`.
_READ: Final = (
    *("query_words", "key_words", "query_segments", "key_segments"),
    *("queries", "keys", "keys"),
)


def fused_attention(
    qkv_BLW: tuple[Array, Array, Array],
    bias_3W: Array,
    segment_ids: Array,
    seeds: Array | None,
    *,
    columns: int,
    rate: float,
    queries_BQ: Array | None = None,
) -> Array:
    """Returns softmax(q·kᵀ/√columns) · v for each head, with dropout: [B, Q, heads · columns].

    Biases are added here because the backward kernel sums their gradients while they are on the
    chip. On a TPU the kernels run compiled, elsewhere interpreted, for tests.

    Args:
        qkv_BLW: queries [B, Q, heads · columns], keys and values [B, L, heads · columns] without
            their biases. Their gradients are parts of one array; with fewer queries than keys, the
            gradients of keys and values are.
        bias_3W: float32 [3, heads · columns].
        segment_ids: int32 [B, L]; a token attends to its own segment alone.
        seeds: seeds of dropout, int32 [2, B, heads]; None: no dropout.
        columns: columns of a head.
        rate: share of probabilities dropped.
        queries_BQ: tokens of the queries, int32; None: all tokens in order.
    """
    if seeds is None:
        seeds = jnp.zeros((2, len(segment_ids), bias_3W.shape[1] // columns), jnp.int32)
        rate = 0.0
    tokens = _Tokens(jnp.arange(segment_ids.shape[1])[None], segment_ids, segment_ids)
    if queries_BQ is not None:
        of_queries = jnp.take_along_axis(segment_ids, queries_BQ, axis=1)
        tokens = _Tokens(queries_BQ, of_queries, segment_ids)
    return _attend(qkv_BLW, bias_3W, tokens, seeds, columns, rate)


class _Tokens(NamedTuple):
    """Tokens of queries and keys, int32."""

    positions: Array  # of queries in their row, [B, Q] or [1, Q]
    of_queries: Array  # segments, [B, Q]
    of_keys: Array  # segments, [B, L]


def _padded(x: Array, tokens: _Tokens, *, keys: bool = False) -> Array:
    """Returns an array [B, tokens, …] of as many queries, or keys, as the kernels have."""
    queries, length = tokens.of_queries.shape[1], tokens.of_keys.shape[1]
    most = padded(length) if keys else padded_queries(queries, length=length)
    missing = most - x.shape[1]
    return jnp.pad(x, ((0, 0), (0, missing), *((0, 0),) * (x.ndim - 2))) if missing else x


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attend(
    qkv: _Triple, bias: Array, tokens: _Tokens, seeds: Array, columns: int, rate: float
) -> Array:
    return _forward(qkv, bias, tokens, seeds, columns, rate)[0]


def _forward(
    qkv: _Triple, bias: Array, tokens: _Tokens, seeds: Array, columns: int, rate: float
) -> tuple[Array, tuple[Any, ...]]:
    with_bias = [x.astype(jnp.float32) + each for x, each in zip(qkv, bias, strict=True)]
    with_bias[0] *= scale(columns)
    q, k, v = (x.astype(qkv[0].dtype) for x in with_bias)
    # Padding is a segment of its own, since tokens may read other padding: 0.
    of_queries = _padded(tokens.of_queries + 1, tokens)
    of_keys = _padded(tokens.of_keys + 1, tokens, keys=True)
    positions = _padded(tokens.positions, tokens)
    operands = (
        line_words(positions[:, None], seeds[0][..., None]),
        line_words(jnp.arange(of_keys.shape[1], dtype=jnp.int32), seeds[1][..., None]),
        *(of_queries, of_keys, _padded(q, tokens)),
        *(_padded(each, tokens, keys=True) for each in (k, v)),
    )
    facts = {"tokens": tokens, "columns": columns, "rate": rate}
    out, logs = _run(forward_kernel, operands, _READ, ("queries", "logs"), **facts)
    return out[:, : qkv[0].shape[1]], (tokens, operands, out, logs)


def _backward(
    columns: int, rate: float, residuals: tuple[Any, ...], gradient: Array
) -> tuple[_Triple, Array, None, None]:
    tokens, operands, out, logs = residuals
    queries, length = tokens.of_queries.shape[1], tokens.of_keys.shape[1]
    slopes = ("slopes",) if queries == length else ("query_slopes", "key_slopes")
    *found, sums = _run(
        backward_kernel,
        (*operands, out, logs, _padded(gradient, tokens)),
        (*_READ, "queries", "logs", "queries"),
        (*slopes, "sums"),
        tokens=tokens,
        columns=columns,
        rate=rate,
    )
    of_q = found[0][0, :, :queries]
    of_k, of_v = found[-1][-2:, :, :length]
    return (of_q, of_k, of_v), sums.sum((1, 2)), None, None


_attend.defvjp(_forward, _backward)


def _coded(segments: Array, shape: Shape, dtype: Any, *, of_keys: bool) -> Array:
    """Returns segments [B, L] of queries or of keys as the kernels have them, [B, L, lanes].

    A bit takes two lanes. If the bits of query and key differ, the product of one lane is not zero.
    """
    lane = jnp.arange(shape.lanes_of_segments, dtype=jnp.int32) % _CODE
    bits = (segments[..., None] >> (lane // 2)) + lane & 1
    return ((1 - bits) * int(_MASKED) if of_keys else bits).astype(dtype)


def _run(
    body: Callable[..., None],
    operands: tuple[Array, ...],
    names: tuple[str, ...],
    results: tuple[str, ...],
    *,
    tokens: _Tokens,
    columns: int,
    rate: float,
) -> tuple[Array, ...]:
    """Returns a kernel's results, by name; a device runs it for its own rows and groups of heads.

    Each operand has its name in `_AXES`, and a gradient the name of its array. The first operands
    are words and segments.
    """
    forward = body is forward_kernel

    def run(*arrays: Array) -> tuple[Array, ...]:
        *words, of_queries, of_keys, q, k, v = arrays[: len(_READ)]
        batch, heads, _ = words[0].shape
        shape = Shape(
            batch=batch,
            length=tokens.of_keys.shape[1],
            queries=tokens.of_queries.shape[1],
            heads=heads,
            columns=columns,
            rate=rate,
            forward=forward,
            composes=composes_words(),
        )
        arrays = (
            *(each.reshape(batch, -1, shape.group, each.shape[-1]) for each in words),
            _coded(of_queries, shape, q.dtype, of_keys=False),
            _coded(of_keys, shape, q.dtype, of_keys=True),
            *(q, k, v, *arrays[len(_READ) :]),
        )
        scores = batch * heads * shape.padded_queries * shape.padded
        return launch(
            functools.partial(body, shape=shape),
            *arrays,
            name="attention_forward" if forward else "attention_backward",
            made=[shape.array(name, dtype=q.dtype) for name in results],
            order=("parallel", "parallel", "arbitrary"),
            flops=(2 if forward else 5) * 2 * scores * columns,
            transcendentals=scores,
            grid=shape.grid,
            in_specs=[shape.block(name) for name in names],
            out_specs=[shape.block(name) for name in results],
            scratch_shapes=shape.running,
        )

    return on_each_device(run, operands, axes=_AXES, arguments=names, results=results)
