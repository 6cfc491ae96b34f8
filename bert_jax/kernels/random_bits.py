"""Random words as a function of an element's place: the same in XLA, in a kernel, on any mesh.

A tile is the matrix that the last two axes of an array make up. It has two random seeds, which make
a random word of each of its rows and of each of its columns: `low`, odd and of 10 bits, and `high`,
of 12. An element's word, which has 12 bits, is ``low · high + high · low`` of its row and its
column. In one int32 the two lie so that this is the upper end of a single product modulo 2³²: one
operation an element, where a hash of the element's own number takes ten. Where a chip has to put
that product together from others, it takes some twenty, and float32 gives the sum exactly in four.

Of two columns the words are points of a lattice that fills the plane evenly, but for few pairs in a
million; of rows likewise. No two lines of up to 2,048 have the same `low` and `high`.
"""

from typing import Final, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.parallel.accelerators import composes_int32

Array = jax.Array

# `triple32` (github.com/skeeto/hash-prospector), made for counters: every bit of its input turns
# over every bit of its output with a probability within 0.02% of one half.
_ROUNDS: Final = (
    (17, np.int32(0xED5AD4BB - 2**32)),
    (11, np.int32(0xAC4C1B51 - 2**32)),
    (15, np.int32(0x31848BAB)),
)
_LAST_SHIFT: Final = 14

# Bits of a line's word, from the lowest: 1, 9 and 2 of the line's number after the tile's own
# permutation, 8 empty ones between, so that `low · low` stays below `high`, and 10 of a hash.
_PLACES: Final = 2**11 - 1
_TURNS: Final = ((6, 0), (5, 8), (6, 16))  # shifts of the number, and of the seed
_DRAWN: Final = 9  # bits of `low`, which is odd
_HIGH: Final = 20  # where `high` begins
_HASHED: Final = np.int32(-(2**22))

# Factors of a product of lines: one int32 each, or `low` and `high` as float32. Columns also have
# the least word that is kept.
Factors: TypeAlias = tuple[Array, ...]
# The last binary place of a float32 of this size is 1, so that a sum with it shows whole numbers.
_WHOLE: Final = np.float32(2**23)


def tile_seeds(key: Array, tiles: tuple[int, ...]) -> Array:
    """Returns two random words for every tile, of its rows and of its columns: int32 [2, *tiles].

    `key`: of threefry, the same on every backend and mesh; `tiles`: all axes but the last two.
    """
    return jax.random.bits(key, (2, *tiles)).astype(jnp.int32)


def line_words(line: Array, seed: Array) -> Array:
    """Returns random int32 for rows or columns, of the operands' common shape.

    An element's word is the upper 12 bits of its row's times its column's.
    `line`: the number of each in its tile; `seed`: of `tile_seeds`.
    """
    word = line + seed
    for shift, multiplier in _ROUNDS:
        word = (word ^ jax.lax.shift_right_logical(word, shift)) * multiplier
    word ^= jax.lax.shift_right_logical(word, _LAST_SHIFT)
    # A permutation of 2,048 numbers: every operation can be undone.
    place = line
    for shift, bits in _TURNS:
        more = jax.lax.shift_right_logical(seed, bits)
        place = (place * (more | 1) + jax.lax.shift_right_logical(more, 5)) & _PLACES
        place ^= place >> shift
    of_low, of_high = place & (2**_DRAWN - 1), place >> _DRAWN
    return (word & _HASHED) | (of_high << _HIGH) | (of_low << 1) | 1


def composes_words() -> bool:
    """Returns whether the devices of the mesh make a product of words out of other operations."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return device is not None and composes_int32(device)


def row_factors(words: Array) -> Factors:
    """Returns the words of rows as `kept` takes them on the devices of the mesh."""
    if not composes_words():
        return (words,)
    low, high = words & (2 ** (_DRAWN + 1) - 1), jax.lax.shift_right_arithmetic(words, _HIGH)
    return low.astype(jnp.float32), high.astype(jnp.float32)


def column_factors(words: Array, rate: float) -> Factors:
    """Returns the words of columns, and the least word that is kept at a rate of dropout.

    Words have 12 bits, so a column has one of the two numbers next to the rate: its `low` decides
    which one. On average over columns the rate is met to 2⁻²².
    """
    least, share = divmod(min(rate, 1 - 2**-12) * 2 ** (32 - _HIGH), 1)
    more = (words & (2**_DRAWN - 1) << 1) < round(share * 2**_DRAWN) << 1
    few = round(least) - 2 ** (31 - _HIGH)
    reached = jnp.where(more, np.int32((few + 1) << _HIGH), np.int32(few << _HIGH))
    return *row_factors(words), reached


def kept(rows: Factors, columns: Factors) -> Array:
    """Returns which elements stay, bool; arrays of rows and of columns broadcast."""
    reached = columns[-1]
    if len(rows) == 1:
        return rows[0] * columns[0] >= reached
    # |low · high| < 2²¹, so every sum is exact.
    total = rows[0] * columns[1] + rows[1] * columns[0] + (_WHOLE + _WHOLE / 2)
    word = jax.lax.bitcast_convert_type(total, jnp.int32) << _HIGH
    return word >= reached
