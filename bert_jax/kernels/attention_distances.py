"""Parts of the attention kernels for scores that depend on the distance of query and key.

A score has up to two more terms: the product of the query with a key of the distance, and the
product of the key with a query of the distance. Tables have a row for each distance. The products
of a block of 128 tokens with a window of a table are one matrix, [tokens, distances]. A row of it
has the terms of a token in the right order, but each row starts one place later than the row
before. A rotation by the number of the row, which the hardware has, moves them to their places.

The gradients take the way back. A rotation only goes to the right, so the queries come in reversed
order there.

In tables, the key's position minus the query's ascends from minus the padded length on, except in
`Read.query_table`, where the query's position minus the key's ascends.
"""

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.kernels.attention_products import dot, where_inside
from bert_jax.kernels.attention_tiles import Shape, Tile
from bert_jax.kernels.pallas_call import LANES

Array = jax.Array
_Heads = Sequence[tuple[int, int]]


def distance_scores(read: Any, heads: _Heads, shape: Shape, tile: Tile) -> Iterator[list[Array]]:
    """Yields the terms of all heads that depend on the distance, [keys, queries] each."""
    first = shape.first_query(tile)
    if shape.has_keys:
        q_TW = {pair: _of_head(read.q[pair[0]], pair[1], shape) for pair in heads}
        firsts = range(0, shape.tile, LANES)
        products = (
            _product(q_TW[pair], at, read.key_table, shape.padded - LANES - first - at, tile.keys)
            for pair in heads
            for at in firsts
        )
        found = _rotated(products, shape, turn=True)
        yield [jnp.concatenate([next(found) for _ in firsts], axis=1) for _ in heads]
    if shape.has_queries:
        k_LW = {pair: _of_head(read.k[pair[0], : tile.keys], pair[1], shape) for pair in heads}
        firsts = range(0, tile.keys, LANES)
        products = (
            _product(
                k_LW[pair], at, read.query_table, shape.padded - LANES + first - at, shape.tile
            )
            for pair in heads
            for at in firsts
        )
        found = _rotated(products, shape)
        yield [jnp.concatenate([next(found) for _ in firsts]) for _ in heads]


def _product(x_TW: Array, at: int, table: Any, first: Any, others: int) -> Array:
    """Returns the products of 128 tokens with the distances to `others`, [tokens, distances]."""
    return dot(x_TW[at : at + LANES], table[_window(first, others)], 1, 1)


def distance_slopes(
    slopes: Sequence[Array],
    keys: Any,
    q_WT: Mapping[int, Array],
    tables: Sequence[Any],
    heads: _Heads,
    shape: Shape,
    tile: Tile,
) -> tuple[list[Array], list[Array], list[Array]]:
    """Returns gradients of queries and keys, and adds the gradients of the tables.

    Args:
        slopes: gradients of the scores by head, [keys, queries].
        keys: ref to the keys of a block.
        q_WT: queries by row, [W, queries].
        tables: refs to the transposed tables, then to their gradients.
        heads: heads of the stage.
        shape: sizes of the kernel.
        tile: the tile of queries.

    Returns:
        By head, with queries in reversed order: `slopes`, and the gradients of queries, [columns,
        queries]. Then the gradients of keys, [columns, keys].
    """
    *turned, of_tables = tables
    dtype = slopes[0].dtype
    wide = [_reversed_lanes(each) for each in slopes]
    k_WL = {row: jnp.transpose(keys[row, : tile.keys]) for row in q_WT}
    q_WT = {row: _reversed_lanes(each).astype(dtype) for row, each in q_WT.items()}
    start = shape.padded - shape.tile - shape.first_query(tile)
    found: dict[bool, list[Array]] = {}
    for which, by_query in enumerate([True] * shape.has_keys + [False] * shape.has_queries):
        x_WT, others = (q_WT, tile.keys) if by_query else (k_WL, shape.tile)
        firsts = range(0, shape.tile if by_query else tile.keys, LANES)
        blocks = (
            each[:, at : at + LANES] if by_query else each[at : at + LANES]
            for each in wide
            for at in firsts
        )
        moved = _rotated_back(blocks, shape, turn=by_query)
        found[by_query] = []
        for row, head in heads:
            columns = slice(head * shape.columns, (head + 1) * shape.columns)
            parts = []
            for at in firsts:
                by_distance = next(moved).astype(dtype)
                places = _window(start + at, others)
                parts.append(dot(turned[which][columns, places], by_distance, 1, 1))
                of_block = dot(x_WT[row][columns, at : at + LANES], by_distance, 1, 0)
                of_tables[0, which, columns, places] += of_block
            found[by_query].append(jnp.concatenate(parts, axis=1))
    none = [jnp.zeros((), jnp.float32)] * len(heads)
    return [each.astype(dtype) for each in wide], found.get(True, none), found.get(False, none)


def clear(ref: Any) -> None:
    """Writes zeros."""
    ref[...] = jnp.zeros_like(ref)


def reversed_tokens(x: Array) -> Array:
    """Returns an array [tokens, lanes] with its tokens in reversed order, exact, in float32."""
    firsts = reversed(range(0, len(x), LANES))
    order = _reversing(x.dtype)
    return jnp.concatenate([dot(order, x[at : at + LANES], 1, 0) for at in firsts])


def _reversed_lanes(x: Array) -> Array:
    """Returns an array [rows, tokens] with its tokens in reversed order, exact, in float32."""
    firsts = reversed(range(0, x.shape[1], LANES))
    order = _reversing(x.dtype)
    return jnp.concatenate([dot(x[:, at : at + LANES], order, 1, 0) for at in firsts], axis=1)


def _reversing(dtype: Any) -> Array:
    """Returns the matrix that reverses the order of 128 tokens."""
    row, lane = _places()
    return jnp.where(row + lane == LANES - 1, 1.0, 0.0).astype(dtype)


def _of_head(x: Array, head: int, shape: Shape) -> Array:
    return where_inside(head, shape, x, jnp.zeros_like(x)) if shape.group > 1 else x


def _window(first: Any, tokens: int) -> Any:
    """Returns the distances of a block of 128 tokens to `tokens` others."""
    count = tokens + LANES
    return pl.ds(first if isinstance(first, int) else pl.multiple_of(first, LANES), count)


def _rotated(blocks: Iterator[Array], shape: Shape, *, turn: bool = False) -> Iterator[Array]:
    """Yields blocks [128, distances] with each row rotated by its number, without 128 places.

    `turn` transposes the result.
    """
    row, lane = _places()
    for words in _packed(blocks, shape):
        squares = _squares(words)
        moved = [
            _roll(jnp.where(row + lane < LANES, after, before), 0)
            for before, after in itertools.pairwise(squares)
        ]
        kept = jnp.concatenate(moved, axis=1)
        yield from _unpacked(jnp.transpose(kept) if turn else kept, shape)


def _rotated_back(blocks: Iterator[Array], shape: Shape, *, turn: bool) -> Iterator[Array]:
    """Yields blocks [128, tokens] by distance, [128, distances]. `turn` transposes them first."""
    row, lane = _places()
    for words in _packed(blocks, shape):
        rolled = [_roll(each, 1) for each in _squares(jnp.transpose(words) if turn else words)]
        empty = jnp.zeros_like(rolled[0])
        moved = [
            jnp.where(row < lane, after, before)
            for before, after in itertools.pairwise([empty, *rolled, empty])
        ]
        yield from _unpacked(jnp.concatenate(moved, axis=1), shape)


def _squares(x: Array) -> list[Array]:
    """Returns the blocks [128, 128] of an array [128, lanes]."""
    return [x[:, at : at + LANES] for at in range(0, x.shape[1], LANES)]


def _places() -> tuple[Array, Array]:
    """Returns the rows and lanes of a block [128, 128]."""
    row, lane = (jax.lax.broadcasted_iota(jnp.int32, (LANES, LANES), axis) for axis in (0, 1))
    return row, lane


def _roll(x: Array, more: int) -> Array:
    """Returns a block [128, 128] with each row rotated by its number and `more`.

    The Pallas interpreter would compile an operation for each row, which takes minutes.
    """

    def gathered(x: Array) -> Array:
        row, lane = _places()
        return jnp.take_along_axis(x, (lane - row - more) % LANES, axis=1)

    rotated = functools.partial(pltpu.roll, shift=more, axis=1, stride=1, stride_axis=0)
    found: Array = jax.lax.platform_dependent(x, mosaic=rotated, default=gathered)
    return found


def _packed(blocks: Iterator[Array], shape: Shape) -> Iterator[Array]:
    """Yields float32 blocks; in bfloat16, two rounded blocks in one block of words.

    So a rotation moves two numbers at once.
    """
    if shape.itemsize != 2:
        yield from blocks
        return
    for one in blocks:
        yield jax.lax.platform_dependent(
            one,
            next(blocks, one),
            mosaic=lambda *pair: pltpu.pack_elementwise(pair, packed_dtype=jnp.bfloat16),
            default=lambda *pair: jax.lax.bitcast_convert_type(
                jnp.stack(pair, axis=-1).astype(jnp.bfloat16), jnp.uint32
            ),
        )


def _unpacked(moved: Array, shape: Shape) -> list[Array]:
    """Returns the float32 blocks in a result of `_packed`."""
    return [moved] if shape.itemsize != 2 else [_half(moved, at) for at in range(2)]


def _half(words: Array, at: int) -> Array:
    """Returns one of the two numbers of each word, in float32."""
    found: Array = jax.lax.platform_dependent(
        words,
        mosaic=lambda x: pltpu.unpack_elementwise(
            x, index=at, packed_dtype=jnp.bfloat16, unpacked_dtype=jnp.float32
        ),
        default=lambda x: jax.lax.bitcast_convert_type(x, jnp.bfloat16)[..., at].astype(
            jnp.float32
        ),
    )
    return found
