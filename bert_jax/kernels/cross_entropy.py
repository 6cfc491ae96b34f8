"""Decoder, softmax and loss over a vocabulary, in two Pallas kernels.

The forward kernel writes the logits. While the matrix units compute the next logits, the vector
units compute the largest logit, the sum of exponentials and the label's logit. The backward kernel
reads the logits once to compute the gradients of rows, table and bias. Rows are processed in groups
that fit into VMEM. The backward kernel is called once per group, and adds to the table's gradient.
Tests compare the results with `bert_jax.model.cross_entropy`.

Maxima and sums are computed separately for every lane, because operations across lanes are slow.
The lanes are combined after the kernel. Block shapes are in `cross_entropy_shape`. Shape suffixes:
N rows, D hidden size, V pieces.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.kernels.cross_entropy_shape import FACTS, STATISTICS, Limits, Shape, groups_of
from bert_jax.kernels.pallas_call import LANES, cores_of_device, launch, vmem_of_device
from bert_jax.kernels.precision import precision_of
from bert_jax.parallel.sharding_rules import LogicalAxes, per_shard

Array = jax.Array

# Logit of padding pieces. Its exponential is zero.
NO_PIECE: Final = -1e9
_NO_LABEL: Final = -1  # label of padding rows, and of rows whose label is on another device

_ROWS: Final[LogicalAxes] = ("batch", "hidden")
_TABLE: Final[LogicalAxes] = ("vocab", "hidden")
_LOGITS: Final[LogicalAxes] = ("batch", "vocab")
_PIECES: Final[LogicalAxes] = ("vocab",)
_EACH: Final[LogicalAxes] = ("batch",)


class Decoded(NamedTuple):
    """Statistics of the logits of each row, float32 [N]."""

    log_total: Array  # logarithm of the sum of exponentials
    largest: Array  # largest logit
    picked: Array  # logit of the label


def decode(
    rows_ND: Array, table_VD: Array, bias_V: Array, labels_N: Array
) -> tuple[Decoded, Array]:
    """Returns statistics of ``rows · tableᵀ + bias``, and the logits for `decode_backward`.

    The logits include the padding of rows and pieces on each device. Without a TPU, the kernels are
    interpreted, for tests.

    `rows_ND` and `table_VD` have the dtype of the product. `bias_V` is float32, `labels_N` int32.
    """
    run = per_shard(
        _forward,
        arguments=(_ROWS, _TABLE, _PIECES, _PIECES, _EACH),
        results=(("vocab", "rest", "batch"), _LOGITS),
    )
    found, logits = run(rows_ND, table_VD, bias_V, _numbers(table_VD), labels_N)
    # Combine the statistics of devices with different pieces.
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

    The gradient of the table, float32 [S, V, D], is not summed over the S parts of the rows.

    Both products read the gradient of the logits in the dtype of the rows, as XLA's products do on
    a TPU. In bfloat16, this rounding changes the gradient of the table by 0.16% of its size. To
    avoid it, the table's product would have to run twice: 37% more cycles of this kernel on v5e.
    """
    run = per_shard(
        _backward,
        arguments=(_ROWS, _TABLE, _PIECES, _EACH, _EACH, _EACH, _LOGITS),
        results=(("vocab", *_ROWS), ("batch", *_TABLE), ("batch", *_PIECES)),
    )
    of_rows, of_table, of_bias = run(
        rows_ND, table_VD, _numbers(table_VD), labels_N, log_total_N, gradient_N, logits
    )
    # Not `sum`: it would exchange float32 between devices.
    of_rows = jax.lax.reduce(of_rows, jnp.zeros((), of_rows.dtype), jax.lax.add, (0,))
    return of_rows, of_table, of_bias.sum(axis=0)


def _numbers(table_VD: Array) -> Array:
    """Returns the ids of all pieces. On a device, the first id is the offset of its pieces."""
    return jnp.arange(len(table_VD), dtype=jnp.int32)


def _forward(
    rows: Array, table: Array, bias: Array, numbers: Array, labels: Array
) -> tuple[Array, ...]:
    """Returns the statistics [1, 3, N] and the logits of the pieces on one device."""
    shape = _shape(rows, table, forward=True)
    bias = jnp.pad(bias, (0, shape.width - len(bias)), constant_values=NO_PIECE)[None]
    labels = _padded(_own(labels, numbers), shape, _NO_LABEL)[:, None]
    operands = {"rows": _padded(rows, shape), "table": table, "bias": bias, "labels": labels}
    logits, statistics = _call(_forward_kernel, operands, shape, group=0)
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
    """Returns the gradients of one device before the sums over devices, [1, …]."""
    shape = _shape(rows, table, forward=False)
    facts = jnp.stack([log_total, gradient, _own(labels, numbers).astype(jnp.float32)], axis=1)
    facts = _padded(facts, shape)  # the gradient of padding is zero
    operands = {"rows": _padded(rows, shape), "table": table, "logits": logits, "facts": facts}

    def add(of_table: Array, group: Array) -> tuple[Array, tuple[Array, Array]]:
        more = {} if shape.groups == 1 else {"so_far": of_table}
        of_rows, of_table, of_bias = _call(_backward_kernel, operands | more, shape, group=group)
        return of_table, (of_rows[:, 0].sum(axis=0).astype(rows.dtype), of_bias[0])

    start = jnp.zeros(table.shape, jnp.float32)
    of_table, (of_rows, of_bias) = jax.lax.scan(
        add, start, jnp.arange(shape.groups, dtype=jnp.int32)
    )
    of_rows = of_rows.reshape(1, -1, rows.shape[1])[:, : len(rows)]
    return of_rows, of_table[None], of_bias.sum(axis=0)[None, : len(table)]


def _own(labels: Array, numbers: Array) -> Array:
    """Returns labels relative to the device's first piece; −1 for pieces on other devices."""
    found = labels - numbers[0]
    return jnp.where((found >= 0) & (found < len(numbers)), found, _NO_LABEL)


def _shape(rows: Array, table: Array, *, forward: bool) -> Shape:
    """Returns the sizes and settings of a kernel on one device."""
    hidden, pieces, itemsize = rows.shape[1], len(table), rows.dtype.itemsize
    limits, sizes = Limits.of(vmem_of_device()), {"pieces": pieces, "itemsize": itemsize}
    groups, each = groups_of(len(rows), hidden=hidden, limits=limits, **sizes)
    return Shape(
        rows=each,
        groups=groups,
        hidden=hidden,
        cores=cores_of_device(),
        forward=forward,
        limits=limits,
        **sizes,
    )


def _padded(x: Array, shape: Shape, value: float = 0) -> Array:
    """Pads an array of rows to the rows of all groups."""
    missing = shape.groups * shape.rows - len(x)
    widths = [(0, missing), *[(0, 0)] * (x.ndim - 1)]
    return jnp.pad(x, widths, constant_values=value) if missing else x


def _call(
    body: Callable[..., None], operands: Mapping[str, Array], shape: Shape, *, group: int | Array
) -> tuple[Array, ...]:
    """Calls a kernel. `group` is the first group of rows to process.

    `operands` maps names in `Shape.block` to arrays. The backward kernel adds to the operand
    `so_far`, the table's gradient, in place.
    """
    names = [name.replace("so_far", "table") for name in operands]
    results = ("logits", "statistics") if shape.forward else ("of_rows", "table", "bias")
    scratch = [pltpu.VMEM(sizes, jnp.float32) for sizes in shape.kept]
    if not shape.forward:
        scratch.append(pltpu.VMEM((shape.rows, shape.tile), operands["rows"].dtype))
    elements = shape.grid[1] * shape.rows * shape.pieces
    by_group = [operands[name] for name in ("rows", "logits", "facts") if name in operands]
    of_groups = sum(x.size * x.dtype.itemsize for x in by_group)
    return launch(
        functools.partial(body, shape=shape),
        *(jnp.full((1,), group, jnp.int32), *operands.values()),
        name="cross_entropy_forward" if shape.forward else "cross_entropy_backward",
        made=[shape.array(name, jnp.float32) for name in results],
        # Cores process parts in parallel. Groups and tiles are processed in order.
        order=("parallel", "arbitrary", "arbitrary"),
        flops=(1 if shape.forward else 2) * 2 * elements * shape.hidden,
        transcendentals=elements,
        vmem=shape.vmem,
        unread=of_groups - of_groups * shape.grid[1] // shape.groups,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=shape.grid,
            in_specs=[shape.block(name) for name in names],
            out_specs=[shape.block(name) for name in results],
            scratch_shapes=scratch,
        ),
        input_output_aliases={len(operands): 1} if "so_far" in operands else {},
    )


def _forward_kernel(_: Any, *refs: Any, shape: Shape) -> None:
    """Writes the logits of a tile, and updates the statistics of softmax and loss."""
    rows, table, bias, labels, logits, out, kept = refs
    tile, first = _tile(table, shape), _first_piece(shape)
    starts = pl.program_id(2) == 0

    for start, size in shape.strips():
        at = pl.ds(start, size)
        scores = _dot(rows[at], tile, 1, 1) + bias[...]
        logits[at] = scores
        lanes = range(0, shape.tile, LANES)
        columns = [scores[:, lane : lane + LANES] for lane in lanes]
        before = jnp.where(starts, -jnp.inf, kept[0, at])
        largest = before
        for each in columns:
            largest = jnp.maximum(largest, each)
        total, picked = (jnp.where(starts, 0.0, kept[each, at]) for each in (1, 2))
        total *= jnp.exp(before - largest)
        ahead = labels[at] - first - jax.lax.broadcasted_iota(jnp.int32, before.shape, 1)
        for lane, each in zip(lanes, columns, strict=True):
            total += jnp.exp(each - largest)
            picked += jnp.where(ahead == lane, each, 0.0)
        kept[0, at], kept[1, at], kept[2, at] = largest, total, picked

    _write_at_the_end(kept, out, shape)


def _backward_kernel(_: Any, *refs: Any, shape: Shape) -> None:
    """Writes the gradients of table and bias for a tile, and adds to the gradient of rows.

    Both products use the gradient of the logits, which is computed once.
    """
    rows, table, logits, facts, *so_far, of_rows, of_table, of_bias, kept, slopes = refs
    tile, first = _tile(table, shape), _first_piece(shape)
    sums, starts = jnp.zeros(of_bias.shape, jnp.float32), pl.program_id(2) == 0
    for start, size in shape.strips():
        at = pl.ds(start, size)
        log_total, weight, label = (facts[at, pl.ds(fact, 1)] for fact in range(FACTS))
        shares = jnp.exp(logits[at] - log_total)
        piece = jax.lax.broadcasted_iota(jnp.int32, shares.shape, 1)
        is_label = piece == label.astype(jnp.int32) - first
        slope = (shares - jnp.where(is_label, 1.0, 0.0)) * weight
        sums += slope.sum(axis=0, keepdims=True)
        slope = slope.astype(slopes.dtype)
        slopes[at] = slope
        kept[at] = jnp.where(starts, 0.0, kept[at]) + _dot(slope, tile, 1, 0)
    of_bias[...] = sums
    of_tile = _dot(slopes[...], rows[...], 0, 0)
    of_table[...] = sum((each[...] for each in so_far), of_tile).astype(of_table.dtype)
    _write_at_the_end(kept, of_rows, shape)


def _first_piece(shape: Shape) -> Array:
    """Returns the index of the first piece in this grid step's tile."""
    return shape.tile_number(pl.program_id(0), pl.program_id(2)) * shape.tile


def _tile(table: Any, shape: Shape) -> Array:
    """Returns a tile with zeros after the end of the table, where memory may contain NaN."""
    tile = table[...]
    if shape.pieces % shape.tile == 0:
        return tile
    piece = _first_piece(shape) + jax.lax.broadcasted_iota(jnp.int32, tile.shape, 0)
    return jnp.where(piece < shape.pieces, tile, jnp.zeros_like(tile))


def _write_at_the_end(kept: Any, out: Any, shape: Shape) -> None:
    """Copies the results to HBM after the last tile. An output block would need two buffers."""
    part, group = pl.program_id(0), pl.program_id(1)

    @pl.when(pl.program_id(2) == shape.grid[2] - 1)
    def _write() -> None:
        pltpu.sync_copy(kept, out.at[part, group])


def _dot(a: Array, b: Array, axis_of_a: int, axis_of_b: int) -> Array:
    dimensions = (((axis_of_a,), (axis_of_b,)), ((), ()))
    return jax.lax.dot_general(
        a, b, dimensions, precision=precision_of(a.dtype), preferred_element_type=jnp.float32
    )
