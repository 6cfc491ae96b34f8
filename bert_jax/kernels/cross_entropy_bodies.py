"""The kernels of the masked pieces' loss themselves: what a step does with its tile of the table.

Maxima and sums are kept for every lane, and joined outside: in a step nothing crosses lanes.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.kernels.cross_entropy_shape import FACTS, Shape
from bert_jax.kernels.registers import LANES

Array = jax.Array


def forward_kernel(_: Any, *refs: Any, shape: Shape) -> None:
    """Writes a tile's logits, and adds what they are to softmax and loss."""
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


def backward_kernel(_: Any, *refs: Any, shape: Shape) -> None:
    """Writes a tile's gradients, and adds to that of the rows.

    Both products have the same factor, which is made once.
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
    """Returns the first piece of this step's tile."""
    return shape.tile_number(pl.program_id(0), pl.program_id(2)) * shape.tile


def _tile(table: Any, shape: Shape) -> Array:
    """Returns the tile, with zeros behind the table's end: whatever lies there, even NaN."""
    tile = table[...]
    if shape.pieces % shape.tile == 0:
        return tile
    piece = _first_piece(shape) + jax.lax.broadcasted_iota(jnp.int32, tile.shape, 0)
    return jnp.where(piece < shape.pieces, tile, jnp.zeros_like(tile))


def _write_at_the_end(kept: Any, out: Any, shape: Shape) -> None:
    """Copies what was kept over all tiles of a part; as a block it would be in VMEM twice."""
    part, group = pl.program_id(0), pl.program_id(1)

    @pl.when(pl.program_id(2) == shape.grid[2] - 1)
    def _write() -> None:
        pltpu.sync_copy(kept, out.at[part, group])


def _dot(a: Array, b: Array, axis_of_a: int, axis_of_b: int) -> Array:
    dimensions = (((axis_of_a,), (axis_of_b,)), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=jnp.float32)
