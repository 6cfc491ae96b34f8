"""Random words as a function of an element's place: the same in XLA, in a kernel, on any mesh.

A tile is the matrix that the last two axes of an array make up. It has two random seeds, which make
a random odd number of each of its rows and of each of its columns. An element's word is the product
of its row's and its column's, modulo 2³²: one operation an element, where a hash of the element's
own number takes ten. Of two columns the words are (x, k·x) with a random k, of rows likewise: the
points of a lattice that fills the plane evenly, whatever k is but for one in many thousands. Only
high bits are random: the lowest is always 1. All is int32, which vector units multiply.
"""

from __future__ import annotations

from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array

# Of what is below. A run whose masks are drawn by another version from some step on says so.
MASKS_VERSION: Final = 2

# `triple32` (github.com/skeeto/hash-prospector), made for counters: every bit of its input turns
# over every bit of its output with a probability within 0.02% of one half.
_ROUNDS: Final = (
    (17, np.int32(0xED5AD4BB - 2**32)),
    (11, np.int32(0xAC4C1B51 - 2**32)),
    (15, np.int32(0x31848BAB)),
)
_LAST_SHIFT: Final = 14


def tile_seeds(key: Array, tiles: tuple[int, ...]) -> tuple[Array, Array]:
    """Returns two random words for every tile, int32 [*tiles]: of its rows and of its columns.

    Args:
        key: of threefry, which gives the same numbers on every backend and mesh.
        tiles: the leading axes of an array, all but the last two.
    """
    first, second = (jax.random.bits(jax.random.fold_in(key, at), tiles) for at in range(2))
    return first.astype(jnp.int32), second.astype(jnp.int32)


def line_words(line: Array, seed: Array) -> Array:
    """Returns random odd int32 for rows or columns, of the operands' common shape.

    An element's word is that of its row times that of its column.

    Args:
        line: number of each in its tile.
        seed: of `tile_seeds`.
    """
    word = line + seed
    for shift, multiplier in _ROUNDS:
        word = (word ^ jax.lax.shift_right_logical(word, shift)) * multiplier
    return word ^ jax.lax.shift_right_logical(word, _LAST_SHIFT) | 1


def below(rate: float) -> np.int32:
    """Returns the number that a word is below with probability `rate`, which is met to 2⁻³¹."""
    return np.int32(min(round(rate * 2**32), 2**32 - 1) - 2**31)
