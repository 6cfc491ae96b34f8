"""Dropout whose bits are computed where they are used: nothing is stored between the passes.

An element's bits depend on the key and its place in the global array. So a mask is the same on
every mesh, every device computes those of its own elements alone, and the compiler fuses them into
whatever reads them. The generator in a TPU's hardware cannot be split so: every chip would
draw, and keep until the backward pass, the bits of the whole global batch.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bert_jax.kernels.random_bits import below, line_words, tile_seeds

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
    return _drop(x, *jax.lax.optimization_barrier(_words(x.shape, key)), rate)


def _words(shape: tuple[int, ...], key: Array) -> tuple[Array, Array]:
    """Returns those of the rows and of the columns, int32 [*tiles, rows], [*tiles, width]."""
    *tiles, rows, width = shape
    first, second = tile_seeds(key, tuple(tiles))

    def of(lines: int, seed: Array) -> Array:
        number = jax.lax.broadcasted_iota(jnp.int32, (*tiles, lines), len(tiles))
        return line_words(number, seed[..., None])

    return of(rows, first), of(width, second)


def _masked(x: Array, of_rows: Array, of_columns: Array, rate: float) -> Array:
    keep = of_rows[..., :, None] * of_columns[..., None, :] >= below(rate)
    return jnp.where(keep, x * jnp.asarray(1 / (1 - rate), x.dtype), 0)


def _drop_forward(
    x: Array, of_rows: Array, of_columns: Array, rate: float
) -> tuple[Array, tuple[Array, Array]]:
    return _masked(x, of_rows, of_columns, rate), (of_rows, of_columns)


def _drop_backward(
    rate: float, words: tuple[Array, Array], gradient: Array
) -> tuple[Array, None, None]:
    # Words that look like others: else the compiler would find that it computes a mask twice, and
    # would keep it instead.
    of_rows, of_columns = jax.lax.optimization_barrier(words)
    return _masked(gradient, of_rows, of_columns, rate), None, None


_drop = jax.custom_vjp(_masked, nondiff_argnums=(3,))
_drop.defvjp(_drop_forward, _drop_backward)
