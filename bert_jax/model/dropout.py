"""Dropout whose bits are computed where they are used: nothing is stored between the passes.

An element's bits depend on the key and its place in the global array. So a mask is the same on
every mesh, every device computes those of its own elements alone, and the compiler fuses them into
whatever reads them. The generator in a TPU's hardware cannot be split so: every chip would
draw, and keep until the backward pass, the bits of the whole global batch.
"""

from __future__ import annotations

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

Array = jax.Array


def dropout(x: Array, rate: float, key: Array | None) -> Array:
    """Returns `x` with elements dropped at `rate` and the rest scaled up.

    Args:
        x: any activation [*tiles, rows, width].
        rate: share of elements set to zero.
        key: a threefry key, or None to leave `x` as it is (evaluation).
    """
    if key is None or rate == 0.0:
        return x
    # Arrays of their own: the compiler would hash a row's number anew for each of its elements.
    return _drop(x, *jax.lax.optimization_barrier(_factors(x.shape, key, rate)), rate)


def _factors(shape: tuple[int, ...], key: Array, rate: float) -> tuple[Factors, Factors]:
    """Returns those of the rows and of the columns: [*tiles, rows], [*tiles, width]."""
    *tiles, rows, width = shape
    first, second = tile_seeds(key, tuple(tiles))

    def words(lines: int, seed: Array) -> Array:
        number = jax.lax.broadcasted_iota(jnp.int32, (*tiles, lines), len(tiles))
        return line_words(number, seed[..., None])

    return row_factors(words(rows, first)), column_factors(words(width, second), rate)


def _masked(x: Array, of_rows: Factors, of_columns: Factors, rate: float) -> Array:
    down = tuple(each[..., :, None] for each in of_rows)
    across = tuple(each[..., None, :] for each in of_columns)
    return jnp.where(kept(down, across), x * jnp.asarray(1 / (1 - rate), x.dtype), 0)


def _drop_forward(
    x: Array, of_rows: Factors, of_columns: Factors, rate: float
) -> tuple[Array, tuple[Factors, Factors]]:
    return _masked(x, of_rows, of_columns, rate), (of_rows, of_columns)


def _drop_backward(
    rate: float, factors: tuple[Factors, Factors], gradient: Array
) -> tuple[Array, None, None]:
    # Numbers that look like others: else the compiler would find that it computes a mask twice, and
    # would keep it instead.
    of_rows, of_columns = jax.lax.optimization_barrier(factors)
    return _masked(gradient, of_rows, of_columns, rate), None, None


_drop = jax.custom_vjp(_masked, nondiff_argnums=(3,))
_drop.defvjp(_drop_forward, _drop_backward)
