"""Dropout whose bits are computed where they are used: nothing is stored between the passes.

An element's bits depend on the key and its place in the global array. So a mask is the same on
every mesh, every device computes those of its own elements alone, and the compiler fuses them into
whatever reads them. The generator in a TPU's hardware cannot be split so: every chip would
draw, and keep until the backward pass, the bits of the whole global batch.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bert_jax.kernels.random_bits import below, tile_seeds, words

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
    return _drop(x, *tile_seeds(key, x.shape[:-2]), rate)


def _masked(x: Array, first: Array, second: Array, rate: float) -> Array:
    rows, width = x.shape[-2:]
    row = jax.lax.broadcasted_iota(jnp.int32, (rows, width), 0)
    element = row * width + jax.lax.broadcasted_iota(jnp.int32, (rows, width), 1)
    keep = words(element, first[..., None, None], second[..., None, None]) >= below(rate)
    return jnp.where(keep, x * jnp.asarray(1 / (1 - rate), x.dtype), 0)


def _drop_forward(
    x: Array, first: Array, second: Array, rate: float
) -> tuple[Array, tuple[Array, Array]]:
    return _masked(x, first, second, rate), (first, second)


def _drop_backward(
    rate: float, seeds: tuple[Array, Array], gradient: Array
) -> tuple[Array, None, None]:
    # Seeds that look like others: else the compiler would find that it computes a mask twice, and
    # would keep it instead.
    first, second = jax.lax.optimization_barrier(seeds)
    return _masked(gradient, first, second, rate), None, None


_drop = jax.custom_vjp(_masked, nondiff_argnums=(3,))
_drop.defvjp(_drop_forward, _drop_backward)
