"""EuroBERT with the heads of a checkpoint."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.encoders.eurobert.section import EuroBertArchitecture
from bert_jax.model.dropout import dropout
from bert_jax.model.heads import Pooler, TaskHead, UntiedDecoder
from bert_jax.model.layers import ACTIVATIONS
from bert_jax.model.pooling import pooled_states
from bert_jax.model.pre_norm_model import PreNormModel
from bert_jax.model.section import Execution, HeadsSection


class EuroBert(PreNormModel):
    """EuroBERT with the heads of a `HeadsSection` (arXiv 2503.05500).

    Task heads of rows have a dense layer with GELU, as in Hugging Face's classes.
    """

    mlm_head = UntiedDecoder

    def __init__(
        self, *, architecture: EuroBertArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=heads)
        parts = {"architecture": architecture, "execution": execution}
        self.pooling = architecture.pooling if heads.scores_rows else None
        if heads.scores_rows:
            self.classifier = Pooler(activation=ACTIVATIONS["gelu_erf"], **parts)
        if heads.task is not None:
            self.task = TaskHead(outputs=heads.outputs, **parts)
            self.task_dropout = heads.task_dropout or 0.0

    def read_positions(
        self, segment_ids: Int[Array, "batch length"]
    ) -> Int[Array, "batch 1"] | None:
        """Returns the position of the token that the task head reads, see `EncoderModel`."""
        return super().read_positions(segment_ids) if self.pooling == "bos" else None

    def task_logits(
        self,
        hidden_BLD: Float[Array, "batch length hidden"],
        segment_ids: Array,
        *,
        dropout_key: Array | None = None,
    ) -> Float[Array, "batch ..."]:
        """Returns the float32 logits of the task head, see `EncoderModel.task_logits`."""
        read = hidden_BLD
        if self.pooling == "bos":
            read = self.read_token(hidden_BLD, segment_ids)
        elif self.pooling == "mean":
            read = pooled_states(hidden_BLD, segment_ids, pool="mean")[:, None]
        if self.heads.scores_rows:
            read = self.classifier(read.astype(hidden_BLD.dtype))
        logits = self.task(dropout(read, self.task_dropout, dropout_key)).astype(jnp.float32)
        if self.pooling == "late":
            return pooled_states(logits, segment_ids, pool="mean")
        return logits[:, 0] if self.heads.scores_rows else logits


MODEL = EuroBert
