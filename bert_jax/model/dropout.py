"""Dropout whose bits are computed where they are used: nothing is stored between the passes.

An element's bits depend on the key and its place in the global array. So a mask is the same on
every mesh, every device computes those of its own elements alone, and the compiler fuses them into
whatever reads them. The generator in a TPU's hardware cannot be split so: every chip would
draw, and keep until the backward pass, the bits of the whole global batch.
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
    """Returns `x` with elements dropped at `rate` and the rest scaled up.

    `x` is any activation [*tiles, rows, width]; `key` of threefry, or None in evaluation: all stay.
    `lines`: as in `tile_factors`.
    """
    if key is None or rate == 0.0:
        return x
    return _drop(x, tile_factors(x.shape, key, rate, lines=lines), rate)


def tile_factors(
    shape: tuple[int, ...], key: Array, rate: float, *, lines: Array | None = None
) -> TileFactors:
    """Returns those of the rows and of the columns of an array [*tiles, rows, width].

    `lines`: the number of each row in its tile, int32, which broadcasts to [*tiles, rows]; None: as
    they lie. So some rows of a tile have the bits that they have among all.
    """
    *tiles, rows, width = shape
    first, second = tile_seeds(key, tuple(tiles))

    def numbered(count: int) -> Array:
        return jax.lax.broadcasted_iota(jnp.int32, (*tiles, count), len(tiles))

    of_rows = numbered(rows) if lines is None else jnp.broadcast_to(lines, (*tiles, rows))
    row_words = line_words(of_rows, first[..., None])
    column_words = line_words(numbered(width), second[..., None])

    # Arrays of their own: the compiler would hash a row's number anew for each of its elements.
    return jax.lax.optimization_barrier(
        (row_factors(row_words), column_factors(column_words, rate))
    )


def kept_elements(factors: TileFactors) -> Array:
    """Returns which elements of the array stay, bool."""
    rows, columns = factors
    down, across = (each[..., :, None] for each in rows), (each[..., None, :] for each in columns)
    return kept(tuple(down), tuple(across))


def scale_up(rate: float, dtype: DTypeLike) -> float:
    """Returns the factor of what is kept, rounded as the numbers that it multiplies."""
    return float(np.asarray(1 / (1 - rate), dtype))


def masked(x: Array, factors: TileFactors, rate: float) -> Array:
    """Returns `x` [*tiles, rows, width] with elements dropped and the rest scaled up."""
    return jnp.where(kept_elements(factors), x * scale_up(rate, x.dtype), 0)


def _drop_forward(x: Array, factors: TileFactors, rate: float) -> tuple[Array, TileFactors]:
    return masked(x, factors, rate), factors


def _drop_backward(rate: float, factors: TileFactors, gradient: Array) -> tuple[Array, None]:
    # Numbers that look like others: else the compiler would find that it computes a mask twice, and
    # would keep it instead.
    return masked(gradient, jax.lax.optimization_barrier(factors), rate), None


_drop = jax.custom_vjp(masked, nondiff_argnums=(2,))
_drop.defvjp(_drop_forward, _drop_backward)
