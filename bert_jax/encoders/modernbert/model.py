"""ModernBERT with the heads of a checkpoint."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bert_jax.encoders.modernbert.section import ModernBertArchitecture
from bert_jax.model.dropout import dropout
from bert_jax.model.heads import MlmDecoder, TaskHead
from bert_jax.model.layers import ACTIVATIONS, Linear, ScaledNorm
from bert_jax.model.pooling import pooled_states
from bert_jax.model.pre_norm_model import PreNormModel, pre_norm_groups
from bert_jax.model.section import Execution, HeadsSection


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


class ModernBert(PreNormModel):
    """ModernBERT with the heads of a `HeadsSection` (arXiv 2412.13663).

    The MLM head and the task head read the same prediction head.
    """

    mlm_head = MlmDecoder

    groups = pre_norm_groups(first_normed=1)

    def __init__(
        self, *, architecture: ModernBertArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=heads)
        parts = {"architecture": architecture, "execution": execution}
        if heads.mlm or heads.task is not None:
            self.head = PredictionHead(**parts)
        if heads.task is not None:
            deviation = architecture.hidden_size**-0.5
            self.task = TaskHead(outputs=heads.outputs, deviation=deviation, **parts)
            self.task_dropout = heads.task_dropout or 0.0
        self.pooling = architecture.pooling

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


MODEL = ModernBert
