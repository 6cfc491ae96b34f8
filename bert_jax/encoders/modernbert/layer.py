"""A layer of ModernBERT.

Shape suffixes: B batch, L length, Q tokens whose states are computed, D hidden size, F FFN width, H
heads, K head columns.
"""

import functools
from typing import Any, Final

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bert_jax.encoders.modernbert.local_attention import (
    cudnn_local_attention,
    is_short,
    local_attention,
)
from bert_jax.encoders.modernbert.rotary import rotated
from bert_jax.encoders.modernbert.section import ModernBertArchitecture
from bert_jax.kernels.rotary_attention import rotary_attention
from bert_jax.model.add_norm import pre_norm
from bert_jax.model.cudnn_attention import cudnn_attention
from bert_jax.model.dropout import dropout
from bert_jax.model.geglu_project import geglu_project
from bert_jax.model.layers import ACTIVATIONS, Linear, ScaledNorm, gather_positions, project_each
from bert_jax.model.section import AttentionImplementation, Execution
from bert_jax.model.xla_attention import (
    Scores,
    attention_scores,
    visible_keys,
    xla_attention,
)
from bert_jax.parallel.sharding_rules import constrain

KEYS: Final = 3
"""Number of dropout keys of a layer: attention weights, attention output, FFN."""


class ModernBertLayer(nnx.Module):
    """Attention and GeGLU, each added to its input (pre-LayerNorm), without biases."""

    def __init__(
        self, *, architecture: ModernBertArchitecture, execution: Execution, causal: bool
    ) -> None:
        width, inner = architecture.hidden_size, architecture.intermediate_size
        heads, columns = architecture.num_attention_heads, architecture.head_dim
        parts = {"architecture": architecture, "execution": execution}
        dense = functools.partial(Linear, **parts)
        last = functools.partial(dense, deviation=architecture.output_range)
        self.query, self.key, self.value = (
            dense((width, heads, columns), ("embed", "heads", "head_dim"), outputs=2)
            for _ in range(3)
        )
        self.output = last((heads, columns, width), ("heads", "head_dim", "embed"))
        self.ffn_norm = ScaledNorm(**parts)
        self.gate, self.up = (dense((width, inner), ("embed", "mlp")) for _ in range(2))
        self.down = last((inner, width), ("mlp", "embed"))
        self.architecture = architecture
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
        is_global: bool,
        dropout_keys: Array | None,
        queries_BQ: Int[Array, "batch queries"] | None = None,
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the layer's output for `queries_BQ`, or for all tokens if there are none.

        `normed_BLD` is what attention reads, `turn` the rotations of `is_global` layers or of local
        layers. `dropout_keys` are [3], or None in evaluation.
        """
        weights_key, output_key, ffn_key = [None] * KEYS if dropout_keys is None else dropout_keys
        window = None if is_global else self.architecture.window
        attended = self._attended(normed_BLD, segment_ids, turn, weights_key, window)
        if queries_BQ is not None:
            x_BLD, attended = (gather_positions(x, queries_BQ) for x in (x_BLD, attended))
        by_head = attended.reshape(*attended.shape[:2], -1, self.architecture.head_dim)
        attended = dropout(
            self.output.without_bias(by_head), self.architecture.attention_dropout, output_key
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
        kernels = tuple(each.kernel[...] for each in (self.query, self.key, self.value))
        products: Any = project_each(x_BLD.astype(self.query.dtype), kernels, self.query.use)
        if self.core == "fused":
            return rotary_attention(
                products, segment_ids, turn, columns=columns, window=window, causal=self.causal
            )

        def by_head(y_BLW: Array) -> Array:
            y_BLHK = y_BLW.reshape(*y_BLW.shape[:2], -1, columns)
            return constrain(y_BLHK, "batch", "length", "heads", "head_dim")

        q, k, v = map(by_head, products)
        core = self._cudnn if self.core == "cudnn" else self._plain
        attended = core(rotated(q, turn), rotated(k, turn), v, segment_ids, key, window)
        return attended.reshape(x_BLD.shape[0], x_BLD.shape[1], -1)

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
        is_global: bool,
    ) -> Scores:
        """Returns the scores before the softmax, in plain JAX. The arguments are as for a call."""
        q_BLHK, k_BLHK = (rotated(each(normed_BLD), turn) for each in (self.query, self.key))
        window = None if is_global else self.architecture.window
        return attention_scores(q_BLHK, k_BLHK, segment_ids, window=window, causal=self.causal)

    def _fed(self, x_BLD: Array, key: Array | None) -> Array:
        gate_BLF = constrain(self.gate(x_BLD), "batch", "length", "mlp")
        up_BLF = constrain(self.up(x_BLD), "batch", "length", "mlp")
        if self.fused_ffn:
            return geglu_project(gate_BLF, up_BLF, self.down.kernel[...], use=self.down.use)

        def project(gate: Array, up: Array) -> Array:
            inner = ACTIVATIONS[self.architecture.hidden_act](gate) * up
            return self.down(dropout(inner, self.architecture.mlp_dropout, key))

        # In bfloat16, so on a chip, computing the activation again costs less than reading it.
        again = jax.checkpoint if gate_BLF.dtype == jnp.bfloat16 else lambda function: function
        return again(project)(gate_BLF, up_BLF)
