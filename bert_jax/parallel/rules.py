"""THE table from logical axes to mesh axes, and the only way to apply it.

Model code names what an axis *means* (`embed`, `heads`, `vocab`); only this package knows which
mesh axis, if any, that meaning is split over.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from bert_jax.errors import UserError, did_you_mean
from bert_jax.parallel.section import DATA, FSDP, SLICE, TENSOR

Array = jax.Array
LogicalAxes = tuple[str, ...]

MESH_AXES: Final = (SLICE, DATA, FSDP, TENSOR)

# The mesh axes that split each axis of an activation or a parameter. The model dimension is `embed`
# in a parameter and `hidden` in an activation, whose batch axis already uses the fsdp axis.
RULES: Final[Mapping[str, tuple[str, ...]]] = {
    "batch": (SLICE, DATA, FSDP),
    # Never split.
    **dict.fromkeys(("length", "hidden", "predictions", "layers", "microbatches", "rest"), ()),
    **dict.fromkeys(("positions", "types", "classes", "head_dim", "pooled"), ()),
    "embed": (FSDP,),
    "heads": (TENSOR,),
    "mlp": (TENSOR,),
    "vocab": (TENSOR,),
}


def partition_spec(
    axes: Sequence[str], *, rules: Mapping[str, tuple[str, ...]] = RULES
) -> PartitionSpec:
    """Returns the layout of an array from the logical names of its axes, outermost first.

    ``partition_spec(("layers", "embed", "mlp")) == PartitionSpec(None, "fsdp", "tensor")``

    Raises ValueError: an axis the table does not have, or two axes that claim one mesh axis.
    """
    taken: dict[str, str] = {}
    entries: list[str | tuple[str, ...] | None] = []
    for axis in axes:
        if axis not in rules:
            raise ValueError(f'no rule for logical axis "{axis}"{did_you_mean(axis, rules)}')
        for mesh_axis in rules[axis]:
            if mesh_axis in taken:
                raise ValueError(
                    f'logical axes "{taken[mesh_axis]}" and "{axis}" of one array both claim the '
                    f'mesh axis "{mesh_axis}"'
                )
            taken[mesh_axis] = axis
        names = rules[axis]
        entries.append(None if not names else names[0] if len(names) == 1 else names)
    return PartitionSpec(*entries)


def parameter_sharding(
    mesh: Mesh, axes: Sequence[str], shape: Sequence[int], *, name: str
) -> NamedSharding:
    """Returns the layout of a parameter; UserError if a mesh axis does not divide its axis."""
    spec = partition_spec(axes)
    for axis, size in zip(axes, shape, strict=True):
        parts = axis_parts(mesh, axis)
        if size % parts:
            raise UserError(
                "mesh.parameter",
                '{mesh_axes} = {found} does not divide the axis "{axis}" = {size} of {name}. Use '
                "a divisor of {size}.",
                place="mesh",
                mesh_axes="×".join(RULES[axis]),
                found=parts,
                axis=axis,
                size=size,
                name=name,
            )
    return NamedSharding(mesh, spec)


def trained_sharding(mesh: Mesh, axes: Sequence[str], shape: Sequence[int]) -> NamedSharding:
    """Returns the layout of a trained parameter, and of its moments, between steps."""
    return NamedSharding(mesh, trained_spec(mesh, axes, shape))


def trained_spec(
    mesh: Mesh | AbstractMesh, axes: Sequence[str], shape: Sequence[int]
) -> PartitionSpec:
    """Returns the layout of a parameter that is trained, and of its moments, between steps.

    The rows of a matrix are spread over the data axis too (ZeRO), and gathered for use; gathered
    columns would have to be transposed. Vectors, and rows that the data axis does not divide, are
    laid out by the table. Every slice has all of them: a gradient is scattered over ICI, and each
    chip's share is summed between slices.
    """
    rules = RULES
    rows = axes[-2] if len(axes) > 1 else "layers"
    if rows != "layers" and axes[-1] != "head_dim":  # which only biases have
        spread = (*RULES[rows], DATA)
        if shape[-2] % math.prod(mesh.shape[axis] for axis in spread) == 0:
            rules = {**RULES, rows: spread}
    return partition_spec(axes, rules=rules)


def whole(axes: LogicalAxes) -> LogicalAxes:
    """Returns the axes of a parameter as it is used: gathered over fsdp, and over data."""
    return tuple("hidden" if axis == "embed" else axis for axis in axes)


def split_over(spec: PartitionSpec) -> list[tuple[str, ...]]:
    """Returns the mesh axes that a layout splits each axis of an array over."""
    return [(each,) if isinstance(each, str) else tuple(each or ()) for each in spec]


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the layout of every array of a batch: the leading axis over slices, data and fsdp."""
    return NamedSharding(mesh, partition_spec(("batch",)))


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the layout of an array that every device holds as a whole."""
    return NamedSharding(mesh, PartitionSpec())


def check_divides(mesh: Mesh, axis: str, size: int, *, key: str) -> None:
    """Raises a UserError that names the setting if a mesh does not divide a logical axis."""
    parts = axis_parts(mesh, axis)
    if size % parts:
        raise UserError(
            "mesh.not_a_divisor",
            "found {found}, allowed: a divisor of the model's {size} {axis}",
            place=key,
            found=parts,
            size=size,
            axis=axis,
        )


def batch_parts(mesh: Mesh | AbstractMesh) -> int:
    """Returns into how many parts the mesh splits a batch."""
    return axis_parts(mesh, "batch")


def axis_parts(mesh: Mesh | AbstractMesh, axis: str) -> int:
    """Returns into how many parts the mesh splits a logical axis."""
    return math.prod(mesh.shape[mesh_axis] for mesh_axis in RULES[axis])


def parts_in_use(axis: str) -> int:
    """Returns into how many parts the mesh in use splits a logical axis; outside a mesh one."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else axis_parts(mesh, axis)


def on_one_cpu() -> bool:
    """Returns whether the mesh in use is of CPUs and no device shares a batch with another."""
    device: Any = jax.sharding.get_abstract_mesh().abstract_device
    return device is not None and device.platform == "cpu" and parts_in_use("batch") == 1


def constrain(x: jax.Array, *axes: str) -> jax.Array:
    """Pins an activation's layout. Outside a mesh (one device, an exported program) returns `x`."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, partition_spec(axes))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def gathered(param: Array, axes: LogicalAxes) -> Array:
    """Gathers a parameter over the data axis; leaves its gradient's sharding to the compiler.

    For loops over layers or microbatches, which would gather in every iteration.
    """
    return constrain(param, *axes)


def _gathered_forward(param: Array, axes: LogicalAxes) -> tuple[Array, None]:
    return gathered(param, axes), None


def _gathered_backward(axes: LogicalAxes, _: None, gradient: Array) -> tuple[Array]:
    del axes
    return (gradient,)


gathered.defvjp(_gathered_forward, _gathered_backward)


def per_shard(
    function: Callable[..., tuple[Array, ...]],
    *,
    arguments: Sequence[LogicalAxes],
    results: Sequence[LogicalAxes],
) -> Callable[..., tuple[Array, ...]]:
    """Returns `function`, run on every device with the device's part of each argument.

    For what the compiler cannot split by itself, such as a kernel. Outside a mesh (one device, an
    exported program) the function is returned as it is. It must treat the split axes element by
    element. `arguments` and `results` are the logical axes of its arrays.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function
    return jax.shard_map(
        function,
        in_specs=tuple(map(partition_spec, arguments)),
        out_specs=tuple(map(partition_spec, results)),
        check_vma=False,  # kernels say nothing about the mesh axes that their results vary over
    )
