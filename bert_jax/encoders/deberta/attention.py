"""DeBERTa's self-attention: projections of tokens and of relative positions."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.encoders.deberta.relative_attention import (
    RelativeTable,
    relative_attention,
    relative_terms,
)
from bert_jax.encoders.deberta.section import DebertaArchitecture
from bert_jax.kernels.distances import Distances, by_distance
from bert_jax.kernels.precision import precision_of
from bert_jax.model.attention import SelfAttention
from bert_jax.model.dropout import TileFactors, drop, tile_factors
from bert_jax.model.layers import Dense, gather_positions, placed
from bert_jax.model.row_key import batch_key, fold_in
from bert_jax.model.section import Execution
from bert_jax.model.xla_attention import Scores, attention_scores
from bert_jax.parallel.sharding_rules import constrain


class Seen(NamedTuple):
    """What the attention of every layer reads beside the states."""

    segment_ids: Int[Array, "batch length"]
    table_RD: Float[Array, "rows hidden"]  # relative positions
    table_PD: Float[Array, "positions hidden"] | None = None  # absolute ones, of a decoder
    position_ids: Int[Array, "batch length"] | None = None  # None: 0 to length − 1

    def absolute(self, queries_BQ: Int[Array, "batch queries"]) -> Array:
        """Returns the embeddings of the queries' absolute positions, [B, Q, D]."""
        assert self.table_PD is not None
        if self.position_ids is None:
            return self.table_PD[queries_BQ]
        return self.table_PD[jnp.take_along_axis(self.position_ids, queries_BQ, axis=1)]


class DisentangledDropout(NamedTuple):
    """Dropout of attention. An entry without dropout is None."""

    weights: Any  # of `SelfAttention.dropout_of`
    table: TileFactors | None  # of the table of relative positions


class DisentangledAttention(SelfAttention):
    """Self-attention whose scores depend on the distance of two tokens (arXiv 2006.03654)."""

    def __init__(
        self, *, architecture: DebertaArchitecture, execution: Execution, causal: bool
    ) -> None:
        parts: Any = {"architecture": architecture, "execution": execution}
        super().__init__(**parts, causal=causal)
        if not architecture.share_att_key:
            width, heads = architecture.hidden_size, architecture.num_attention_heads
            shape, axes = (width, heads, architecture.head_dim), ("embed", "heads", "head_dim")
            if "c2p" in architecture.pos_att_type:
                self.position_key = Dense(shape, axes, outputs=2, **parts)
            if "p2c" in architecture.pos_att_type:
                self.position_query = Dense(shape, axes, outputs=2, **parts)
        self.architecture = architecture

    def __call__(
        self,
        x_BLD: Float[Array, "batch length hidden"],
        seen: Seen,
        *,
        dropout: DisentangledDropout | None,
        queries_BQ: Int[Array, "batch queries"] | None = None,
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the output projection without its bias, see `SelfAttention`."""
        dropout = dropout or DisentangledDropout(None, None)
        terms = self._terms(seen, dropout)
        # The kernel computes all queries.
        products = self._products(x_BLD, None if self.core == "fused" else queries_BQ)
        return self._attended(products, seen, terms, dropout, queries_BQ)

    def keys_and_values(self, x_BLD: Float[Array, "batch length hidden"]) -> tuple[Array, Array]:
        """Returns keys and values without their biases, [B, L, H · K] each."""
        key, value = self._together((self.key, self.value), x_BLD)
        return key, value

    def decoded(
        self,
        x_BQD: Float[Array, "batch queries hidden"],
        keys_and_values: tuple[Array, Array],
        seen: Seen,
        *,
        dropout: DisentangledDropout | None,
        queries_BQ: Int[Array, "batch queries"],
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the output projection without its bias for queries of other states."""
        dropout = dropout or DisentangledDropout(None, None)
        query = self.query.without_bias(x_BQD)
        if self.core == "fused":  # the kernel computes all tokens; others than queries are not read
            tokens = jnp.arange(seen.segment_ids.shape[1])
            slots_BL = jnp.argmax(queries_BQ[:, None] == tokens[:, None], axis=-1)
            query = gather_positions(query, slots_BL)
        products = query, *keys_and_values
        return self._attended(products, seen, self._terms(seen, dropout), dropout, queries_BQ)

    def _attended(
        self,
        products: tuple[Array, Array, Array],
        seen: Seen,
        terms: RelativeTable | Distances,
        dropout: DisentangledDropout,
        queries_BQ: Array | None,
    ) -> Array:
        """Returns the output projection from queries, keys and values without their biases."""
        if isinstance(terms, Distances):
            attended = self._fused(products, seen.segment_ids, dropout.weights, None, terms)
            if queries_BQ is not None:
                attended = jnp.take_along_axis(attended, queries_BQ[..., None, None], axis=1)
            return self.output.without_bias(attended)
        core = functools.partial(
            relative_attention,
            rows=self.architecture.relative_rows,
            dropout_rate=self.dropout_rate,
            causal=self.causal,
        )
        if self.remat_core:
            # The scores, L² elements per head, are cheap to recompute.
            core = jax.checkpoint(core)
        q_BQHK, k_BLHK, v_BLHK = self._with_biases(products)
        attended = core(
            *(q_BQHK, k_BLHK, v_BLHK, seen.segment_ids, terms),
            dropout_key=dropout.weights,
            queries_BQ=queries_BQ,
        )
        return self.output.without_bias(attended)

    def dropout_of(
        self, key: Array, segment_ids: Array, queries_BQ: Array | None
    ) -> DisentangledDropout:
        """Returns the dropout of attention weights, see `SelfAttention`, and of the table."""
        # The kernel computes all queries.
        queries_BQ = None if self.core == "fused" else queries_BQ
        weights = super().dropout_of(fold_in(key, 0), segment_ids, queries_BQ)
        rate, of_table = self.architecture.hidden_dropout_prob, None
        if rate > 0.0:
            shape = 2 * self.architecture.span, self.architecture.hidden_size
            of_table = tile_factors(shape, batch_key(fold_in(key, 1)), rate)
        return DisentangledDropout(weights, of_table)

    def _terms(self, seen: Seen, dropout: DisentangledDropout) -> RelativeTable | Distances:
        """Returns the keys and queries of relative positions, for the fused kernel by distance."""
        table = self._table(seen.table_RD, dropout.table)
        if self.core != "fused":
            return table
        rows, length = self.architecture.relative_rows, seen.segment_ids.shape[1]
        tables = (
            None if each is None else by_distance(each.reshape(len(each), -1), rows, length=length)
            for each in table
        )
        return Distances(*tables)

    def scores(self, x_BLD: Array, seen: Seen) -> Scores:
        """Returns the scores before the softmax, computed in plain JAX."""
        q_BLHK, k_BLHK, _ = self.projected(x_BLD)
        terms = relative_terms(self._table(seen.table_RD, None), self.architecture.relative_rows)
        return attention_scores(q_BLHK, k_BLHK, seen.segment_ids, causal=self.causal, terms=terms)

    def _table(self, table_RD: Array, factors: TileFactors | None) -> RelativeTable:
        """Returns the keys and queries of relative positions."""
        table_RD = drop(table_RD, factors, self.architecture.hidden_dropout_prob)
        shared, terms = self.architecture.share_att_key, self.architecture.pos_att_type
        keys = queries = None
        if "c2p" in terms:
            keys = _projected(table_RD, self.key if shared else self.position_key)
        if "p2c" in terms:
            queries = _projected(table_RD, self.query if shared else self.position_query)
        return RelativeTable(keys, queries)


def _projected(table_RD: Array, dense: Dense) -> Array:
    """Returns a projection of the table, [R, H, K].

    `Dense` would split the rows over the devices that share a batch. Every device needs all rows.
    """
    kernel = placed(dense.kernel[...], table_RD.dtype, dense.use.axes)
    y_RW = jnp.matmul(
        table_RD,
        kernel,
        precision=precision_of(table_RD.dtype),
        preferred_element_type=kernel.dtype,
    )
    return constrain(dense.with_bias(y_RW), "rest", "heads", "head_dim")
