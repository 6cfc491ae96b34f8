"""How kernels are called: compiled on a TPU, interpreted elsewhere, for tests."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.parallel.rules import LogicalAxes, per_shard

Array = jax.Array
# Whether cores may share an axis of the grid.
Order = Literal["parallel", "arbitrary"]

# Vector registers, which blocks are cut for: the same on v4, v5e, v5p and v6e.
LANES: Final = 128  # columns of a register
SUBLANES: Final = 8  # rows of a register of float32
PACKED: Final = 16  # rows of a register of bfloat16


def on_each_device(
    run: Callable[..., tuple[Array, ...]],
    operands: Sequence[Array],
    *,
    axes: Mapping[str, LogicalAxes],
    arguments: Sequence[str],
    results: Sequence[str],
) -> tuple[Array, ...]:
    """Returns the results of `run`, called on every device of the mesh with its operands.

    `arguments` and `results`: the names in `axes` of each array.
    """
    of_arguments, of_results = ([axes[name] for name in names] for names in (arguments, results))
    return per_shard(run, arguments=of_arguments, results=of_results)(*operands)


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
    """Returns the results of a kernel, of the shapes and dtypes `made`.

    Plans and traces show `name`; `order` is of each axis of the grid. `flops` are of products,
    `transcendentals` of elements: exponentials, roots and the like. `options` are the rest of
    `pl.pallas_call`: the grid, blocks and scratch.
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
