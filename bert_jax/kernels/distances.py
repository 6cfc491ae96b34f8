"""Tables with one row for each distance of two tokens, for the attention kernels."""

from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.kernels.attention_tiles import padded
from bert_jax.kernels.precision import precision_of

Array = jax.Array

LONGEST: Final = 1024
"""Maximum length of rows whose scores depend on distances."""
LEAST_VMEM: Final = 64 << 20
"""Minimum bytes of a core's VMEM. v4 has less, and cannot rotate each row by its own number."""


class Distances(NamedTuple):
    """Keys and queries of distances, [2 · padded length, W] each, from `by_distance`.

    A score also has the products query · keys[distance] and key · queries[distance]. If an array
    is None, it has no such product.
    """

    keys: Array | None
    queries: Array | None


NO_DISTANCES: Final = Distances(None, None)


def by_distance(table_RW: Array, rows: np.ndarray, *, length: int) -> Array:
    """Returns the rows of a table by distance: the key's position minus the query's ascends.

    `rows` has the row of each distance from ``1 - n`` to ``n - 1``, the query's position minus the
    key's, for some n from `length` on. It is a product with zeros and ones, because a gradient by
    scattering takes far longer on a TPU.
    """
    most, whole = len(rows) // 2, padded(length)
    found = rows[np.clip(whole - np.arange(2 * whole), -most, most) + most]
    chosen = jnp.asarray(found)[:, None] == jnp.arange(len(table_RW))
    return jnp.matmul(
        chosen.astype(table_RW.dtype), table_RW, precision=precision_of(table_RW.dtype)
    )
