"""The encoder with whichever heads a checkpoint has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bert_jax.model.config import Architecture, Execution, HeadsSection
from bert_jax.model.dropout import dropout
from bert_jax.model.encoder import Encoder
from bert_jax.model.heads import MlmHead, NextSentenceHead, Pooler, TaskHead
from bert_jax.model.layers import gather_positions, subkey
from bert_jax.parallel.compiling import made_once


@made_once
def bert_builder(
    architecture: Architecture, execution: Execution, heads: HeadsSection
) -> Callable[[], Bert]:
    """Returns what makes the model, as `define_model` takes it."""

    def build() -> Bert:
        return Bert(architecture=architecture, execution=execution, heads=heads)

    return build


class Bert(nnx.Module):
    """An encoder and the heads that a section names; the same head has the same parameters.

    Whatever the heads, a tensor has the same path in the checkpoint: ``encoder``, ``pooler``,
    ``mlm``, ``next_sentence``, ``task``.
    """

    def __init__(
        self,
        *,
        architecture: Architecture,
        execution: Execution,
        heads: HeadsSection,
    ) -> None:
        parts = {"architecture": architecture, "execution": execution}
        self.encoder = Encoder(**parts)
        if heads.pooler:
            self.pooler = Pooler(**parts)
        if heads.mlm:
            self.mlm = MlmHead(**parts)
        if heads.next_sentence:
            self.next_sentence = NextSentenceHead(**parts)
        if heads.task is not None:
            self.task = TaskHead(outputs=heads.outputs, **parts)
            own = heads.task_dropout
            self.task_dropout = architecture.hidden_dropout_prob if own is None else own
        self.heads = heads

    def hidden(
        self,
        batch: Mapping[str, Array],
        *,
        words_BLD: Float[Array, "batch length hidden"] | None = None,
        queries_BQ: Int[Array, "batch queries"] | None = None,
        dropout_key: Array | None,
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the last layer's hidden states.

        The batch has `input_ids`, `token_type_ids` and `segment_ids`, int32 [B, L], and where
        several examples share a row `position_ids`, the same. `words_BLD`: of `input_ids`, if they
        have been looked up already. `queries_BQ`: the tokens whose states are wanted, None: all.
        `dropout_key`: None in evaluation.
        """
        return self.encoder(
            batch["input_ids"],
            batch["token_type_ids"],
            batch["segment_ids"],
            batch.get("position_ids"),
            words_BLD=words_BLD,
            queries_BQ=queries_BQ,
            dropout_key=subkey(dropout_key, 0),
        )

    def every_layer(
        self,
        batch: Mapping[str, Array],
        *,
        read: Callable[[Array], Array] = lambda x_BLD: x_BLD,
    ) -> Float[Array, "states batch *rest"]:
        """Returns the embeddings' output and every layer's: [layers + 1, B, L, D], no dropout.

        The batch is as for `hidden`; `read` says what to keep of one state [B, L, D].
        """
        return self.encoder.every_layer(
            batch["input_ids"],
            batch["token_type_ids"],
            batch["segment_ids"],
            batch.get("position_ids"),
            read=read,
        )

    def mlm_logits(
        self,
        hidden_BLD: Float[Array, "batch length hidden"],
        positions_BP: Array,
    ) -> Float[Array, "batch predictions vocab"]:
        """Returns float32 logits over the padded vocabulary at the given positions."""
        masked_BPD = gather_positions(hidden_BLD, positions_BP)
        return self.mlm(masked_BPD, self.encoder.embeddings.word[...])

    def task_logits(
        self, hidden_BLD: Float[Array, "batch length hidden"], *, dropout_key: Array | None = None
    ) -> Float[Array, "batch ..."]:
        """Returns the task head's float32 logits.

        [B, labels] for sequence classification, [B, 1] for a choice, [B, L, labels] for token
        classification, [B, L, 2] (start, end) for question answering.
        The key is of the head's own dropout, which question answering lacks; None in evaluation.
        """
        read = self.pooler(hidden_BLD[:, :1]) if self.heads.reads_pooled else hidden_BLD
        if self.heads.task != "question_answering":
            read = dropout(read, self.task_dropout, dropout_key)
        logits = self.task(read).astype(jnp.float32)
        return logits[:, 0] if self.heads.reads_pooled else logits
