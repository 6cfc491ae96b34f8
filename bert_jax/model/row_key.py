"""Random keys for a part of a batch, such as a microbatch.

Rows of a batch are numbered. With a threefry key, the numbers are 0, 1, 2, … With a key of
`numbered_rows`, random bits are those that rows of these numbers have in the whole batch. So
microbatches get the dropout masks of the whole batch.
"""

from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.extend.random import define_prng_impl

Array = jax.Array

_THREEFRY: Final = "threefry2x32"
_WORDS: Final = 2  # words of a threefry key. `first`, `step` and `rows` follow.
_STEP: Final = 3
_TOGETHER: Final = 8  # keys that `fold_in` computes


def numbered_rows(key: Array, *, first: Any, step: Any, rows: int) -> Array:
    """Returns a key for the rows ``first, first + step, …`` of a batch of ``rows * step`` rows.

    `key` is the threefry key of the whole batch. `first` and `step` may be traced.
    """
    numbers = jnp.stack([jnp.asarray(word).astype(jnp.uint32) for word in (first, step, rows)])
    data = jnp.concatenate([jax.random.key_data(key), numbers])
    return jax.random.wrap_key_data(data, impl=_NUMBERED)


def row_numbers(key: Array, rows: int) -> Array:
    """Returns the number of each row of an array, int32 [rows].

    If the array has several rows for each row of the batch, numbers them consecutively.
    """
    return _numbers(jax.random.key_data(key), rows).astype(jnp.int32)


def row_keys(key: Array, rows: int) -> Array:
    """Returns a threefry key for each row, [rows]. It depends on the number of the row alone."""
    numbers = row_numbers(key, rows)
    return jax.vmap(jax.random.fold_in, (None, 0))(_threefry(jax.random.key_data(key)), numbers)


def batch_key(key: Array) -> Array:
    """Returns the threefry key of the whole batch, for an array without rows of the batch."""
    return _threefry(jax.random.key_data(key))


def fold_in(key: Array, index: Any) -> Array:
    """Returns ``jax.random.fold_in(key, index)``, computed for several indices at once.

    A TPU runs each of the hundred operations of a single key separately, but fuses those of an
    array. Small constants share one array.
    """
    at = index % _TOGETHER if isinstance(index, int) else 0
    first = jnp.asarray(index - at).astype(jnp.uint32)
    indices = first + jnp.arange(_TOGETHER, dtype=jnp.uint32)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, indices)[at]


def _threefry(data: Array) -> Array:
    return jax.random.wrap_key_data(data[:_WORDS], impl=_THREEFRY)


def _numbers(data: Array, rows: int) -> Array:
    places = jnp.arange(rows, dtype=jnp.uint32)
    if len(data) == _WORDS:
        return places
    first, step, count = data[_WORDS:]
    each = rows // count
    return (first + places // each * step) * each + places % each


def _split(data: Array, shape: tuple[int, ...]) -> Array:
    return _with_numbers(jax.random.split(_threefry(data), shape), data)


def _fold_in(data: Array, index: Any) -> Array:
    return _with_numbers(jax.random.fold_in(_threefry(data), index), data)


def _with_numbers(keys: Array, data: Array) -> Array:
    numbers = jnp.broadcast_to(data[_WORDS:], (*keys.shape, len(data) - _WORDS))
    return jnp.concatenate([jax.random.key_data(keys), numbers], axis=-1)


def _random_bits(data: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    """Returns the bits of `tile_seeds`, uint32 [2, rows, …], or [2] if all rows share them."""
    assert bit_width == 32
    key = _threefry(data)
    if len(shape) == 1:
        return jax.random.bits(key, shape, jnp.uint32)
    # Threefry computes the bits of an element from its index in the flat array.
    sides, rows, *inner = shape
    index = _numbers(data, rows) + rows * data[_STEP] * jnp.arange(sides, dtype=jnp.uint32)[:, None]
    for size in inner:
        index = index[..., None] * size + jnp.arange(size, dtype=jnp.uint32)
    fold = jax.random.fold_in
    for _ in shape:
        fold = jax.vmap(fold, (None, 0))
    words = jax.random.key_data(fold(key, index))
    return words[..., 0] ^ words[..., 1]


_NUMBERED: Final = define_prng_impl(
    key_shape=(5,),
    seed=lambda seed: seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="numbered_rows",
    tag="rows",
)
