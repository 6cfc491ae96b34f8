"""Disentangled attention in plain JAX (arXiv 2006.03654, section 3.1).

A score is q·k, plus the product of the query with a key of the distance (content to position), plus
the product of the key with a query of the distance (position to content). Each distance has a row
of a table. The products with all distances of a row of tokens are matrices [length, distances]. A
skew, which is a reshape, moves the product of each pair of tokens to its place.

Shape suffixes: B batch, L length, Q queries, H heads, K head columns, R rows of the table, E
distances of a row of tokens, 2 · L of them.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bert_jax.kernels.precision import precision_of
from bert_jax.model.xla_attention import ScoreTerms, xla_attention


class RelativeTable(NamedTuple):
    """Keys and queries of relative positions, [R, H, K] with biases. None: no such term."""

    keys: Array | None  # for content to position
    queries: Array | None  # for position to content


def relative_attention(
    q_BQHK: Float[Array, "batch queries heads head_dim"],
    k_BLHK: Float[Array, "batch length heads head_dim"],
    v_BLHK: Float[Array, "batch length heads head_dim"],
    segment_ids: Int[Array, "batch length"],
    table: RelativeTable,
    *,
    rows: np.ndarray,
    dropout_rate: float,
    dropout_key: Array | None,
    causal: bool = False,
    queries_BQ: Int[Array, "batch queries"] | None = None,
) -> Float[Array, "batch queries heads head_dim"]:
    """Returns attention whose scores depend on the distance of query and key.

    `rows` is `DebertaArchitecture.relative_rows`. The other arguments are as for `xla_attention`.
    """
    return xla_attention(
        q_BQHK,
        k_BLHK,
        v_BLHK,
        segment_ids,
        dropout_rate=dropout_rate,
        dropout_key=dropout_key,
        causal=causal,
        queries_BQ=queries_BQ,
        terms=relative_terms(table, rows),
    )


def relative_terms(table: RelativeTable, rows: np.ndarray) -> ScoreTerms:
    """Returns the terms of the scores that depend on the distance."""

    def add_up(q: Array, k: Array, queries_BQ: Array | None) -> Array:
        found = jnp.zeros((), jnp.float32)
        if table.keys is not None:
            found += _content_to_position(q, table.keys, rows, k.shape[2], queries_BQ)
        if table.queries is not None:
            length = k.shape[2]
            by_key_BHLQ = _skewed(_products(k, table.queries, rows, length, sign=1))
            if queries_BQ is not None:
                by_key_BHLQ = jnp.take_along_axis(by_key_BHLQ, queries_BQ[:, None, None], axis=-1)
            found += by_key_BHLQ.swapaxes(2, 3)
        return jnp.broadcast_to(found, (*q.shape[:3], k.shape[2]))

    return ScoreTerms(add_up, number=1 + sum(each is not None for each in table))


def _content_to_position(
    q_BHQK: Array, keys_RHK: Array, rows: np.ndarray, length: int, queries_BQ: Array | None
) -> Array:
    """Returns q · keys[distance], float32 [B, H, Q, L]."""
    products_BHQE = _products(q_BHQK, keys_RHK, rows, length, sign=-1)
    if queries_BQ is None:
        return _skewed(products_BHQE)
    places_BQL = length - 1 - queries_BQ[..., None] + jnp.arange(length)
    return jnp.take_along_axis(products_BHQE, places_BQL[:, None], axis=-1)


def _products(
    x_BHQK: Array, table_RHK: Array, rows: np.ndarray, length: int, *, sign: int
) -> Array:
    """Returns the products with the rows of all distances, float32 [B, H, Q, E].

    The distances times `sign` ascend from 1 − `length`.
    """
    distances = sign * (jnp.arange(2 * length) - (length - 1))
    table_EHK = table_RHK[jnp.asarray(rows)[distances + len(rows) // 2]]
    return jnp.einsum(
        "bhqk,ehk->bhqe",
        x_BHQK,
        table_EHK.astype(x_BHQK.dtype),
        precision=precision_of(x_BHQK.dtype),
        preferred_element_type=jnp.float32,
    )


def _skewed(x_BHLE: Array) -> Array:
    """Returns [B, H, L, L] with the element ``L − 1 − i + j`` of row i at place j."""
    *outer, length, width = x_BHLE.shape
    flat = x_BHLE.reshape(*outer, length * width)
    # Each row of the result starts one element earlier in its row than the row before.
    flat = flat[..., length - 1 : length - 1 + length * (width - 1)]
    return flat.reshape(*outer, length, width - 1)[..., :length]
