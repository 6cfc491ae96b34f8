"""Random words as a function of an element's place: the same in XLA, in a kernel, on any mesh.

A tile is the matrix that the last two axes of an array make up. It has two random seeds; each of
its elements hashes them with its number in the tile. All is int32, which vector units multiply.
"""

from __future__ import annotations

from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array

# Multipliers and shifts of `triple32` (github.com/skeeto/hash-prospector), made for counters: every
# bit of its input turns over every bit of its output with a probability within 0.02% of one half.
# Two rounds, as in `lowbias32`, show: elements 8 columns apart were correlated by 0.6%.
_MULTIPLIERS: Final = (
    np.int32(0xED5AD4BB - 2**32),
    np.int32(0xAC4C1B51 - 2**32),
    np.int32(0x31848BAB),
)


def tile_seeds(key: Array, tiles: tuple[int, ...]) -> tuple[Array, Array]:
    """Returns two random words for every tile, int32 [*tiles].

    Args:
        key: of threefry, which gives the same numbers on every backend and mesh.
        tiles: the leading axes of an array, all but the last two.
    """
    first, second = (jax.random.bits(jax.random.fold_in(key, at), tiles) for at in range(2))
    return first.astype(jnp.int32), second.astype(jnp.int32)


def words(element: Array, first: Array, second: Array) -> Array:
    """Returns random int32, of the operands' common shape.

    Args:
        element: row · width + column of each in its tile.
        first: of `tile_seeds`.
        second: the other one.
    """
    word = element + first
    word = (word ^ jax.lax.shift_right_logical(word, 17)) * _MULTIPLIERS[0]
    word ^= second
    word = (word ^ jax.lax.shift_right_logical(word, 11)) * _MULTIPLIERS[1]
    # The last step of the hash moves high bits to low ones: a comparison needs the high ones.
    return (word ^ jax.lax.shift_right_logical(word, 15)) * _MULTIPLIERS[2]


def below(rate: float) -> np.int32:
    """Returns the number that a word is below with probability `rate`, which is met to 2⁻³²."""
    return np.int32(min(round(rate * 2**32), 2**32 - 1) - 2**31)
