"""ModernBERT with the heads of a checkpoint."""

from collections.abc import Mapping
from typing import Final

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bert_jax.encoders.modernbert.encoder import ModernBertEncoder
from bert_jax.encoders.modernbert.section import ModernBertArchitecture
from bert_jax.kernels import geglu_gradients
from bert_jax.kernels.pallas_call import LANES
from bert_jax.kernels.rotary_attention_tiles import WIDEST_WINDOW, longest_row
from bert_jax.model.dropout import dropout
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.heads import HEAD_GROUPS, MlmDecoder, TaskHead
from bert_jax.model.kernel_limits import Limit, Part, loss_limit, norm_limit
from bert_jax.model.layers import ACTIVATIONS, Linear, ScaledNorm
from bert_jax.model.pooling import pooled_states
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.parallel.parameter_groups import ParameterGroup, ParameterGroups

# Widths of a head, and windows, in the kernel of rotary attention.
HEAD_COLUMNS: Final = (64, 128)
WINDOWS: Final = range(32, WIDEST_WINDOW + 1, 32)


class PredictionHead(nnx.Module):
    """Dense, activation, LayerNorm: below the decoder and below a task's head."""

    def __init__(self, *, architecture: ModernBertArchitecture, execution: Execution) -> None:
        parts = {"architecture": architecture, "execution": execution}
        size, axes = (architecture.hidden_size,) * 2, ("embed", "pooled")
        self.dense = Linear(size, axes, deviation=architecture.output_range, **parts)
        self.norm = ScaledNorm(**parts)
        self.activation = ACTIVATIONS[architecture.head_act]

    def __call__(self, x: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        """Returns the rows that a decoder or a task's head reads."""
        return self.norm(self.activation(self.dense(x)))


class ModernBert(EncoderModel):
    """ModernBERT with the heads of a `HeadsSection` (arXiv 2412.13663).

    The MLM head and the task head read the same prediction head.
    """

    mlm_head = MlmDecoder

    groups = ParameterGroups(
        (
            ParameterGroup("encoder/word", "embeddings"),
            ParameterGroup("encoder/norm", "embeddings"),
            ParameterGroup("encoder/attention_norms", "layers", first_layer=1),
            *(
                ParameterGroup(f"encoder/layers/{part}", "layers")
                for part in (
                    *("query", "key", "value", "output"),
                    *("ffn_norm", "gate", "up", "down"),
                )
            ),
            ParameterGroup("encoder/last_norm", "layers", first_layer=-1),
            ParameterGroup("head", "pooler", title="the prediction head"),
            *HEAD_GROUPS,
        )
    )

    def __init__(
        self, *, architecture: ModernBertArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=heads)
        parts = {"architecture": architecture, "execution": execution}
        self.encoder = ModernBertEncoder(**parts, causal=heads.causal)
        if heads.mlm or heads.task is not None:
            self.head = PredictionHead(**parts)
        if heads.task is not None:
            deviation = architecture.hidden_size**-0.5
            self.task = TaskHead(outputs=heads.outputs, deviation=deviation, **parts)
            self.task_dropout = heads.task_dropout or 0.0
        self.pooling = architecture.pooling

    @staticmethod
    def limit(
        part: Part,
        execution: Execution,
        architecture: ModernBertArchitecture,
        parts: Mapping[str, int],
        longest: int,
        vmem: int | None,
    ) -> Limit | None:
        """Returns why the kernel of a part cannot run, see `EncoderModel.limit`."""
        if part == "loss":
            return loss_limit(architecture, execution, vocab_parts=parts["vocab"])
        if part == "norm":
            return norm_limit(architecture)
        if part == "ffn":
            return _ffn_limit(architecture, execution)
        return _attention_limit(
            architecture, execution, parts=parts["heads"], most=longest_row(vmem), longest=longest
        )

    def decoder_input(self, hidden_BPD: Array) -> Array:
        """Returns the input of the MLM head, [B, P, D]."""
        return self.head(hidden_BPD)

    def read_positions(
        self, segment_ids: Int[Array, "batch length"]
    ) -> Int[Array, "batch 1"] | None:
        """Returns the position of the token that the task head reads, see `EncoderModel`."""
        return super().read_positions(segment_ids) if self.pooling == "cls" else None

    def task_logits(
        self,
        hidden_BLD: Float[Array, "batch length hidden"],
        segment_ids: Array,
        *,
        dropout_key: Array | None = None,
    ) -> Float[Array, "batch ..."]:
        """Returns the float32 logits of the task head, see `EncoderModel.task_logits`."""
        read = self._pooled(hidden_BLD, segment_ids) if self.heads.scores_rows else hidden_BLD
        read = dropout(self.head(read), self.task_dropout, dropout_key)
        logits = self.task(read).astype(jnp.float32)
        return logits[:, 0] if self.heads.scores_rows else logits

    def _pooled(self, hidden_BLD: Array, segment_ids: Array) -> Array:
        """Returns one vector of each row, [B, 1, D]."""
        if self.pooling == "cls":
            return self.read_token(hidden_BLD, segment_ids)
        return pooled_states(hidden_BLD, segment_ids, pool="mean")[:, None].astype(hidden_BLD.dtype)


def _attention_limit(
    architecture: ModernBertArchitecture,
    execution: Execution,
    *,
    parts: int,
    most: int,
    longest: int,
) -> Limit | None:
    if architecture.attention_dropout:
        return Limit(f"attention_dropout: {architecture.attention_dropout}", "0")
    columns, heads = architecture.head_dim, architecture.num_attention_heads // parts
    if columns not in HEAD_COLUMNS or heads * columns % LANES or execution.dtype != "bfloat16":
        found = f"{heads} heads of {columns} columns on a device in {execution.dtype}"
        return Limit(found, "pairs of 64-column heads, or 128-column heads, in bfloat16")
    if longest > most:
        return Limit(f"rows of {longest} tokens", f"up to {most}")
    if architecture.window not in WINDOWS:
        allowed = f"multiples of {WINDOWS.step} up to {WIDEST_WINDOW}"
        return Limit(f"a window of {architecture.window} tokens", allowed)
    return None


def _ffn_limit(architecture: ModernBertArchitecture, execution: Execution) -> Limit | None:
    if architecture.hidden_act != "gelu_erf":
        return Limit(f"hidden_act: {architecture.hidden_act}", "gelu_erf")
    if architecture.mlp_dropout:
        return Limit(f"mlp_dropout: {architecture.mlp_dropout}", "0")
    if execution.dtype != "bfloat16":
        return Limit(f"dtype: {execution.dtype}", "bfloat16")
    if geglu_gradients.fits(architecture.hidden_size):
        return None
    allowed = f"multiples of 128 up to {geglu_gradients.WIDEST}"
    return Limit(f"a hidden size of {architecture.hidden_size}", allowed)


MODEL = ModernBert
