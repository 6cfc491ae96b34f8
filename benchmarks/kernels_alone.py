"""Lowers kernels without a surrounding program, for the current mesh."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bert_jax.kernels.attention import dropout_words, fused_attention
from bert_jax.kernels.attention_tiles import padded
from bert_jax.kernels.cross_entropy import decode, decode_backward
from bert_jax.kernels.distances import Distances
from bert_jax.kernels.geglu_gradients import geglu_gradients
from bert_jax.kernels.gelu_product import gelu_product
from bert_jax.kernels.norm import Dropped, norm_gradients, normalised, pre_norm_gradients
from bert_jax.kernels.random_bits import column_factors, line_words, row_factors
from bert_jax.kernels.rotary_attention import rotary_attention
from bert_jax.model.architecture import Activation
from bert_jax.model.elementwise import gelu_erf_and_slope
from bert_jax.model.gelu_project import GELUS

Array = jax.Array
Triple = tuple[Array, Array, Array]
shape = jax.ShapeDtypeStruct


def lower_attention(
    *,
    batch: int,
    length: int,
    heads: int,
    columns: int,
    dtype: DTypeLike,
    rate: float,
    causal: bool = False,
    queries: int | None = None,
    distances: bool = False,
) -> jax.stages.Lowered:
    """Returns attention with its gradients.

    `queries` is the number of tokens of a row that attend. If None, all tokens attend. With
    `distances`, scores also depend on the distance of two tokens, as in DeBERTa.
    """
    width = heads * columns
    row, attending = (shape((batch, n, width), dtype) for n in (length, queries or length))
    positions = None if queries is None else shape((batch, queries), jnp.int32)
    bias, segments = shape((3, width), jnp.float32), shape((batch, length), jnp.int32)
    seeds = shape((2, batch, heads), jnp.int32)
    table: Any = shape((2 * padded(length), width), dtype) if distances else None

    def both(
        qkv: Triple,
        bias: Array,
        tables: Distances,
        segments: Array,
        seeds: Array,
        positions: Array | None,
    ) -> object:
        words = dropout_words(seeds, length=length, queries_BQ=positions)

        def total(qkv: Triple, bias: Array, tables: Distances) -> Array:
            out = fused_attention(
                *(qkv, bias, segments, words),
                columns=columns,
                rate=rate,
                causal=causal,
                queries_BQ=positions,
                distances=tables,
            )
            return out.astype(jnp.float32).sum()

        return jax.grad(total, argnums=(0, 1, 2))(qkv, bias, tables)

    tables = Distances(table, table)
    return jax.jit(both).lower((attending, row, row), bias, tables, segments, seeds, positions)


def lower_cross_entropy(
    *, rows: int, hidden: int, pieces: int, dtype: DTypeLike
) -> jax.stages.Lowered:
    """Returns the loss of masked pieces with its gradients."""

    def kernels(*arrays: Array) -> object:
        rows_ND, table_VD, _, labels_N, gradient_N = arrays
        decoded, logits = decode(*arrays[:4])
        operands = (rows_ND, table_VD, labels_N, decoded.log_total, logits, gradient_N)
        return decoded, decode_backward(*operands)

    return jax.jit(kernels).lower(
        shape((rows, hidden), dtype),
        shape((pieces, hidden), dtype),
        shape((pieces,), jnp.float32),
        shape((rows,), jnp.int32),
        shape((rows,), jnp.float32),
    )


def lower_gelu_product(
    *,
    rows: int,
    width: int,
    inner: int,
    dtype: DTypeLike,
    activation: Activation = "gelu_tanh",
) -> jax.stages.Lowered:
    """Returns the gradient of GELU."""
    arrays = (shape(sizes, dtype) for sizes in ((rows, width), (inner, width), (rows, inner)))
    return jax.jit(functools.partial(gelu_product, slope=GELUS[activation].slope)).lower(*arrays)


def lower_geglu_gradients(
    *, rows: int, width: int, inner: int, dtype: DTypeLike
) -> jax.stages.Lowered:
    """Returns the gradients of the second half of a GeGLU."""
    sizes = (rows, width), (inner, width), (rows, inner), (rows, inner)
    run = functools.partial(geglu_gradients, activation=gelu_erf_and_slope)
    return jax.jit(run).lower(*(shape(each, dtype) for each in sizes))


def lower_pre_norm(*, batch: int, length: int, width: int, dtype: DTypeLike) -> jax.stages.Lowered:
    """Returns LayerNorm without a bias, with its gradients and the gradient of a residual sum."""

    def both(x: Array, scale: Array, of_residual: Array) -> object:
        out = normalised(x, scale, None, eps=1e-5)
        return out, pre_norm_gradients(out, x, scale, of_residual, eps=1e-5)

    row = shape((batch, length, width), dtype)
    return jax.jit(both).lower(row, shape((width,), jnp.float32), row)


def lower_norm(
    *, batch: int, length: int, width: int, dtype: DTypeLike, rate: float
) -> jax.stages.Lowered:
    """Returns LayerNorm with its gradients. If `rate` is 0, there is no dropout."""

    def both(x: Array, vector: Array, down: Array, across: Array) -> object:
        words = line_words(down, down), line_words(across, across)
        dropped = None
        if rate:
            factors = row_factors(words[0]), column_factors(words[1], rate)
            dropped = Dropped(*factors, scale_up=1 / (1 - rate))
        out = normalised(x, vector, vector, eps=1e-12)
        return norm_gradients(out, x, vector, eps=1e-12, dropped=dropped)

    lines = [shape((batch, count), jnp.int32) for count in (length, width)]
    vector = shape((width,), jnp.float32)
    return jax.jit(both).lower(shape((batch, length, width), dtype), vector, *lines)


def lower_rotary_attention(
    *, batch: int, length: int, heads: int, columns: int, window: int | None, dtype: DTypeLike
) -> jax.stages.Lowered:
    """Returns attention with rotary positions, with its gradients."""

    def both(qkv: Triple, segments: Array, turn: tuple[Array, Array]) -> object:
        def total(qkv: Triple) -> Array:
            out = rotary_attention(qkv, segments, turn, columns=columns, window=window)
            return out.astype(jnp.float32).sum()

        return jax.grad(total)(qkv)

    row = shape((batch, length, heads * columns), dtype)
    angles = shape((length, columns // 2), jnp.float32)
    return jax.jit(both).lower((row, row, row), shape((batch, length), jnp.int32), (angles, angles))
