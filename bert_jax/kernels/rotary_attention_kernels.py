"""The kernels of rotary attention: one run works on a row, a group of heads and a tile of queries.

Scores are [keys, queries], as in `attention_kernels`. The lanes of the other heads hold segments,
so that the product which makes the scores masks them as well.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.kernels.attention_kernels import FROM_BASE_TWO, scale
from bert_jax.kernels.attention_products import beside, dot, lanes_of
from bert_jax.kernels.attention_tiles import HIDDEN
from bert_jax.kernels.rotary_attention_tiles import RotaryShape

Array = jax.Array


class Read(NamedTuple):
    """Operands of both kernels: refs to the blocks of a row and a group of heads."""

    cosine: Any  # float32 [keys of the row, width]
    sine: Any  # of the second half of a head's columns; the first half is negative
    band: Any  # 0 where a key is in the window of a query, else very negative
    query_segments: Any
    key_segments: Any
    q: Any
    k: Any
    v: Any


_READ = len(Read._fields)


def forward_kernel(*refs: Any, shape: RotaryShape) -> None:
    """Writes a block of attended values, and the logarithms of the sums of exponentials."""
    read, (out, logs, keys) = Read(*refs[:_READ]), refs[_READ:]
    _rotate_keys(read, keys, shape)
    q_rotated = _rotated_queries(read, shape)
    order = shape.order()
    for pairs in shape.stages():
        q = {tile: q_rotated[shape.rows_of(tile)] for tile, _ in pairs}

        def chunk(at: Any, so_far: Any, pairs: Any = pairs, q: Any = q) -> Any:
            """Adds a chunk of keys to the largest scores, sums and values of every pair."""
            where = {tile: shape.keys_of(tile, at) for tile in q}
            scores = _scores(read, keys, q, where, pairs, shape, order)
            v_WC = {tile: jnp.transpose(read.v[0, where[tile]]) for tile in q}
            largest = [each.max(axis=0, keepdims=True) for each in scores]
            if shape.chunks > 1:
                before = (each for each, _, _ in so_far)
                largest = [jnp.maximum(*each) for each in zip(before, largest, strict=True)]
            weights = [jnp.exp2(each - most) for each, most in zip(scores, largest, strict=True)]
            sums = [each.sum(axis=0, keepdims=True) for each in weights]
            products = [
                dot(shape.columns_of(head, v_WC[tile]), of.astype(keys.dtype), 1, 0)
                for (tile, head), of in zip(pairs, weights, strict=True)
            ]
            if shape.chunks > 1:
                shrunk = [
                    jnp.exp2(before[0] - most) for before, most in zip(so_far, largest, strict=True)
                ]
                for at, (less, before) in enumerate(zip(shrunk, so_far, strict=True)):
                    sums[at] += before[1] * less
                    products[at] += before[2] * less
            return tuple(zip(largest, sums, products, strict=True))

        done = _each(shape.chunks_to_read(), chunk, (shape.beginning(),) * len(pairs))
        attended: dict[int, list[Array]] = {}
        for (tile, head), (most, total, product) in zip(pairs, done, strict=True):
            logs[0, 0, pl.ds(head, 1), shape.rows_of(tile)] = most + jnp.log2(total)
            attended.setdefault(tile, []).append(product * (1 / total))
        for tile, of_heads in attended.items():
            out[0, shape.rows_of(tile)] = jnp.transpose(jnp.concatenate(of_heads)).astype(out.dtype)


def backward_kernel(*refs: Any, shape: RotaryShape) -> None:
    """Writes the gradients of a block's queries, and at the last block of keys and values."""
    read = Read(*refs[:_READ])
    out, logs, gradient, found, keys, of_keys, of_values = refs[_READ:]
    _rotate_keys(read, keys, shape)
    q_rotated = _rotated_queries(read, shape)
    order = shape.order()

    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        of_keys[...] = jnp.zeros_like(of_keys)
        of_values[...] = jnp.zeros_like(of_values)

    for pairs in shape.stages():
        tiles = sorted({tile for tile, _ in pairs})
        q = {tile: q_rotated[shape.rows_of(tile)] for tile in tiles}
        g = {tile: gradient[0, shape.rows_of(tile)] for tile in tiles}
        chunk = functools.partial(
            _backward_chunk,
            read=read,
            written=(logs, keys, of_keys, of_values),
            queries=(q, g),
            of_pairs=_of_pairs(out, g, pairs, shape),
            pairs=pairs,
            shape=shape,
            order=order,
        )
        zeros = jnp.zeros((shape.width, shape.tile), jnp.float32)
        total = _each(shape.chunks_to_read(), chunk, (zeros,) * len(tiles))
        for tile, of_queries in zip(tiles, total, strict=True):
            of_queries = jnp.transpose(of_queries) * (scale(shape.columns) * FROM_BASE_TWO)
            back = _turned(of_queries, *_turn(read, shape.tokens_of(tile)), shape=shape, back=True)
            found[0, 0, shape.tokens_of(tile)] = back.astype(found.dtype)

    @pl.when(pl.program_id(2) == shape.blocks - 1)
    def _() -> None:
        def part(at: Any, _: None) -> None:
            where = shape.part(at)
            slope = of_keys[where] * FROM_BASE_TWO
            back = _turned(slope, *_turn(read, where), shape=shape, back=True)
            found[1, 0, where] = back.astype(found.dtype)
            found[2, 0, where] = of_values[where].astype(found.dtype)

        _each(shape.parts, part, None)


def _of_pairs(
    out: Any, g: dict[int, Array], pairs: Sequence[tuple[int, int]], shape: RotaryShape
) -> tuple[list[Array], list[Array]]:
    """Returns, by pair, the sums of gradient times output over columns, and the gradient.

    The sums are [1, queries]. The gradient is zero in the lanes of other heads.
    """
    product_WT = {
        tile: jnp.transpose(
            each.astype(jnp.float32) * out[0, shape.rows_of(tile)].astype(jnp.float32)
        )
        for tile, each in g.items()
    }
    taken_off = [
        shape.columns_of(head, product_WT[tile]).sum(axis=0, keepdims=True) for tile, head in pairs
    ]
    g_of_head = [
        jnp.where(lanes_of(head, shape), g[tile], jnp.zeros_like(g[tile])) for tile, head in pairs
    ]
    return taken_off, g_of_head


def _backward_chunk(
    at: Any,
    so_far: tuple[Array, ...],
    *,
    read: Read,
    written: tuple[Any, ...],
    queries: tuple[dict[int, Array], dict[int, Array]],
    of_pairs: tuple[Sequence[Array], Sequence[Array]],
    pairs: Sequence[tuple[int, int]],
    shape: RotaryShape,
    order: Array | None,
) -> tuple[Array, ...]:
    """Adds a chunk's part to the gradients of queries, keys and values.

    `queries` are the rotated queries and their gradients, by tile. The gradients of queries so far,
    [columns, queries], are carried. The gradients of keys and values are in VMEM.
    """
    (q, g), (taken_off, g_of_head) = queries, of_pairs
    logs, keys, of_keys, of_values = written
    where = {tile: shape.keys_of(tile, at) for tile in q}
    scores = _scores(read, keys, q, where, pairs, shape, order)
    weights = [
        jnp.exp2(each - logs[0, 0, pl.ds(head, 1), shape.rows_of(tile)])
        for each, (tile, head) in zip(scores, pairs, strict=True)
    ]
    slopes = [
        dot(read.v[0, where[tile]], each, 1, 1)
        for each, (tile, _) in zip(g_of_head, pairs, strict=True)
    ]
    slopes = [
        (weight * (slope - off)).astype(keys.dtype)
        for weight, slope, off in zip(weights, slopes, taken_off, strict=True)
    ]
    # [columns, queries]: half the work of products with whole registers of columns.
    k_WC = {tile: jnp.transpose(keys[where[tile]]) for tile in q}
    of_queries: dict[int, list[Array]] = {tile: [] for tile in q}
    for (tile, head), slope in zip(pairs, slopes, strict=True):
        of_queries[tile].append(dot(shape.columns_of(head, k_WC[tile]), slope, 1, 0))
    for by, others, total in ((slopes, q, of_keys), (weights, g, of_values)):
        narrow = [each.astype(keys.dtype) for each in by]
        for tile, product in _summed(narrow, others, pairs, shape).items():
            total[where[tile]] += product
    return tuple(
        before + jnp.concatenate(each)
        for before, each in zip(so_far, of_queries.values(), strict=True)
    )


def _summed(
    by_pair: Sequence[Array],
    of_queries: dict[int, Array],
    pairs: Sequence[tuple[int, int]],
    shape: RotaryShape,
) -> dict[int, Array]:
    """Returns the sum over queries of [keys, queries] times [queries, width], by tile."""
    found: dict[int, Array] = {}
    if shape.window is not None:
        for (tile, head), each in zip(pairs, by_pair, strict=True):
            new = dot(each, of_queries[tile], 1, 0)
            found[tile] = jnp.where(lanes_of(head, shape), new, found.get(tile, new))
        return found
    # Half the work, for as many transposes as there are keys: too many of them in a window.
    turned = {tile: jnp.transpose(each) for tile, each in of_queries.items()}
    of_heads: dict[int, list[Array]] = {tile: [] for tile in of_queries}
    for (tile, head), each in zip(pairs, by_pair, strict=True):
        of_heads[tile].append(dot(shape.columns_of(head, turned[tile]), each, 1, 1))
    return {tile: jnp.transpose(jnp.concatenate(each)) for tile, each in of_heads.items()}


def _each(count: Any, body: Any, carried: Any) -> Any:
    """Returns what is carried through a loop; one trip is no loop."""
    if isinstance(count, int) and count == 1:
        return body(0, carried)
    return jax.lax.fori_loop(0, count, body, carried)


def _rotate_keys(read: Read, keys: Any, shape: RotaryShape) -> None:
    """Rotates the keys of a row once, before its first block of queries."""

    @pl.when(pl.program_id(2) == 0)
    def _() -> None:
        def part(at: Any, _: None) -> None:
            where = shape.part(at)
            wide = read.k[0, where].astype(jnp.float32)
            keys[where] = _turned(wide, *_turn(read, where), shape=shape).astype(keys.dtype)

        _each(shape.parts, part, None)


def _rotated_queries(read: Read, shape: RotaryShape) -> Array:
    """Returns a block of queries, rotated and scaled."""
    wide = read.q[0].astype(jnp.float32) * scale(shape.columns)
    turned = _turned(wide, *_turn(read, shape.block_of_row()), shape=shape)
    return turned.astype(read.q.dtype)


def _turn(read: Read, where: Any) -> tuple[Array, Array]:
    return read.cosine[where], read.sine[where]


def _turned(
    x: Array, cosine: Array, sine: Array, *, shape: RotaryShape, back: bool = False
) -> Array:
    """Returns float32 [tokens, width] rotated; `back` rotates the other way."""
    half = shape.columns // 2
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, shape.width), 1)
    is_first = lane % shape.columns < half
    partner = jnp.where(is_first, pltpu.roll(x, shape.width - half, 1), pltpu.roll(x, half, 1))
    across = partner * sine
    return x * cosine - across if back else x * cosine + across


def _scores(
    read: Read,
    keys: Any,
    q: dict[int, Array],
    where: dict[int, Any],
    pairs: Sequence[tuple[int, int]],
    shape: RotaryShape,
    order: Array | None,
) -> list[Array]:
    """Returns the scores of pairs of a tile and a head, [keys of the chunk, queries]."""
    found = []
    for tile, head in pairs:
        of_keys = beside(keys[where[tile]], read.key_segments[0, where[tile]], head, shape)
        segments = read.query_segments[0, shape.rows_of(tile)]
        found.append(dot(of_keys, beside(q[tile], segments, head, shape), 1, 1))
    if shape.window is None:
        if order is None:
            return found
        return [
            jnp.where(order >= where[tile].start, each, HIDDEN)
            for each, (tile, _) in zip(found, pairs, strict=True)
        ]
    return [
        each + read.band[shape.band_of(tile)] for each, (tile, _) in zip(found, pairs, strict=True)
    ]
