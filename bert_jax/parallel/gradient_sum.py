"""Sums of gradients over the devices that split a batch, each device left with its own part.

Left to the compiler, a sum over more than eight chips is an all-reduce that every device cuts its
part out of: twice the bytes. In steps over at most eight it stays a reduce-scatter.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import jax
from jax.experimental.layout import Layout, with_layout_constraint

from bert_jax.parallel.rules import (
    RULES,
    LogicalAxes,
    partition_spec,
    per_shard,
    split_over,
    trained_spec,
    whole,
)

Array = jax.Array

# Devices of a group, at most, over which a TPU's compiler leaves a reduce-scatter as it is.
_MOST: Final = 8


def device_shares(
    share: Callable[..., Array],
    *operands: Array,
    arguments: Sequence[LogicalAxes],
    axes: LogicalAxes,
) -> Array:
    """Returns what every device computes of its part of the operands: [devices, …].

    The sum over the first axis, one entry per part of a batch, is the result. `arguments` are the
    logical axes of the operands, the batch among them; `axes` of the result of `share`.
    """
    run = per_shard(
        lambda *own: (share(*own)[None],), arguments=arguments, results=[("batch", *axes)]
    )
    return run(*operands)[0]


def summed_shares(shares: Array, stored: LogicalAxes) -> Array:
    """Returns the sum of the devices' shares, laid out as the parameter whose gradient it is.

    `shares`: [devices, …] in the dtype of the sum; `stored`: the parameter's logical axes.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or len(shares) == 1:
        return shares[0]
    spec = trained_spec(mesh, stored, shares.shape[1:])
    split = [axis for axis in RULES["batch"] if mesh.shape[axis] > 1]

    def summed(own: Array) -> Array:
        found, left = own[0], list(split)
        found = with_layout_constraint(found, Layout(tuple(range(found.ndim))))
        for dimension, names in enumerate(split_over(spec)):
            for axis in (name for name in names if name in split):
                found = _scattered(found, axis, dimension, size=mesh.shape[axis])
                left.remove(axis)
        return jax.lax.psum(found, tuple(left)) if left else found

    return jax.shard_map(
        summed,
        in_specs=partition_spec(("batch", *whole(stored))),
        out_specs=spec,
        check_vma=False,
    )(shares)


def _scattered(x: Array, axis: str, dimension: int, *, size: int) -> Array:
    """Returns this device's part of the sum over a mesh axis, cut along a dimension."""
    for groups in _steps(size):
        x = jax.lax.psum_scatter(
            x, axis, scatter_dimension=dimension, axis_index_groups=groups, tiled=True
        )
    return x


def _steps(size: int) -> Iterator[list[list[int]]]:
    """Yields the groups of each step; after all, device `i` has the `i`-th part of an array."""
    whole_axis = size
    while size > 1:
        parts = next((n for n in range(min(size, _MOST), 1, -1) if size % n == 0), size)
        each = size // parts  # devices of a group
        yield [
            [first + part * each + at for part in range(parts)]
            for first in range(0, whole_axis, size)
            for at in range(each)
        ]
        size = each
