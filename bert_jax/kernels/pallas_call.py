"""Calls kernels: compiled on a TPU, interpreted on other devices for tests."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from bert_jax.parallel.accelerators import computes_bfloat16, cores, vmem_bytes
from bert_jax.parallel.sharding_rules import LogicalAxes, per_shard

Array = jax.Array
# Whether cores may process an axis of the grid in parallel.
Order = Literal["parallel", "arbitrary"]

# Sizes of vector registers, equal on v4, v5e, v5p and v6e. Block shapes are multiples of them.
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
    """Calls `run` on every device of the mesh with the device's shards of the operands.

    `arguments` and `results` are keys of `axes`.
    """
    of_arguments, of_results = ([axes[name] for name in names] for names in (arguments, results))
    return per_shard(run, arguments=of_arguments, results=of_results)(*operands)


def cores_of_device() -> int:
    """Returns the number of cores per device of the mesh."""
    device: Any = jax.sharding.get_abstract_mesh().abstract_device
    return 1 if device is None else cores(device)


def vector_dtype(dtype: DTypeLike) -> DTypeLike:
    """Returns the dtype for elementwise work on arrays of `dtype` on the mesh's devices."""
    device: Any = jax.sharding.get_abstract_mesh().abstract_device
    return dtype if device is not None and computes_bfloat16(device) else jnp.float32


def vmem_of_device() -> int | None:
    """Returns the bytes of VMEM per core of the mesh's devices, or None without such devices."""
    device: Any = jax.sharding.get_abstract_mesh().abstract_device
    return None if device is None else vmem_bytes(device)


def launch(
    body: Callable[..., None],
    *arrays: Array,
    name: str,
    made: Sequence[jax.ShapeDtypeStruct],
    order: tuple[Order, ...],
    flops: int,
    transcendentals: int,
    unread: int = 0,
    vmem: int | None = None,
    **options: Any,
) -> tuple[Array, ...]:
    """Calls a kernel.

    Args:
        body: function of the kernel.
        arrays: operands.
        name: name of the kernel in plans and traces.
        made: shapes and dtypes of the results.
        order: whether cores may split each axis of the grid.
        flops: FLOPs of matrix products.
        transcendentals: number of exponentials, roots and similar operations.
        unread: bytes of the operands that the call does not read.
        vmem: limit of VMEM in bytes. The default is the compiler's.
        options: other arguments of `pl.pallas_call`, such as grid, blocks and scratch.
    """
    call = functools.partial(
        pl.pallas_call,
        body,
        out_shape=made,
        cost_estimate=pl.CostEstimate(
            flops=flops,
            transcendentals=transcendentals,
            bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*arrays, *made)) - unread,
        ),
        name=name,
        **options,
    )
    params = pltpu.CompilerParams(dimension_semantics=order, vmem_limit_bytes=vmem)
    # TPUs have no 64-bit integers. With `jax_enable_x64`, Python's integers would be int64.
    with jax.enable_x64(False):
        found: tuple[Array, ...] = jax.lax.platform_dependent(
            *arrays, tpu=call(compiler_params=params), default=call(interpret=True)
        )
    return found
