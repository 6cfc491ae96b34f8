"""Gradient accumulation: loss, metrics and gradients of a batch, summed over microbatches."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from bert_jax.parallel.sharding_rules import constrain
from bert_jax.task import Batch, Metrics, Params

# (parameters, microbatch, dropout key) → (loss, metrics), gradients
GradientFunction = Callable[[Params, Batch, jax.Array], tuple[tuple[jax.Array, Metrics], Params]]


def accumulate(
    grad: GradientFunction, params: Params, batch: Batch, key: jax.Array, parts: int
) -> tuple[jax.Array, Metrics, Params]:
    """Returns loss, metrics and gradients, summed over `parts` microbatches in a loop.

    `key` is the dropout key of the step.
    """
    if parts == 1:
        (value, metrics), grads = grad(params, batch, key)
        return value, metrics, grads
    microbatches = {name: cut(array, parts) for name, array in batch.items()}

    def add(total: Any, part: tuple[jax.Array, Mapping[str, jax.Array]]) -> tuple[Any, None]:
        index, microbatch = part
        (value, metrics), grads = grad(params, microbatch, jax.random.fold_in(key, index))
        return jax.tree.map(jnp.add, total, (value, metrics, grads)), None

    first = jax.tree.map(lambda array: array[0], microbatches)
    (value, metrics), grads = jax.eval_shape(grad, params, first, key)
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), (value, metrics, grads))
    total, _ = jax.lax.scan(add, zero, (jnp.arange(parts), microbatches))
    return total


def cut(array: jax.Array, parts: int) -> jax.Array:
    """Returns [parts, B/parts, …] from [B, …]; no row moves to another device.

    Row `r` becomes row ``r // parts`` of part ``r % parts``.
    """
    rows = array.shape[0]
    cut = array.reshape(rows // parts, parts, *array.shape[1:]).swapaxes(0, 1)
    return constrain(cut, "microbatches", "batch", *("rest",) * (array.ndim - 1))
