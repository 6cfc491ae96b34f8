"""A function applied to each device's own part of its arguments."""

from collections.abc import Callable, Sequence

import jax

from bert_jax.parallel.rules import LogicalAxes, partition_spec

Array = jax.Array


def per_shard(
    function: Callable[..., tuple[Array, ...]],
    *,
    arguments: Sequence[LogicalAxes],
    results: Sequence[LogicalAxes],
) -> Callable[..., tuple[Array, ...]]:
    """Returns `function`, run on every device with what the device holds of each argument.

    For what the compiler cannot split by itself, such as a kernel. Outside a mesh (one device, an
    exported program) the function is returned as it is.

    Args:
        function: of arrays; it must treat the split axes element by element.
        arguments: the logical axes of each array.
        results: those of each array that it returns.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function
    return jax.shard_map(
        function,
        in_specs=tuple(map(partition_spec, arguments)),
        out_specs=tuple(map(partition_spec, results)),
        check_vma=False,  # kernels say nothing about the mesh axes that their results vary over
    )
