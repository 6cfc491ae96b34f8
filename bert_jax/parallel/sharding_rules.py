"""The only table from logical axes to mesh axes, and the functions that apply it.

Model code names the *meaning* of an axis (`embed`, `heads`, `vocab`). Only this package maps a
meaning to mesh axes.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from bert_jax.errors import UserError, did_you_mean
from bert_jax.parallel.section import COPY, DATA, FSDP, TENSOR

Array = jax.Array
LogicalAxes = tuple[str, ...]

MESH_AXES: Final = (COPY, DATA, FSDP, TENSOR)

# The mesh axes that split each logical axis. The model dimension is `embed` in a parameter. In an
# activation it is `hidden`, which is not split, because the batch axis already uses the fsdp axis.
RULES: Final[Mapping[str, tuple[str, ...]]] = {
    "batch": (COPY, DATA, FSDP),
    # Never split.
    **dict.fromkeys(("length", "hidden", "predictions", "layers", "microbatches", "rest"), ()),
    **dict.fromkeys(("positions", "types", "classes", "head_dim", "pooled"), ()),
    "embed": (FSDP,),
    "heads": (TENSOR,),
    "mlp": (TENSOR,),
    "vocab": (TENSOR,),
    # Matrices that an optimizer transforms as a whole. Every copy computes all of them.
    "matrices": (DATA, FSDP, TENSOR),
}


def partition_spec(
    axes: Sequence[str], *, rules: Mapping[str, tuple[str, ...]] = RULES
) -> PartitionSpec:
    """Returns the sharding of an array from the logical names of its axes, outermost first.

    ``partition_spec(("layers", "embed", "mlp")) == PartitionSpec(None, "fsdp", "tensor")``

    Raises ValueError if the table lacks an axis, or two axes are split over the same mesh axis.
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
    """Returns the sharding of a parameter. Raises UserError if the mesh does not divide an axis."""
    spec = partition_spec(axes)
    for axis, size in zip(axes, shape, strict=True):
        parts = axis_parts(mesh, axis)
        if size % parts:
            raise UserError(
                "mesh.parameter",
                f'{"×".join(RULES[axis])} = {parts} does not divide "{axis}" = {size} of {name}',
                place="mesh",
            )
    return NamedSharding(mesh, spec)


def trained_sharding(mesh: Mesh, axes: Sequence[str], shape: Sequence[int]) -> NamedSharding:
    """Returns the sharding of a trained parameter and its moments between steps."""
    return NamedSharding(mesh, trained_spec(mesh, axes, shape))


def trained_spec(
    mesh: Mesh | AbstractMesh, axes: Sequence[str], shape: Sequence[int]
) -> PartitionSpec:
    """Returns the sharding of a trained parameter and its moments between steps.

    The rows of a matrix are also split over the data axis (ZeRO) and gathered for use. Columns are
    not split, because gathering them would require a transpose. Vectors, and rows that the data
    axis does not divide, follow `RULES`. The copies of the axis `copy` are whole. So gradients are
    scattered within a copy, and only each chip's shard is summed between copies and slices.
    """
    rules = RULES
    rows = axes[-2] if len(axes) > 1 else "layers"
    if rows != "layers" and axes[-1] != "head_dim":  # only biases have `head_dim` last
        spread = (*RULES[rows], DATA)
        if shape[-2] % math.prod(mesh.shape[axis] for axis in spread) == 0:
            rules = {**RULES, rows: spread}
    return partition_spec(axes, rules=rules)


def whole(axes: LogicalAxes) -> LogicalAxes:
    """Returns the logical axes of a parameter after it is gathered over fsdp and data."""
    return tuple("hidden" if axis == "embed" else axis for axis in axes)


def split_over(spec: PartitionSpec) -> list[tuple[str, ...]]:
    """Returns the mesh axes that split each axis of an array."""
    return [(each,) if isinstance(each, str) else tuple(each or ()) for each in spec]


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of a batch: the first axis is split over copy, data and fsdp."""
    return NamedSharding(mesh, partition_spec(("batch",)))


def replicated(mesh: Mesh) -> NamedSharding:
    """Returns the sharding that gives every device a whole copy of an array."""
    return NamedSharding(mesh, PartitionSpec())


def of_entry(sharding: NamedSharding) -> NamedSharding:
    """Returns the sharding of an entry along the first axis of a stacked array."""
    return NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))


def check_divides(mesh: Mesh, axis: str, size: int, *, key: str) -> None:
    """Raises UserError for the setting `key` if the mesh does not divide a logical axis."""
    parts = axis_parts(mesh, axis)
    if size % parts:
        raise UserError.wrong(
            "mesh.not_a_divisor", parts, f"a divisor of the model's {size} {axis}", place=key
        )


def batch_parts(mesh: Mesh | AbstractMesh) -> int:
    """Returns the number of parts into which the mesh splits a batch."""
    return axis_parts(mesh, "batch")


def axis_parts(mesh: Mesh | AbstractMesh, axis: str) -> int:
    """Returns the number of parts into which the mesh splits a logical axis."""
    return math.prod(mesh.shape[mesh_axis] for mesh_axis in RULES[axis])


def parts_in_use(axis: str) -> int:
    """Returns the number of parts of a logical axis in the current mesh; 1 outside a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else axis_parts(mesh, axis)


def on_one_cpu() -> bool:
    """Returns whether the current mesh has CPU devices and does not split a batch."""
    device: Any = jax.sharding.get_abstract_mesh().abstract_device
    return device is not None and device.platform == "cpu" and parts_in_use("batch") == 1


def constrain(x: jax.Array, *axes: str) -> jax.Array:
    """Constrains the sharding of an activation.

    Outside a mesh (one device, or an exported program), returns `x` unchanged.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, partition_spec(axes))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def gathered(param: Array, axes: LogicalAxes) -> Array:
    """Gathers a parameter over the data axis. The compiler chooses its gradient's sharding.

    Call it before a loop over layers or microbatches, which would gather it in every iteration.
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
    """Returns a function that runs `function` on every device's shard of each argument.

    It is for functions that the compiler cannot split, such as kernels. The function must not
    combine elements along split axes. Outside a mesh (one device, or an exported program), returns
    `function` itself. `arguments` and `results` are the logical axes of its arrays.
    """
    if jax.sharding.get_abstract_mesh().empty:
        return function
    return jax.shard_map(
        function,
        in_specs=tuple(map(partition_spec, arguments)),
        out_specs=tuple(map(partition_spec, results)),
        check_vma=False,  # kernels do not declare over which mesh axes their results vary
    )
