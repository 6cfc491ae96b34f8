"""Self-attention: projections, and the choice between the kernels and plain JAX."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bert_jax.kernels.attention import DropoutWords, dropout_words, fused_attention
from bert_jax.kernels.distances import NO_DISTANCES, Distances
from bert_jax.kernels.random_bits import tile_seeds
from bert_jax.model.architecture import PostNormArchitecture
from bert_jax.model.cudnn_attention import cudnn_attention
from bert_jax.model.layers import Dense, gather_positions, project_each
from bert_jax.model.section import AttentionImplementation, Execution
from bert_jax.model.xla_attention import Scores, attention_scores, visible_keys, xla_attention
from bert_jax.parallel.sharding_rules import constrain, parts_in_use


class SelfAttention(nnx.Module):
    """Multi-head self-attention. Heads are sharded over the tensor axis."""

    def __init__(
        self, *, architecture: PostNormArchitecture, execution: Execution, causal: bool
    ) -> None:
        width, heads, columns = (
            architecture.hidden_size,
            architecture.num_attention_heads,
            architecture.head_dim,
        )
        dense = functools.partial(Dense, architecture=architecture, execution=execution)
        self.query, self.key, self.value = (
            dense((width, heads, columns), ("embed", "heads", "head_dim"), outputs=2)
            for _ in range(3)
        )
        self.output = dense((heads, columns, width), ("heads", "head_dim", "embed"))
        self.core: AttentionImplementation = execution.attention
        self.causal = causal
        self.remat_core = execution.remat == "attention"
        self.dropout_rate = architecture.attention_probs_dropout_prob

    def __call__(
        self,
        x_BLD: Float[Array, "batch length hidden"],
        seen: Any,
        *,
        dropout: Any,
        queries_BQ: Int[Array, "batch queries"] | None = None,
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the output projection without its bias, see `EncoderModel.hidden`.

        `seen` is from `PostNormEncoder.seen`: here, the segments. `dropout` is from `dropout_of`,
        or None in evaluation.
        """
        if self.core == "fused":
            assert not isinstance(dropout, jax.Array)
            attended = self._fused(self._products(x_BLD, queries_BQ), seen, dropout, queries_BQ)
        else:
            assert not isinstance(dropout, DropoutWords)
            attended = self._plain(x_BLD, seen, dropout, queries_BQ)
        return self.output.without_bias(attended)

    def dropout_of(self, key: Array, segment_ids: Array, queries_BQ: Array | None) -> Any:
        """Returns what the core needs for dropout: the key, or the words of the fused kernel."""
        if self.dropout_rate == 0.0:
            return None
        if self.core != "fused":
            return key
        (batch, length), (heads, _) = segment_ids.shape, self.query.outputs
        seeds = tile_seeds(key, (batch, heads))
        return dropout_words(seeds, length=length, queries_BQ=queries_BQ)

    def _plain(
        self, x_BLD: Array, segment_ids: Array, key: Array | None, queries_BQ: Array | None
    ) -> Array:
        """Returns the attended values [B, Q, H, K], computed by plain JAX or cuDNN."""
        q_BQHK, k_BLHK, v_BLHK = self.projected(x_BLD, queries_BQ)
        if self.core == "cudnn":  # stores no scores
            visible = visible_keys(segment_ids, causal=self.causal, queries_BQ=queries_BQ)
            return cudnn_attention(q_BQHK, k_BLHK, v_BLHK, visible)
        core = functools.partial(xla_attention, dropout_rate=self.dropout_rate, causal=self.causal)
        if self.remat_core:
            # The scores, L² elements per head, are cheap to recompute.
            core = jax.checkpoint(core)
        return core(q_BQHK, k_BLHK, v_BLHK, segment_ids, dropout_key=key, queries_BQ=queries_BQ)

    def _fused(
        self,
        products: tuple[Array, Array, Array],
        segment_ids: Array,
        words: DropoutWords | None,
        queries_BQ: Array | None,
        distances: Distances = NO_DISTANCES,
    ) -> Array:
        """Returns the attended values [B, Q, H, K], computed by the fused kernel."""
        heads, columns = self.query.outputs
        attended_BQW = fused_attention(
            products,
            jnp.stack([each.bias[...].reshape(-1) for each in self._maps]),
            segment_ids,
            words,
            columns=columns,
            rate=self.dropout_rate,
            causal=self.causal,
            queries_BQ=queries_BQ,
            distances=distances,
        )
        return attended_BQW.reshape(*attended_BQW.shape[:2], heads, columns)

    def projected(self, x_BLD: Array, queries_BQ: Array | None = None) -> tuple[Array, ...]:
        """Returns queries [B, Q, H, K], keys and values [B, L, H, K]."""
        return self._with_biases(self._products(x_BLD, queries_BQ))

    def _with_biases(self, products: tuple[Array, Array, Array]) -> tuple[Array, ...]:
        """Returns queries, keys and values from their products."""
        return tuple(
            constrain(each.with_bias(y_BLW), "batch", "length", "heads", "head_dim")
            for each, y_BLW in zip(self._maps, products, strict=True)
        )

    def scores(self, x_BLD: Array, seen: Any) -> Scores:
        """Returns the scores before the softmax, computed in plain JAX."""
        maps = self.query, self.key
        q_BLHK, k_BLHK = (
            constrain(each.with_bias(y_BLW), "batch", "length", "heads", "head_dim")
            for each, y_BLW in zip(maps, self._together(maps, x_BLD), strict=True)
        )
        return attention_scores(q_BLHK, k_BLHK, seen, causal=self.causal)

    def _products(self, x_BLD: Array, queries_BQ: Array | None) -> tuple[Array, Array, Array]:
        """Returns queries [B, Q, H · K], keys and values [B, L, H · K], without biases."""
        if queries_BQ is not None:
            query = self.query.without_bias(gather_positions(x_BLD, queries_BQ))
            key, value = self._together((self.key, self.value), x_BLD)
            return query, key, value
        query, key, value = self._together(self._maps, x_BLD)
        return query, key, value

    def _together(self, maps: Sequence[Dense], x_BLD: Array) -> tuple[Array, ...]:
        """Returns the products of all tokens with each kernel, [B, L, H · K] each."""
        if self.core != "fused" and parts_in_use("heads") == 1:
            # Stacked gradients need one sum over devices instead of three. With one device in the
            # tensor axis there is no sum, and stacking makes the step 5% slower on v3. With the
            # fused kernel, stacking is faster even without a sum.
            return tuple(each.without_bias(x_BLD) for each in maps)
        kernels = tuple(each.kernel[...] for each in maps)
        return project_each(x_BLD.astype(self.query.dtype), kernels, self.query.use)

    @property
    def _maps(self) -> tuple[Dense, Dense, Dense]:
        return self.query, self.key, self.value
