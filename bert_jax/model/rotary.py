"""Rotary positions (arXiv 2104.09864): queries and keys are rotated by their token's place.

Scores depend on the difference of two positions alone. So a token's place in its row serves as its
position, and packed examples need no positions of their own.

Shape suffixes: B batch, L length, H heads, K head columns.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def rotations(length: Any, *, columns: int, theta: float) -> tuple[Array, Array]:
    """Returns cosine and sine of the angles at every place of a row, float32 [L, K / 2].

    An export has a symbolic `length`. Angle i at place p is ``p · theta^(−2i / columns)``.
    """
    frequencies = theta ** -(np.arange(0, columns, 2, dtype=np.float32) / columns)
    angles = jnp.arange(length, dtype=jnp.float32)[:, None] * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def rotated(
    x_BLHK: Float[Array, "batch length heads columns"], turn: tuple[Array, Array]
) -> Float[Array, "batch length heads columns"]:
    """Returns queries or keys rotated in float32, in the dtype of `x_BLHK`.

    Column i is rotated together with column i + K / 2.
    """
    cosine, sine = (each[:, None] for each in turn)
    first, second = jnp.split(x_BLHK.astype(jnp.float32), 2, axis=-1)
    turned = first * cosine - second * sine, second * cosine + first * sine
    return jnp.concatenate(turned, axis=-1).astype(x_BLHK.dtype)
