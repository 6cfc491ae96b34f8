"""The decoder over a vocabulary with softmax and loss, in two Pallas kernels.

The forward kernel writes the logits and, while the matrix units make the next ones, finds what is
the largest, their sum of exponentials and the label's own. The backward kernel reads them once for
the gradients of rows, table and bias. Rows come in groups that lie in VMEM; of several the
backward kernel is called for each, and adds to the table's gradient. Held to
`bert_jax.model.cross_entropy`, which has the derivative.

The kernels are in `cross_entropy_bodies`, what they see at a time in `cross_entropy_shape`.

Shape suffixes: N rows, D their columns, V pieces.
"""

import functools
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from bert_jax.kernels.cross_entropy_bodies import backward_kernel, forward_kernel
from bert_jax.kernels.cross_entropy_shape import STATISTICS, Shape, groups_of
from bert_jax.kernels.launch import launch
from bert_jax.parallel.accelerators import cores
from bert_jax.parallel.rules import LogicalAxes, per_shard

Array = jax.Array

# A logit that never wins nor weighs in a softmax.
NO_PIECE: Final = -1e9
_NO_LABEL: Final = -1  # of a row whose label other devices have, or that is padding

_ROWS: Final[LogicalAxes] = ("batch", "hidden")
_TABLE: Final[LogicalAxes] = ("vocab", "hidden")
_LOGITS: Final[LogicalAxes] = ("batch", "vocab")
_PIECES: Final[LogicalAxes] = ("vocab",)
_EACH: Final[LogicalAxes] = ("batch",)


class Decoded(NamedTuple):
    """What softmax makes of the logits of each row, float32 [N]."""

    log_total: Array  # the logarithm of the sum of exponentials
    largest: Array  # logit
    picked: Array  # the label's logit


def decode(
    rows_ND: Array, table_VD: Array, bias_V: Array, labels_N: Array
) -> tuple[Decoded, Array]:
    """Returns what a loss needs of ``rows · tableᵀ + bias``, and the logits for `decode_backward`.

    The logits have what each device pads its rows and pieces with. On a TPU the kernels run
    compiled, elsewhere interpreted, for tests.

    `rows_ND` and `table_VD`: of one dtype, that of the product; `bias_V`: float32; `labels_N`:
    int32.
    """
    run = per_shard(
        _forward,
        arguments=(_ROWS, _TABLE, _PIECES, _PIECES, _EACH),
        results=(("vocab", "rest", "batch"), _LOGITS),
    )
    found, logits = run(rows_ND, table_VD, bias_V, _numbers(table_VD), labels_N)
    # Each device that has pieces of its own says what it found of them.
    largest, total, picked = found[:, 0], found[:, 1], found[:, 2]
    most = largest.max(axis=0)
    total = (total * jnp.exp(largest - most)).sum(axis=0)
    return Decoded(most + jnp.log(total), most, picked.sum(axis=0)), logits


def decode_backward(
    rows_ND: Array,
    table_VD: Array,
    labels_N: Array,
    log_total_N: Array,
    logits: Array,
    gradient_N: Array,
) -> tuple[Array, Array, Array]:
    """Returns the gradients of rows, table and bias of ``Σ gradient · (log_total − picked)``.

    That of the table is each device's share of it, float32 [S, V, D] for S parts of the rows.
    """
    run = per_shard(
        _backward,
        arguments=(_ROWS, _TABLE, _PIECES, _EACH, _EACH, _EACH, _LOGITS),
        results=(("vocab", *_ROWS), ("batch", *_TABLE), ("batch", *_PIECES)),
    )
    of_rows, of_table, of_bias = run(
        rows_ND, table_VD, _numbers(table_VD), labels_N, log_total_N, gradient_N, logits
    )
    # Not `sum`, which would have devices exchange float32.
    of_rows = jax.lax.reduce(of_rows, jnp.zeros((), of_rows.dtype), jax.lax.add, (0,))
    return of_rows, of_table, of_bias.sum(axis=0)


def lower_alone(*, rows: int, hidden: int, pieces: int, dtype: DTypeLike) -> jax.stages.Lowered:
    """Returns both kernels lowered without a program around them, for the mesh that is set."""

    def kernels(*arrays: Array) -> object:
        rows_ND, table_VD, _, labels_N, gradient_N = arrays
        decoded, logits = decode(*arrays[:4])
        operands = (rows_ND, table_VD, labels_N, decoded.log_total, logits, gradient_N)
        return decoded, decode_backward(*operands)

    shape = jax.ShapeDtypeStruct
    return jax.jit(kernels).lower(
        shape((rows, hidden), dtype),
        shape((pieces, hidden), dtype),
        shape((pieces,), jnp.float32),
        shape((rows,), jnp.int32),
        shape((rows,), jnp.float32),
    )


def _numbers(table_VD: Array) -> Array:
    """Returns the numbers of the pieces: the first of those that a device has is its offset."""
    return jnp.arange(len(table_VD), dtype=jnp.int32)


def _forward(
    rows: Array, table: Array, bias: Array, numbers: Array, labels: Array
) -> tuple[Array, ...]:
    """Returns what a device finds of its pieces [1, 3, N], and their logits."""
    kernel = _Kernel(rows, table, forward=True)
    bias = jnp.pad(bias, (0, kernel.shape.width - len(bias)), constant_values=NO_PIECE)[None]
    labels = kernel.padded(_own(labels, numbers), _NO_LABEL)[:, None]
    operands = {"rows": kernel.padded(rows), "table": table, "bias": bias, "labels": labels}
    logits, statistics = kernel(operands, group=0)
    largest, total, picked = (statistics[:, :, each] for each in range(STATISTICS))
    most = largest.max(axis=(0, 3))
    total = (total * jnp.exp(largest - most[:, :, None])).sum(axis=(0, 3))
    found = jnp.stack([most, total, picked.sum(axis=(0, 3))])
    return found.reshape(1, STATISTICS, -1)[:, :, : len(rows)], logits


def _backward(
    rows: Array,
    table: Array,
    numbers: Array,
    labels: Array,
    log_total: Array,
    gradient: Array,
    logits: Array,
) -> tuple[Array, ...]:
    """Returns a device's shares of the gradients, [1, …]."""
    kernel = _Kernel(rows, table, forward=False)
    groups = kernel.shape.groups
    facts = jnp.stack([log_total, gradient, _own(labels, numbers).astype(jnp.float32)], axis=1)
    facts = kernel.padded(facts)  # of padding the gradient is zero
    operands = {"rows": kernel.padded(rows), "table": table, "logits": logits, "facts": facts}

    def add(of_table: Array, group: Array) -> tuple[Array, tuple[Array, Array]]:
        more = {} if groups == 1 else {"so_far": of_table}
        of_rows, of_table, of_bias = kernel(operands | more, group=group)
        return of_table, (of_rows[:, 0].sum(axis=0).astype(rows.dtype), of_bias[0])

    start = jnp.zeros(table.shape, jnp.float32)
    of_table, (of_rows, of_bias) = jax.lax.scan(add, start, jnp.arange(groups))
    of_rows = of_rows.reshape(1, -1, rows.shape[1])[:, : len(rows)]
    return of_rows, of_table[None], of_bias.sum(axis=0)[None, : len(table)]


def _own(labels: Array, numbers: Array) -> Array:
    """Returns labels as numbers of the pieces that a device has."""
    found = labels - numbers[0]
    return jnp.where((found >= 0) & (found < len(numbers)), found, _NO_LABEL)


class _Kernel:
    """A kernel for what one device has."""

    def __init__(self, rows: Array, table: Array, *, forward: bool) -> None:
        hidden, pieces, itemsize = rows.shape[1], len(table), rows.dtype.itemsize
        groups, each = groups_of(len(rows), hidden=hidden, pieces=pieces, itemsize=itemsize)
        self._dtype = rows.dtype
        self.shape = Shape(
            rows=each,
            groups=groups,
            hidden=hidden,
            pieces=pieces,
            itemsize=itemsize,
            cores=_cores(),
            forward=forward,
            adds=groups > 1,
        )

    def padded(self, x: Array, value: float = 0) -> Array:
        """Returns an array of rows with as many as all groups have."""
        missing = self.shape.groups * self.shape.rows - len(x)
        widths = [(0, missing), *[(0, 0)] * (x.ndim - 1)]
        return jnp.pad(x, widths, constant_values=value) if missing else x

    def __call__(self, operands: Mapping[str, Array], *, group: int | Array) -> tuple[Array, ...]:
        """Returns the results of one call, which begins at a group.

        `operands`: by their names in `Shape.block`; `so_far` is the table's gradient, added to in
        its place.
        """
        shape = self.shape
        names = [name.replace("so_far", "table") for name in operands]
        results = ("logits", "statistics") if shape.forward else ("of_rows", "table", "bias")
        made = [shape.array(name, jnp.float32) for name in results]
        scratch = [pltpu.VMEM(sizes, jnp.float32) for sizes in shape.kept]
        if not shape.forward:
            scratch.append(pltpu.VMEM((shape.rows, shape.tile), self._dtype))
        arrays = (jnp.full((1,), group, jnp.int32), *operands.values())
        elements = shape.grid[1] * shape.rows * shape.pieces
        body = forward_kernel if shape.forward else backward_kernel
        return launch(
            functools.partial(body, shape=shape),
            *arrays,
            name="cross_entropy_forward" if shape.forward else "cross_entropy_backward",
            made=made,
            # Each core has a part of the grid; groups and tiles follow one another.
            order=("parallel", "arbitrary", "arbitrary"),
            flops=(1 if shape.forward else 2) * 2 * elements * shape.hidden,
            transcendentals=elements,
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=shape.grid,
                in_specs=[shape.block(name) for name in names],
                out_specs=[shape.block(name) for name in results],
                scratch_shapes=scratch,
            ),
            input_output_aliases={len(operands): 1} if "so_far" in operands else {},
        )


def _cores() -> int:
    """Returns how many cores a device of the mesh has."""
    device: Any = jax.sharding.get_abstract_mesh().abstract_device
    return 1 if device is None else cores(device)
