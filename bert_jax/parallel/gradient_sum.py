"""Sums gradients over the devices that split a batch. Each device keeps its shard of the sum.

For more than eight chips, the TPU compiler turns a reduce-scatter into an all-reduce followed by a
slice, which transfers twice the bytes. So we sum in steps over at most eight chips each. The
compiler keeps these reduce-scatters.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import jax
from jax.experimental.layout import Layout, with_layout_constraint

from bert_jax.parallel import sharding_rules

Array = jax.Array

# Largest group of devices for which the TPU compiler keeps a reduce-scatter.
_MOST: Final = 8


def device_shares(
    share: Callable[..., Array],
    *operands: Array,
    arguments: Sequence[sharding_rules.LogicalAxes],
    axes: sharding_rules.LogicalAxes,
) -> Array:
    """Runs `share` on every device's shard of the operands; returns the results [batch parts, …].

    The caller sums over the first axis.

    Args:
        share: function of a device's shards.
        operands: arrays. At least one has a batch axis.
        arguments: logical axes of each operand.
        axes: logical axes of the result of `share`.
    """
    run = sharding_rules.per_shard(
        lambda *own: (share(*own)[None],), arguments=arguments, results=[("batch", *axes)]
    )
    return run(*operands)[0]


def summed_shares(shares: Array, stored: sharding_rules.LogicalAxes) -> Array:
    """Returns the sum of the shares, with the parameter's sharding between steps.

    `shares` is [batch parts, …] in the dtype of the sum. `stored` are the parameter's logical axes.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or len(shares) == 1:
        return shares[0]
    spec = sharding_rules.trained_spec(mesh, stored, shares.shape[1:])
    split = [axis for axis in sharding_rules.RULES["batch"] if mesh.shape[axis] > 1]

    def summed(own: Array) -> Array:
        found, left = own[0], list(split)
        found = with_layout_constraint(found, Layout(tuple(range(found.ndim))))
        for dimension, names in enumerate(sharding_rules.split_over(spec)):
            for axis in (name for name in names if name in split):
                for groups in _steps(mesh.shape[axis]):
                    found = jax.lax.psum_scatter(
                        found,
                        axis,
                        scatter_dimension=dimension,
                        axis_index_groups=groups,
                        tiled=True,
                    )
                left.remove(axis)
        return jax.lax.psum(found, tuple(left)) if left else found

    return jax.shard_map(
        summed,
        in_specs=sharding_rules.partition_spec(("batch", *sharding_rules.whole(stored))),
        out_specs=spec,
        check_vma=False,
    )(shares)


def _steps(size: int) -> Iterator[list[list[int]]]:
    """Yields the groups of devices of each step.

    After all steps, device `i` has shard `i` of the array.
    """
    whole_axis = size
    while size > 1:
        parts = next((n for n in range(min(size, _MOST), 1, -1) if size % n == 0), size)
        each = size // parts  # number of devices that share a shard after this step
        yield [
            [first + part * each + at for part in range(parts)]
            for first in range(0, whole_axis, size)
            for at in range(each)
        ]
        size = each
