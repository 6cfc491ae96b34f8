"""Dropout that computes its mask in both the forward and the backward pass, and stores none.

The random bits of an element depend only on the key and the position in the global array. So a mask
is the same on every mesh, each device computes the bits of its own elements, and the compiler fuses
them into the operation that uses them. With the hardware generator of a TPU, every chip would draw
and store the bits of the whole batch.
"""

from typing import TypeAlias

import jax
import jax.numpy as jnp

from bert_jax.kernels.random_bits import (
    Factors,
    column_factors,
    kept,
    line_words,
    row_factors,
    tile_seeds,
)
from bert_jax.model.row_key import row_numbers

Array = jax.Array
TileFactors: TypeAlias = tuple[Factors, Factors]  # factors of rows and of columns


def dropout(x: Array, rate: float, key: Array | None, *, lines: Array | None = None) -> Array:
    """Drops elements of `x` [*tiles, rows, width] at `rate`, and scales up the others.

    `key` is a threefry key, or a key of `numbered_rows`. If it is None, as in evaluation, returns
    `x` unchanged. For `lines`, see `tile_factors`.
    """
    if key is None or rate == 0.0:
        return x
    return drop(x, tile_factors(x.shape, key, rate, lines=lines), rate)


def drop(x: Array, factors: TileFactors | None, rate: float) -> Array:
    """Drops elements of `x` with the factors of `tile_factors`, or nothing if they are None."""
    return x if factors is None else _drop(x, factors, rate)


def tile_factors(
    shape: tuple[int, ...], key: Array, rate: float, *, lines: Array | None = None
) -> TileFactors:
    """Returns the row and column hash factors of an array [*tiles, rows, width].

    If the array has only some rows of each tile, `lines` are the indices of these rows in the whole
    tile: int32, broadcast to [*tiles, rows]. The rows then get the same bits as in the whole tile.
    If `lines` is None, the array has all rows in order.

    The first axis of the array is the batch. A key of `numbered_rows` has the numbers of its rows.
    """
    *tiles, rows, width = shape
    first, second = tile_seeds(key, tuple(tiles))

    def numbered(count: int) -> Array:
        return jax.lax.broadcasted_iota(jnp.int32, (*tiles, count), len(tiles))

    if not tiles:  # the rows are rows of the batch
        lines = row_numbers(key, rows)
    of_rows = numbered(rows) if lines is None else jnp.broadcast_to(lines, (*tiles, rows))
    row_words = line_words(of_rows, first[..., None])
    column_words = line_words(numbered(width), second[..., None])

    # Optimization barrier: without it XLA would hash the index of a row for each of its elements.
    return jax.lax.optimization_barrier(
        (row_factors(row_words), column_factors(column_words, rate))
    )


def kept_elements(factors: TileFactors) -> Array:
    """Returns the mask of kept elements, bool."""
    rows, columns = factors
    down, across = (each[..., :, None] for each in rows), (each[..., None, :] for each in columns)
    return kept(tuple(down), tuple(across))


def masked(x: Array, factors: TileFactors, rate: float) -> Array:
    """Drops elements of `x` [*tiles, rows, width], and scales up the others by 1 / (1 − rate).

    The product is computed in float32. A scale in bfloat16 would change the mean: at a rate of 0.1,
    it is 0.16% too small.
    """
    scaled = (x.astype(jnp.float32) * (1 / (1 - rate))).astype(x.dtype)
    return jnp.where(kept_elements(factors), scaled, 0)


def _drop_forward(x: Array, factors: TileFactors, rate: float) -> tuple[Array, TileFactors]:
    return masked(x, factors, rate), factors


def _drop_backward(rate: float, factors: TileFactors, gradient: Array) -> tuple[Array, None]:
    # Optimization barrier: without it XLA's CSE would keep the mask in memory.
    return masked(gradient, jax.lax.optimization_barrier(factors), rate), None


_drop = jax.custom_vjp(masked, nondiff_argnums=(2,))
_drop.defvjp(_drop_forward, _drop_backward)
