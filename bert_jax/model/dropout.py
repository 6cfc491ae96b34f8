"""Dropout that computes its bits in the forward and in the backward pass and stores none.

An element's bits depend on the key and its place in the global array. So a mask is the same on
every mesh, a device computes the bits of its own elements, and the compiler fuses them into their
reader. With a TPU's hardware generator every chip would draw and keep the bits of the whole batch.
"""

from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from bert_jax.kernels.random_bits import (
    Factors,
    column_factors,
    kept,
    line_words,
    row_factors,
    tile_seeds,
)

Array = jax.Array
TileFactors: TypeAlias = tuple[Factors, Factors]  # of rows, of columns


def dropout(x: Array, rate: float, key: Array | None, *, lines: Array | None = None) -> Array:
    """Returns `x` [*tiles, rows, width] with elements dropped at `rate` and the rest scaled up.

    `key`: a threefry key, or None in evaluation, without dropout. `lines`: as in `tile_factors`.
    """
    if key is None or rate == 0.0:
        return x
    return _drop(x, tile_factors(x.shape, key, rate, lines=lines), rate)


def tile_factors(
    shape: tuple[int, ...], key: Array, rate: float, *, lines: Array | None = None
) -> TileFactors:
    """Returns the row and column hash factors of an array [*tiles, rows, width].

    `lines` are the numbers of the rows in the whole tile, int32, broadcast to [*tiles, rows]; None:
    all in order. So a part of a tile's rows has the same bits as in the whole tile.
    """
    *tiles, rows, width = shape
    first, second = tile_seeds(key, tuple(tiles))

    def numbered(count: int) -> Array:
        return jax.lax.broadcasted_iota(jnp.int32, (*tiles, count), len(tiles))

    of_rows = numbered(rows) if lines is None else jnp.broadcast_to(lines, (*tiles, rows))
    row_words = line_words(of_rows, first[..., None])
    column_words = line_words(numbered(width), second[..., None])

    # The barrier makes them arrays: otherwise XLA hashes a row's number for each of its elements.
    return jax.lax.optimization_barrier(
        (row_factors(row_words), column_factors(column_words, rate))
    )


def kept_elements(factors: TileFactors) -> Array:
    """Returns which elements of the array are kept, bool."""
    rows, columns = factors
    down, across = (each[..., :, None] for each in rows), (each[..., None, :] for each in columns)
    return kept(tuple(down), tuple(across))


def scale_up(rate: float, dtype: DTypeLike) -> float:
    """Returns the factor of kept elements, rounded to their dtype."""
    return float(np.asarray(1 / (1 - rate), dtype))


def masked(x: Array, factors: TileFactors, rate: float) -> Array:
    """Returns `x` [*tiles, rows, width] with elements dropped and the rest scaled up."""
    return jnp.where(kept_elements(factors), x * scale_up(rate, x.dtype), 0)


def _drop_forward(x: Array, factors: TileFactors, rate: float) -> tuple[Array, TileFactors]:
    return masked(x, factors, rate), factors


def _drop_backward(rate: float, factors: TileFactors, gradient: Array) -> tuple[Array, None]:
    # Optimization barrier: without it XLA's CSE would keep the mask in memory.
    return masked(gradient, jax.lax.optimization_barrier(factors), rate), None


_drop = jax.custom_vjp(masked, nondiff_argnums=(2,))
_drop.defvjp(_drop_forward, _drop_backward)
