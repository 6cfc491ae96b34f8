"""How a kernel is called: compiled on a TPU, interpreted elsewhere, for tests."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

Array = jax.Array
# Of an axis of the grid: whether cores may share it.
Order = Literal["parallel", "arbitrary"]


def launch(
    body: Callable[..., None],
    *arrays: Array,
    name: str,
    made: Sequence[jax.ShapeDtypeStruct],
    order: tuple[Order, ...],
    flops: int,
    transcendentals: int,
    **options: Any,
) -> tuple[Array, ...]:
    """Returns the results of a kernel.

    Args:
        body: of the kernel.
        arrays: its operands.
        name: by which plans and traces know it.
        made: shapes and dtypes of the results.
        order: of each axis of the grid.
        flops: of its products.
        transcendentals: exponentials, roots and the like, for each of their elements.
        options: the rest of `pl.pallas_call`: the grid, blocks and scratch.
    """
    call = functools.partial(
        pl.pallas_call,
        body,
        out_shape=made,
        cost_estimate=pl.CostEstimate(
            flops=flops,
            transcendentals=transcendentals,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*arrays, *made)),
        ),
        name=name,
        **options,
    )
    params = pltpu.CompilerParams(dimension_semantics=order)
    found: tuple[Array, ...] = jax.lax.platform_dependent(
        *arrays, tpu=call(compiler_params=params), default=call(interpret=True)
    )
    return found
