"""Layers whose parameters lie along a leading axis, for a scan over them."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

Array = jax.Array
Layer = TypeVar("Layer", bound=nnx.Module)


def stacked(layer: Layer, *, depth: int) -> Layer:
    """Returns one layer's module whose every parameter carries all layers along a leading axis."""
    graphdef, state = nnx.split(layer)

    def stack(one: nnx.Variable) -> nnx.Variable:
        shape, axes = (depth, *one.shape), ("layers", *one.logical)
        return one.replace(jax.ShapeDtypeStruct(shape, one.dtype), logical=axes)

    return nnx.merge(graphdef, jax.tree.map(stack, state, is_leaf=is_param))


def is_param(node: Any) -> bool:
    """Returns whether a node of a tree of parameters is one, with what is known of it."""
    return isinstance(node, nnx.Variable)


def all_but_last(params: Any) -> tuple[Any, Any]:
    """Returns the parameters of all layers but the last, stacked, and those of the last.

    `params`: a tree of arrays [layers, …].
    """
    leaves, structure = jax.tree.flatten(params)
    first, last = zip(*map(_cut, leaves), strict=True)
    return structure.unflatten(first), structure.unflatten(last)


@jax.custom_vjp
def _cut(x: Array) -> tuple[Array, Array]:
    """Backwards the two are laid end to end: JAX would add two arrays, each padded with zeros."""
    return x[:-1], x[-1]


def _cut_forward(x: Array) -> tuple[tuple[Array, Array], None]:
    return _cut(x), None


def _cut_backward(_: None, gradients: tuple[Array, Array]) -> tuple[Array]:
    first, last = gradients
    return (jnp.concatenate([first, last[None]]),)


_cut.defvjp(_cut_forward, _cut_backward)
