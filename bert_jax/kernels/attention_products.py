"""Matrix products of one head in a block of several heads."""

from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.kernels.attention_tiles import holds_code
from bert_jax.kernels.precision import precision_of

Array = jax.Array


def dot(a: Array, b: Array, a_axis: int, b_axis: int) -> Array:
    """Returns the product, contracted over an axis of each array, in float32."""
    contracted = (((a_axis,), (b_axis,)), ((), ()))
    return jax.lax.dot_general(
        a, b, contracted, precision=precision_of(a.dtype), preferred_element_type=jnp.float32
    )


def beside(x_LW: Array, segments: Array, head: int, shape: Any) -> Array:
    """Returns the columns of a head, with encoded segments in the lanes of other heads.

    If these lanes are too few, the segments are in additional lanes.
    """
    if holds_code(width=shape.width, columns=shape.columns):
        return where_inside(head, shape, x_LW, segments)
    if shape.group > 1:
        x_LW = where_inside(head, shape, x_LW, jnp.zeros_like(x_LW))
    return jnp.concatenate([x_LW, segments], axis=1)


def where_inside(head: int, shape: Any, x_LW: Array, other_LW: Array) -> Array:
    """Returns the columns of a head from `x_LW`, and other columns from `other_LW`."""
    return jnp.where(lanes_of(head, shape), x_LW, other_LW)


def lanes_of(head: int, shape: Any) -> Array:
    """Returns the mask of a head's columns in a block, bool [1, width]."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, shape.width), 1)
    return (lane >= head * shape.columns) & (lane < (head + 1) * shape.columns)
