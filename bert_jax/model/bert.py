"""The model: an encoder with heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bert_jax.model.attention import SelfAttention
from bert_jax.model.config import Architecture, Execution, HeadsSection
from bert_jax.model.cross_entropy import Scored
from bert_jax.model.dropout import dropout
from bert_jax.model.encoder import Encoder
from bert_jax.model.heads import MlmHead, NextSentenceHead, Pooler, TaskHead
from bert_jax.model.layers import gather_positions, subkey
from bert_jax.model.xla_attention import masked_scores, same_segment
from bert_jax.parallel.compiling import made_once


@made_once
def bert_builder(
    architecture: Architecture, execution: Execution, heads: HeadsSection
) -> Callable[[], Bert]:
    """Returns a function that builds the model, for `define_model`."""

    def build() -> Bert:
        return Bert(architecture=architecture, execution=execution, heads=heads)

    return build


class PretrainingScores(NamedTuple):
    """Results of both pretraining heads for a batch."""

    mlm: Scored  # losses of the masked pieces
    next_sentence: Float[Array, "batch examples 2"]  # float32 logits


class Bert(nnx.Module):
    """An encoder with the heads of a `HeadsSection`.

    The paths of tensors do not depend on the set of heads. They begin with ``encoder``, ``pooler``,
    ``mlm``, ``next_sentence`` or ``task``.
    """

    def __init__(
        self, *, architecture: Architecture, execution: Execution, heads: HeadsSection
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

        Args:
            batch: `input_ids`, `token_type_ids` and `segment_ids`, int32 [B, L]. Packed rows also
                need `position_ids`.
            words_BLD: word embeddings of `input_ids`. If None, they are looked up.
            queries_BQ: positions of the states to compute. If None, all states are computed.
            dropout_key: threefry key, or None in evaluation.
        """
        return self.encoder(
            batch,
            words_BLD=words_BLD,
            queries_BQ=queries_BQ,
            dropout_key=subkey(dropout_key, 0),
        )

    def mlm_logits(
        self, hidden_BLD: Float[Array, "batch length hidden"], positions_BP: Array
    ) -> Float[Array, "batch predictions vocab"]:
        """Returns float32 logits over the padded vocabulary at the given positions."""
        masked_BPD = gather_positions(hidden_BLD, positions_BP)
        return self.mlm(masked_BPD, self.encoder.embeddings.word[...])

    def scored(self, batch: Mapping[str, Array], *, dropout_key: Array | None) -> PretrainingScores:
        """Returns the MLM scores and the next-sentence logits of a batch in pretraining.

        In addition to the arrays for `hidden`, the batch has `masked_lm_positions` and
        `masked_lm_ids`, int32 [B, P], and `cls_positions`, int32 [B, E]. The last layer computes
        only the states that the heads read.
        """
        words_BLD, shares_SVD = self.encoder.embeddings.look_up(batch["input_ids"])
        masked, cls = batch["masked_lm_positions"], batch["cls_positions"]
        queries_BQ = jnp.concatenate([masked, cls], axis=1)
        hidden_BQD = self.hidden(
            batch, words_BLD=words_BLD, queries_BQ=queries_BQ, dropout_key=dropout_key
        )
        masked_BPD, cls_BED = hidden_BQD[:, : masked.shape[1]], hidden_BQD[:, masked.shape[1] :]
        table_VD = self.encoder.embeddings.word[...]
        mlm = self.mlm.scored(masked_BPD, table_VD, shares_SVD, batch["masked_lm_ids"])
        return PretrainingScores(mlm, self.next_sentence(self.pooler(cls_BED)))

    def task_logits(
        self, hidden_BLD: Float[Array, "batch length hidden"], *, dropout_key: Array | None = None
    ) -> Float[Array, "batch ..."]:
        """Returns the float32 logits of the task head.

        The shape is [B, labels] for sequence classification, [B, 1] for a choice, [B, L, labels]
        for token classification, and [B, L, 2] (start, end) for question answering. `dropout_key`
        is the key of the dropout before the head, or None in evaluation. Question answering has no
        dropout before the head.
        """
        read = self.pooler(hidden_BLD[:, :1]) if self.heads.reads_pooled else hidden_BLD
        if self.heads.task != "question_answering":
            read = dropout(read, self.task_dropout, dropout_key)
        logits = self.task(read).astype(jnp.float32)
        return logits[:, 0] if self.heads.reads_pooled else logits


def attention_maps(
    model: Bert, batch: Mapping[str, Array]
) -> Float[Array, "layers batch heads length length"]:
    """Returns the attention probabilities of every layer and head, float32, without dropout.

    ``maps[layer, row, head, query, key]`` is the weight of `key` for `query`. The weights of a
    query sum to 1 over the tokens of its segment. If query or key is padding, the weight is 0.
    Queries and keys are computed in the execution's dtype, as in training. The size of the result
    grows with L², so pass only a few sentences. For the batch, see `Bert.hidden`.
    """
    entering_NBLD = model.encoder.every_layer(batch)[:-1]
    attention_def, stacked = nnx.split(model.encoder.layers.attention)

    def layer(_: None, state_and_params: tuple[Array, nnx.State]) -> tuple[None, Array]:
        x_BLD, params = state_and_params
        return None, _weights(nnx.merge(attention_def, params), x_BLD, batch["segment_ids"])

    _, maps_NBHLM = jax.lax.scan(layer, None, (entering_NBLD, stacked))
    return maps_NBHLM


def _weights(
    attention: SelfAttention,
    x_BLD: Float[Array, "batch length hidden"],
    segment_ids: Int[Array, "batch length"],
) -> Float[Array, "batch heads length length"]:
    """Returns the probabilities that `xla_attention` computes internally."""
    q_BLHK, k_BLHK, _ = attention.projected(x_BLD)
    visible = same_segment(segment_ids, segment_ids) & (segment_ids > 0)[:, None, None, :]
    scores_BHLM = masked_scores(q_BLHK.swapaxes(1, 2), k_BLHK.swapaxes(1, 2), visible)
    # A padding query sees no key: replace its uniform average by zeros.
    return jnp.where(visible, jax.nn.softmax(scores_BHLM, axis=-1), 0.0)
