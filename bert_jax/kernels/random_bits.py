"""Random words of array elements, equal in XLA, in kernels and on any mesh.

A tile is the matrix of the last two axes of an array. From two random seeds of the tile, each row
and each column gets a random word with two parts: `low`, which is odd and has 10 bits, and `high`,
which has 12 bits. The 12-bit word of row r and column c is ``r.low · c.high + r.high · c.low``. The
parts are packed into one int32, so that this sum is the upper 12 bits of the product of two words
modulo 2³². So an element takes one operation; a hash of its position would take ten. Some chips
emulate int32 products with about twenty operations. On them, four float32 operations compute the
sum exactly.

The words of two columns are the coordinates of one point per row. For all but a few pairs of
columns in a million, these points form a lattice that fills the plane evenly; likewise for rows. Up
to 2,048 rows or columns have distinct pairs of `low` and `high`.
"""

from typing import Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.parallel.accelerators import composes_int32

Array = jax.Array

# Hash function `triple32` (github.com/skeeto/hash-prospector), designed for counters. Each input
# bit flips each output bit with a probability within 0.02% of one half.
_ROUNDS: Final = (
    (17, np.int32(0xED5AD4BB - 2**32)),
    (11, np.int32(0xAC4C1B51 - 2**32)),
    (15, np.int32(0x31848BAB)),
)
_LAST_SHIFT: Final = 14

# Bits of the word of a row or column. The seed permutes their indices. `low` is 9 bits of the
# permuted index and a 1 bit. `high` is 10 bits of a hash and 2 bits of the permuted index. The
# empty bits between them keep ``low · low`` out of the upper 12 bits.
_PLACES: Final = 2**11 - 1
_TURNS: Final = ((6, 0), (5, 8), (6, 16))  # shifts of the index and of the seed, per round
_DRAWN: Final = 9  # random bits of `low`
_HIGH: Final = 20  # position of the lowest bit of `high`
_HASHED: Final = np.int32(-(2**22))

# Words of rows or columns: one int32 array. If devices emulate int32 products, float32 arrays `low`
# and `high`. For columns, an additional array has the smallest word of a kept element.
Factors: TypeAlias = tuple[Array, ...]
# At 2²³, the lowest mantissa bit of a float32 is worth 1. Adding 2²³ makes the mantissa an integer.
_WHOLE: Final = np.float32(2**23)


def tile_seeds(key: Array, tiles: tuple[int, ...]) -> Array:
    """Returns the seeds of rows and columns for every tile, int32 [2, *tiles].

    `key` is a threefry key, whose bits are equal on every backend and mesh. `tiles` are the sizes
    of all axes except the last two.
    """
    return jax.random.bits(key, (2, *tiles), jnp.uint32).astype(jnp.int32)


def line_words(line: Array, seed: Array) -> Array:
    """Returns the random words of rows or columns, int32, in the broadcast shape of the arguments.

    `line` is the index of each row or column in its tile. `seed` is from `tile_seeds`.
    """
    word = line + seed
    for shift, multiplier in _ROUNDS:
        word = (word ^ _shifted(word, shift)) * multiplier
    word ^= _shifted(word, _LAST_SHIFT)
    # Permute 2,048 indices: every operation is invertible.
    place = line
    for shift, bits in _TURNS:
        more = _shifted(seed, bits)
        place = (place * (more | 1) + _shifted(more, 5)) & _PLACES
        place ^= place >> shift
    of_low, of_high = place & (2**_DRAWN - 1), place >> _DRAWN
    return (word & _HASHED) | (of_high << _HIGH) | (of_low << 1) | 1


def _shifted(word: Array, bits: int) -> Array:
    # With `jax_enable_x64`, a Python integer would be an int64.
    return jax.lax.shift_right_logical(word, np.int32(bits))


def composes_words() -> bool:
    """Returns whether the devices of the mesh emulate int32 products."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device is not None and composes_int32(device)


def row_factors(words: Array) -> Factors:
    """Returns the words of rows, as `kept` needs them on the devices of the mesh."""
    if not composes_words():
        return (words,)
    low, high = words & (2 ** (_DRAWN + 1) - 1), words >> _HIGH
    return low.astype(jnp.float32), high.astype(jnp.float32)


def column_factors(words: Array, rate: float) -> Factors:
    """Returns the words of columns, and the smallest word of kept elements.

    Words have 12 bits, so the rate of a column is one of the two multiples of 2⁻¹² next to `rate`.
    The column's `low` selects the multiple. The mean over columns is within 2⁻²² of `rate`.
    """
    least, share = divmod(min(rate, 1 - 2**-12) * 2 ** (32 - _HIGH), 1)
    more = (words & (2**_DRAWN - 1) << 1) < round(share * 2**_DRAWN) << 1
    few = round(least) - 2 ** (31 - _HIGH)
    reached = jnp.where(more, np.int32((few + 1) << _HIGH), np.int32(few << _HIGH))
    return *row_factors(words), reached


def kept(rows: Factors, columns: Factors) -> Array:
    """Returns the mask of kept elements, bool. Arrays of rows and columns are broadcast."""
    reached = columns[-1]
    if len(rows) == 1:
        return rows[0] * columns[0] >= reached
    # |low · high| < 2²¹, so every sum is exact.
    total = rows[0] * columns[1] + rows[1] * columns[0] + (_WHOLE + _WHOLE / 2)
    word = jax.lax.bitcast_convert_type(total, jnp.int32) << _HIGH
    return word >= reached
