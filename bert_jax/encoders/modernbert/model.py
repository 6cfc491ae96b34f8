"""ModernBERT with the heads of a checkpoint."""

from collections.abc import Callable, Mapping

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from bert_jax.encoders.modernbert.architecture import ModernBertArchitecture
from bert_jax.encoders.modernbert.encoder import ModernBertEncoder
from bert_jax.model.config import Execution, HeadsSection
from bert_jax.model.cross_entropy import Scored
from bert_jax.model.dropout import dropout
from bert_jax.model.heads import MlmDecoder, TaskHead
from bert_jax.model.layers import ACTIVATIONS, Linear, ScaledNorm, gather_positions, subkey
from bert_jax.parallel.compiling import made_once


@made_once
def modernbert_builder(
    architecture: ModernBertArchitecture, execution: Execution, heads: HeadsSection
) -> Callable[[], "ModernBert"]:
    """Returns a function that makes the model, as `define_model` takes it."""

    def build() -> ModernBert:
        return ModernBert(architecture=architecture, execution=execution, heads=heads)

    return build


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


class ModernBert(nnx.Module):
    """An encoder and the heads that a section names.

    A tensor has the same path in every checkpoint that has it: ``encoder``, ``head``, ``mlm``,
    ``task``. The decoder and a task's head read the same prediction head.
    """

    def __init__(
        self, *, architecture: ModernBertArchitecture, execution: Execution, heads: HeadsSection
    ) -> None:
        parts = {"architecture": architecture, "execution": execution}
        self.encoder = ModernBertEncoder(**parts)
        if heads.mlm or heads.task is not None:
            self.head = PredictionHead(**parts)
        if heads.mlm:
            self.mlm = MlmDecoder(**parts)
        if heads.task is not None:
            deviation = architecture.hidden_size**-0.5
            self.task = TaskHead(outputs=heads.outputs, deviation=deviation, **parts)
            self.task_dropout = heads.task_dropout or 0.0
        self.heads, self.pooling = heads, architecture.pooling

    def hidden(
        self,
        batch: Mapping[str, Array],
        *,
        words_BLD: Float[Array, "batch length hidden"] | None = None,
        queries_BQ: Array | None = None,
        dropout_key: Array | None,
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the hidden states; the arguments are as for `bert_jax.model.bert.Bert.hidden`."""
        return self.encoder(
            batch, words_BLD=words_BLD, queries_BQ=queries_BQ, dropout_key=subkey(dropout_key, 0)
        )

    def mlm_logits(
        self, hidden_BLD: Float[Array, "batch length hidden"], positions_BP: Array
    ) -> Float[Array, "batch predictions vocab"]:
        """Returns float32 logits over the padded vocabulary at the given positions."""
        masked_BPD = gather_positions(hidden_BLD, positions_BP)
        return self.mlm(self.head(masked_BPD), self.encoder.word[...])

    def scored(self, batch: Mapping[str, Array], *, dropout_key: Array | None) -> Scored:
        """Returns the MLM scores of a batch in pretraining.

        The batch is as for `hidden`, with `masked_lm_positions` and `masked_lm_ids` int32 [B, P].
        The last layer computes only the states of masked tokens.
        """
        words_BLD, shares_SVD = self.encoder.look_up(batch["input_ids"])
        masked_BPD = self.hidden(
            batch,
            words_BLD=words_BLD,
            queries_BQ=batch["masked_lm_positions"],
            dropout_key=dropout_key,
        )
        rows_BPD, table_VD = self.head(masked_BPD), self.encoder.word[...]
        return self.mlm.scored(rows_BPD, table_VD, shares_SVD, batch["masked_lm_ids"])

    def task_logits(
        self,
        hidden_BLD: Float[Array, "batch length hidden"],
        segment_ids: Array,
        *,
        dropout_key: Array | None = None,
    ) -> Float[Array, "batch ..."]:
        """Returns the task head's float32 logits.

        [B, labels] for sequence classification, [B, 1] for a choice, [B, L, labels] for token
        classification, [B, L, 2] (start, end) for question answering.
        """
        read = self._pooled(hidden_BLD, segment_ids) if self.heads.reads_pooled else hidden_BLD
        read = dropout(self.head(read), self.task_dropout, dropout_key)
        logits = self.task(read).astype(jnp.float32)
        return logits[:, 0] if self.heads.reads_pooled else logits

    def _pooled(self, hidden_BLD: Array, segment_ids: Array) -> Array:
        """Returns one vector of each row, [B, 1, D]."""
        if self.pooling == "cls":
            return hidden_BLD[:, :1]
        is_token = (segment_ids > 0)[..., None].astype(hidden_BLD.dtype)
        return (hidden_BLD * is_token).sum(1, keepdims=True) / is_token.sum(1, keepdims=True)
