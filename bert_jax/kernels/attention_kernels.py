"""The attention kernels. Each invocation processes the rows, heads and queries of a block.

Scores are [keys, queries], with queries along lanes. So the reductions of the softmax combine whole
registers instead of the lanes of a register. The code applies each operation to all heads of a
stage before the next operation. This keeps the units busy: the operations of one head depend on
each other, and the compiler does not interleave heads.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bert_jax.kernels.attention_distances import (
    clear,
    distance_scores,
    distance_slopes,
    reversed_tokens,
)
from bert_jax.kernels.attention_products import beside, dot, lanes_of, where_inside
from bert_jax.kernels.attention_tiles import HIDDEN, Shape, Tile
from bert_jax.kernels.pallas_call import LANES
from bert_jax.kernels.random_bits import column_factors, kept, row_factors

Array = jax.Array
Head = tuple[int, int]  # indices of the row in the block, and of the head in the row

FROM_BASE_TWO: Final = math.log(2)  # the derivative of 2ˣ is ln 2 · 2ˣ


def scale(columns: int, *, terms: int = 0) -> float:
    """Returns the scale of queries for a softmax of base-2 exponentials, as in the hardware.

    `terms` is the number of terms of a score that depend on the distance.
    """
    return (columns * (1 + terms)) ** -0.5 * math.log2(math.e)


class Read(NamedTuple):
    """Operands of both kernels: refs to the blocks of `Shape.block`."""

    query_words: Any
    key_words: Any
    query_segments: Any
    key_segments: Any
    q: Any
    k: Any
    v: Any
    query_places: Any = None  # positions of queries in their row, if attention is causal
    key_table: Any = None  # keys of distances, see `attention_distances`
    query_table: Any = None  # queries of distances


def _split(refs: Any, shape: Shape) -> tuple[Read, Any]:
    """Returns the operands of both kernels, and the other refs."""
    optional = {
        "query_places": shape.causal,
        "key_table": shape.has_keys,
        "query_table": shape.has_queries,
    }
    names = [name for name in Read._fields if optional.get(name, True)]
    return Read(**dict(zip(names, refs[: len(names)], strict=True))), refs[len(names) :]


def forward_kernel(*refs: Any, shape: Shape) -> None:
    """Writes the attended values and the logarithms of the softmax sums.

    Sums over values stay [columns, queries] until the end. With 64 columns along 128 lanes, they
    would take twice the work.
    """
    shape.run_tile(functools.partial(_forward, refs, shape))


def _forward(refs: Any, shape: Shape, tile: Tile) -> None:
    """The forward kernel for a tile of queries."""
    read, (out, logs) = _split(refs, shape)
    attended: dict[int, list[Array]] = {row: [] for row in range(shape.rows)}
    for heads in shape.stages():
        keep = [_keep(read, head, shape, tile) for head in heads]
        scores = _all_scores(read, heads, shape, tile)
        largest = [each.max(axis=0, keepdims=True) for each in scores]
        weights = [jnp.exp2(each - most) for each, most in zip(scores, largest, strict=True)]
        log_sums = [jnp.log2(each.sum(axis=0, keepdims=True)) for each in weights]
        weights = [_where(each, of) for each, of in zip(keep, weights, strict=True)]
        v_WL = {row: jnp.transpose(read.v[row, : tile.keys]) for row, _ in heads}
        # Divide the sum over values instead of every weight. Multiplying by a power of two is
        # cheaper than an exact division.
        inverse = [jnp.exp2(-math.log2(1 - shape.rate) - each) for each in log_sums]
        for at, (row, head) in enumerate(heads):
            first = head * shape.columns
            v_KL = v_WL[row][first : first + shape.columns]
            attended[row].append(dot(v_KL, weights[at].astype(v_KL.dtype), 1, 0) * inverse[at])
            logs[row, 0, pl.ds(head, 1), :] = largest[at] + log_sums[at]
    for row, of_heads in attended.items():
        out[row] = jnp.transpose(jnp.concatenate(of_heads)).astype(out.dtype)


def backward_kernel(*refs: Any, shape: Shape) -> None:
    """Writes the gradients of queries, keys, values, biases and tables."""
    if shape.terms:
        _, others = _split(refs, shape)
        of_tables = others[shape.terms + 4]
        is_first = (pl.program_id(1) == 0) & (pl.program_id(2) == 0)
        pl.when(is_first)(functools.partial(clear, of_tables))
    shape.run_tile(functools.partial(_backward, refs, shape))


def _backward(refs: Any, shape: Shape, tile: Tile) -> None:
    """The backward kernel for a tile of queries."""
    read, others = _split(refs, shape)
    turned, (out, logs, gradient, *made) = others[: shape.terms], others[shape.terms :]
    slopes_of_qkv, others = _slopes(made, shape, tile)
    of_tables, (sums, *running) = others[: shape.terms > 0], others[shape.terms > 0 :]
    if tile.number == 0:  # later tiles read more keys
        running[0][...] = jnp.zeros_like(running[0])
    q, k, v = read.q, read.k, read.v
    centred = [centred_keys(k[row, : tile.keys]) for row in range(shape.rows)]
    parts: dict[int, tuple[list[Array], ...]] = {row: ([], [], []) for row in range(shape.rows)}
    for heads in shape.stages():
        keep = [_keep(read, head, shape, tile) for head in heads]
        scale_up = 1 / (1 - shape.rate)
        g_LW = {
            row: (gradient[row].astype(jnp.float32) * scale_up).astype(gradient.dtype)
            for row, _ in heads
        }
        taken_off = _taken_off(out, gradient, heads, shape)
        scores = _all_scores(read, heads, shape, tile)
        weights = [
            jnp.exp2(each - logs[row, 0, pl.ds(head, 1), :])
            for each, (row, head) in zip(scores, heads, strict=True)
        ]
        slopes = [
            dot(
                v[row, : tile.keys],
                where_inside(head, shape, g_LW[row], jnp.zeros_like(g_LW[row])),
                1,
                1,
            )
            for row, head in heads
        ]
        kept_weights = [_where(each, of) for each, of in zip(keep, weights, strict=True)]
        slopes = [_where(each, of) for each, of in zip(keep, slopes, strict=True)]
        slopes = [
            (weight * (slope - off)).astype(q.dtype)
            for weight, slope, off in zip(weights, slopes, taken_off, strict=True)
        ]
        x_of_three = {row: (centred[row], q[row], g_LW[row]) for row, _ in heads}
        if shape.streams_columns:
            x_of_three = {row: tuple(map(jnp.transpose, x)) for row, x in x_of_three.items()}
        slopes_of_q, more = slopes, None
        if shape.terms:
            q_WT = {row: x[1] for row, x in x_of_three.items()}
            slopes_of_q, *more = distance_slopes(
                slopes, read.k, q_WT, (*turned, *of_tables), heads, shape, tile
            )
        for index, (row, head) in enumerate(heads):
            of_three = slopes_of_q[index], slopes[index], kept_weights[index].astype(q.dtype)
            for at, (each, x) in enumerate(zip(of_three, x_of_three[row], strict=True)):
                of_head = _of_head(each, x, head, shape, over=min(at, 1))
                if more and at < 2:
                    of_head += more[at][index]
                parts[row][at].append(of_head)
    # The operand `q` is already scaled, so only its own gradient needs `scale`.
    factors = (scale(shape.columns, terms=shape.terms) * FROM_BASE_TWO, FROM_BASE_TWO, 1.0)
    for row, of_three in parts.items():
        for at, (of_heads, factor) in enumerate(zip(of_three, factors, strict=True)):
            of_one = of_tile = _joined(of_heads, shape) * factor
            if at and running:
                place = at - 1, row, slice(0, tile.keys)
                of_one = running[0][place] = _so_far(running[0], place, of_tile, tile)
            slopes, place, where = slopes_of_qkv[at]
            narrow = of_one.astype(slopes.dtype)
            if at == 0 and shape.terms:
                narrow = reversed_tokens(narrow).astype(slopes.dtype)
            slopes[place, row, where] = narrow
            of_bias = of_tile.sum(axis=0, keepdims=True)
            sums[at, row] = _so_far(sums, (at, row), of_bias, tile) if running else of_bias


def _of_head(by_pair: Array, x: Array, head: int, shape: Shape, *, over: int) -> Array:
    """Returns the product of [keys, queries] and `x`, summed over keys (0) or queries (1).

    If `shape.streams_columns`, `x` is [W, tokens], and the result has only the head's columns,
    [columns, tokens]. Otherwise `x` is [tokens, W], and the result has the columns of all heads.
    """
    if not shape.streams_columns:
        return dot(by_pair, x, over, 0)
    first = head * shape.columns
    return dot(x[first : first + shape.columns], by_pair, 1, over)


def _joined(of_heads: Sequence[Array], shape: Shape) -> Array:
    """Returns the results of `_of_head` for all heads of a row as one array, [tokens, W]."""
    if shape.streams_columns:
        return jnp.transpose(jnp.concatenate(of_heads))
    total = of_heads[0]
    for head, found in enumerate(of_heads):
        total = jnp.where(lanes_of(head, shape), found, total)
    return total


def _so_far(running: Any, at: tuple[Any, ...], of_tile: Array, tile: Tile) -> Array:
    """Adds this tile to the sum over earlier tiles of the row."""
    return of_tile + jnp.where(tile.place == 0, 0.0, running[at])


def _slopes(
    made: Sequence[Any], shape: Shape, tile: Tile
) -> tuple[list[tuple[Any, int, Any]], Sequence[Any]]:
    """Returns (array, index, tokens) for the gradients of q, k and v, and the remaining refs.

    If one array has all three gradients, its block has whole rows. The gradients of a tile of
    queries are then a slice of a row.
    """
    seen = slice(0, tile.keys)
    if shape.queries != shape.length:
        of_q, of_kv, *others = made
        return [(of_q, 0, slice(None)), (of_kv, 0, seen), (of_kv, 1, seen)], others
    of_qkv, *others = made
    own = slice(None)
    if shape.tiles > 1:
        own = pl.ds(pl.multiple_of(tile.place * shape.tile, shape.tile), shape.tile)
    return [(of_qkv, 0, own), (of_qkv, 1, seen), (of_qkv, 2, seen)], others


def _all_scores(read: Read, heads: Sequence[Head], shape: Shape, tile: Tile) -> list[Array]:
    """Returns the masked scores of the heads of a stage, [keys, queries] each."""
    found = [_scores(read, head, shape, tile) for head in heads]
    for terms in distance_scores(read, heads, shape, tile):
        found = [each + term for each, term in zip(found, terms, strict=True)]
    return found


def _scores(read: Read, head: Head, shape: Shape, tile: Tile) -> Array:
    """Returns the masked scores of a head, [keys, queries]."""
    row, number = head
    of_keys, of_queries = (
        beside(x[row, :count], segments[row, :count], number, shape)
        for x, segments, count in (
            (read.k, read.key_segments, tile.keys),
            (read.q, read.query_segments, shape.tile),
        )
    )
    scores = dot(of_keys, of_queries, 1, 1)
    if not shape.causal:
        return scores
    places = jax.lax.broadcasted_iota(jnp.int32, scores.shape, 0)
    return jnp.where(places <= read.query_places[row], scores, HIDDEN)


def centred_keys(k_LW: Array) -> Array:
    """Subtracts from keys [..., L, W] their mean over the tokens of a row.

    The gradients of a query's scores sum to zero over the keys, so the mean does not change the
    gradient of the query. But rounded gradients of scores do not sum to zero exactly, and a large
    mean would multiply this error.
    """
    wide = k_LW.astype(jnp.float32)
    mean = wide.sum(axis=-2, keepdims=True) * (1 / wide.shape[-2])
    return (wide - mean).astype(k_LW.dtype)


def _taken_off(out: Any, gradient: Any, heads: Any, shape: Shape) -> list[Array]:
    """Returns Σ weight · gradient for each query and head, a term of the softmax gradient."""
    product_WL = {
        row: jnp.transpose(gradient[row].astype(jnp.float32) * out[row].astype(jnp.float32))
        for row, _ in heads
    }
    firsts = ((row, head * shape.columns) for row, head in heads)
    return [
        product_WL[row][first : first + shape.columns].sum(axis=0, keepdims=True)
        for row, first in firsts
    ]


def _across(x: Array, tile: int) -> Array:
    """Resizes [keys, 128], whose lanes are equal, to [keys, queries of a tile]."""
    return x[:, :tile] if tile < LANES else jnp.concatenate([x] * (tile // LANES), axis=1)


def _where(keep: Array | None, x: Array) -> Array:
    return x if keep is None else jnp.where(keep, x, 0.0)


def _keep(read: Read, head: Head, shape: Shape, tile: Tile) -> Array | None:
    """Returns the dropout mask, [keys, queries], or None without dropout.

    Queries are the rows, and keys the columns of the hash in `random_bits`. The words of keys are
    broadcast to whole registers before the transpose.
    """
    if not shape.rate:
        return None
    row, number = head
    place = pl.ds(tile.first_head + number, 1)
    of_queries = read.query_words[row, place]
    of_keys = read.key_words[row, place, : tile.keys]
    spread = jnp.transpose(jnp.broadcast_to(of_keys, (LANES, tile.keys)))
    columns = column_factors(spread, shape.rate)
    wide = (_across(each, shape.tile) for each in columns)
    return kept(row_factors(of_queries), tuple(wide))
