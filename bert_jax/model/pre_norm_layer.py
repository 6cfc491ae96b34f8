"""A layer that normalises the inputs of attention and FFN, with rotary positions.

Shape suffixes: B batch, L length, Q tokens whose states are computed, D hidden size, F FFN width, H
heads, K head columns.
"""

import functools
from typing import Any, Final

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bert_jax.kernels.rotary_attention import rotary_attention
from bert_jax.model.add_norm import pre_norm
from bert_jax.model.cudnn_attention import cudnn_attention
from bert_jax.model.dropout import dropout
from bert_jax.model.gated_project import gated_project
from bert_jax.model.layers import (
    ACTIVATIONS,
    Linear,
    RmsNorm,
    ScaledNorm,
    gather_positions,
    project_each,
)
from bert_jax.model.local_attention import cudnn_local_attention, is_short, local_attention
from bert_jax.model.pre_norm_architecture import PreNormArchitecture
from bert_jax.model.rotary import rotated
from bert_jax.model.section import AttentionImplementation, Execution
from bert_jax.model.xla_attention import Scores, attention_scores, visible_keys, xla_attention
from bert_jax.parallel.sharding_rules import constrain

KEYS: Final = 3
"""Number of dropout keys of a layer: attention weights, attention output, FFN."""


def norm_of(*, architecture: PreNormArchitecture, execution: Execution) -> ScaledNorm:
    """Returns the norm of an architecture, RMSNorm or LayerNorm, without a bias."""
    kind = ScaledNorm if architecture.subtracts_mean else RmsNorm
    return kind(architecture=architecture, execution=execution)


class PreNormLayer(nnx.Module):
    """Attention and a gated FFN, each added to its input (pre-norm), without biases."""

    def __init__(
        self, *, architecture: PreNormArchitecture, execution: Execution, causal: bool
    ) -> None:
        width, inner = architecture.hidden_size, architecture.intermediate_size
        heads, columns = architecture.num_attention_heads, architecture.head_dim
        parts = {"architecture": architecture, "execution": execution}
        dense = functools.partial(Linear, **parts)
        last = functools.partial(dense, deviation=architecture.output_range)
        self.query, self.key, self.value = (
            dense((width, count, columns), ("embed", "heads", "head_dim"), outputs=2)
            for count in (heads, architecture.key_heads, architecture.key_heads)
        )
        self.output = last((heads, columns, width), ("heads", "head_dim", "embed"))
        self.ffn_norm = norm_of(**parts)
        self.gate, self.up = (dense((width, inner), ("embed", "mlp")) for _ in range(2))
        self.down = last((inner, width), ("mlp", "embed"))
        self.architecture = architecture
        self.groups = heads // architecture.key_heads
        self.causal = causal
        self.core: AttentionImplementation = execution.attention
        self.fused_ffn = execution.ffn == "fused"
        self.remat_core = execution.remat == "attention"

    def __call__(
        self,
        x_BLD: Float[Array, "batch length hidden"],
        normed_BLD: Float[Array, "batch length hidden"],
        segment_ids: Int[Array, "batch length"],
        turn: tuple[Array, Array],
        *,
        window: int | None,
        dropout_keys: Array | None,
        queries_BQ: Int[Array, "batch queries"] | None = None,
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the layer's output for `queries_BQ`, or for all tokens if there are none.

        `normed_BLD` is what attention reads, `turn` the layer's rotations, and `window` its
        attention window. `dropout_keys` are [3], or None in evaluation.
        """
        weights_key, output_key, ffn_key = [None] * KEYS if dropout_keys is None else dropout_keys
        attended = self._attended(normed_BLD, segment_ids, turn, weights_key, window)
        if queries_BQ is not None:
            x_BLD, attended = (gather_positions(x, queries_BQ) for x in (x_BLD, attended))
        by_head = attended.reshape(*attended.shape[:2], -1, self.architecture.head_dim)
        attended = dropout(
            self.output.without_bias(by_head), self.architecture.output_dropout, output_key
        )
        x_BQD = constrain(x_BLD + attended, "batch", "length", "hidden")
        x_BQD, normed_BQD = pre_norm(x_BQD, self.ffn_norm.scale[...], norm=self.ffn_norm)
        fed_BQD = self._fed(normed_BQD, ffn_key)
        return constrain(x_BQD + fed_BQD, "batch", "length", "hidden")

    def _attended(
        self,
        x_BLD: Array,
        segment_ids: Array,
        turn: tuple[Array, Array],
        key: Array | None,
        window: int | None,
    ) -> Array:
        """Returns the sums over values, [B, L, H · K]."""
        columns = self.architecture.head_dim
        products = self._projected(x_BLD.astype(self.query.dtype))
        if self.core == "fused":
            q, k, v = products
            products = q, self._for_queries(k), self._for_queries(v)
            return rotary_attention(
                products, segment_ids, turn, columns=columns, window=window, causal=self.causal
            )

        def by_head(y_BLW: Array) -> Array:
            y_BLHK = y_BLW.reshape(*y_BLW.shape[:2], -1, columns)
            return constrain(y_BLHK, "batch", "length", "heads", "head_dim")

        q, k, v = map(by_head, products)
        core = self._cudnn if self.core == "cudnn" else self._plain
        q, k, v = rotated(q, turn), self._for_queries(rotated(k, turn)), self._for_queries(v)
        attended = core(q, k, v, segment_ids, key, window)
        return attended.reshape(x_BLD.shape[0], x_BLD.shape[1], -1)

    def _projected(self, x_BLD: Array) -> tuple[Array, Array, Array]:
        """Returns queries, keys and values, [B, L, heads · K]."""
        of_query, of_key, of_value = (
            each.kernel[...] for each in (self.query, self.key, self.value)
        )
        each: Any = project_each
        if self.groups == 1:
            return each(x_BLD, (of_query, of_key, of_value), self.query.use)
        # The kernels of one product have one width.
        (query,) = each(x_BLD, (of_query,), self.query.use)
        return query, *each(x_BLD, (of_key, of_value), self.key.use)

    def _for_queries(self, x: Array) -> Array:
        """Repeats keys or values [B, L, heads, …] for each head of queries that reads them."""
        if self.groups == 1:
            return x
        batch, length, *rest = x.shape
        by_head = x.reshape(batch, length, -1, 1, self.architecture.head_dim)
        # A broadcast, unlike a repeat, keeps the sharding along heads.
        repeated = jnp.broadcast_to(by_head, (*by_head.shape[:3], self.groups, by_head.shape[4]))
        return repeated.reshape(batch, length, rest[0] * self.groups, *rest[1:])

    def _plain(
        self,
        q: Array,
        k: Array,
        v: Array,
        segment_ids: Array,
        key: Array | None,
        window: int | None,
    ) -> Array:
        """Returns the sums over values, [B, L, H, K], computed by plain JAX."""
        rate = self.architecture.attention_dropout
        core: Any = functools.partial(
            xla_attention, window=window, dropout_rate=rate, causal=self.causal
        )
        if window is not None and not is_short(q.shape[1], window):
            core = functools.partial(
                local_attention, window=window, dropout_rate=rate, causal=self.causal
            )
        elif self.remat_core:
            core = jax.checkpoint(core)
        return core(q, k, v, segment_ids, dropout_key=key)

    def _cudnn(
        self,
        q: Array,
        k: Array,
        v: Array,
        segment_ids: Array,
        key: Array | None,
        window: int | None,
    ) -> Array:
        """Returns the sums over values, [B, L, H, K], computed by cuDNN without dropout."""
        del key
        if window is not None and not is_short(q.shape[1], window):
            return cudnn_local_attention(q, k, v, segment_ids, window=window, causal=self.causal)
        visible = visible_keys(segment_ids, window=window, causal=self.causal)
        return cudnn_attention(q, k, v, visible)

    def scores(
        self,
        normed_BLD: Array,
        segment_ids: Array,
        turn: tuple[Array, Array],
        *,
        window: int | None,
    ) -> Scores:
        """Returns the scores before the softmax, in plain JAX. The arguments are as for a call."""
        q_BLHK, k_BLHK = (rotated(each(normed_BLD), turn) for each in (self.query, self.key))
        k_BLHK = self._for_queries(k_BLHK)
        return attention_scores(q_BLHK, k_BLHK, segment_ids, window=window, causal=self.causal)

    def _fed(self, x_BLD: Array, key: Array | None) -> Array:
        gate_BLF = constrain(self.gate(x_BLD), "batch", "length", "mlp")
        up_BLF = constrain(self.up(x_BLD), "batch", "length", "mlp")
        if self.fused_ffn:
            return gated_project(
                *(gate_BLF, up_BLF, self.down.kernel[...]),
                activation=self.architecture.hidden_act,
                use=self.down.use,
            )

        def project(gate: Array, up: Array) -> Array:
            inner = ACTIVATIONS[self.architecture.hidden_act](gate) * up
            return self.down(dropout(inner, self.architecture.mlp_dropout, key))

        # In bfloat16, so on a chip, computing the activation again costs less than reading it.
        again = jax.checkpoint if gate_BLF.dtype == jnp.bfloat16 else lambda function: function
        return again(project)(gate_BLF, up_BLF)
