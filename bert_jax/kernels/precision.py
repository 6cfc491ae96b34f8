"""Precision of matrix products."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike


def precision_of(dtype: DTypeLike) -> jax.lax.Precision:
    """Returns the precision of a product of activations: `HIGHEST` in float32.

    By default, a TPU would round float32 operands to bfloat16, and a GPU to TF32. On a TPU,
    `HIGHEST` takes six passes of bfloat16.
    """
    is_float32 = jnp.dtype(dtype) == jnp.float32
    return jax.lax.Precision.HIGHEST if is_float32 else jax.lax.Precision.DEFAULT
