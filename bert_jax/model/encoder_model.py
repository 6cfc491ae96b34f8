"""The base class of all models: an encoder with heads."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bert_jax.model import text_head
from bert_jax.model.cross_entropy import Scored, scored_in_parts
from bert_jax.model.embedding_head import EmbeddingHead, VectorHead
from bert_jax.model.heads import (
    MlmDecoder,
    MlmHead,
    NextSentenceHead,
    Pooler,
    ReplacedTokenHead,
    TaskHead,
)
from bert_jax.model.kernel_limits import KernelUse, Limit
from bert_jax.model.late_interaction_head import LateInteractionHead
from bert_jax.model.layers import gather_positions, subkey
from bert_jax.model.pooling import position_of
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.model.sparse_head import SparseHead
from bert_jax.parallel.parameter_groups import ParameterGroups

VECTOR_HEADS: Mapping[type[text_head.VectorHeadSection], Callable[..., VectorHead[Any]]] = {
    text_head.PoolingSection: EmbeddingHead,
    text_head.SparseHeadSection: SparseHead,
    text_head.TokenVectorsSection: LateInteractionHead,
}
"""The module of each kind of text head that encodes every text by itself."""


class PretrainingScores(NamedTuple):
    """Results of the pretraining heads for a batch."""

    mlm: Scored  # losses of the masked pieces
    next_sentence: Float[Array, "batch examples 2"] | None  # float32 logits; None without this head


class Encoder(Protocol):
    """The interface between a model and its encoder."""

    def look_up(self, input_ids: Int[Array, "batch length"]) -> tuple[Array, Array]:
        """Returns the embeddings of tokens, and shares for the decoder, see `tied_embedding`."""
        ...

    @property
    def table(self) -> Array:
        """The embedding table, float32 [V, D]."""
        ...

    def __call__(
        self,
        batch: Mapping[str, Array],
        *,
        words_BLD: Array | None = None,
        queries_BQ: Array | None = None,
        dropout_key: Array | None,
    ) -> Array:
        """Returns the last layer's states, see `EncoderModel.hidden`."""
        ...

    def every_layer(
        self, batch: Mapping[str, Array], *, read: Callable[[Array], Array] = ...
    ) -> Array:
        """Returns `read` of the embeddings' output and of every layer's output.

        The results are stacked: [layers + 1, B, L, D] by default. The last state is what the heads
        read. There is no dropout.
        """
        ...

    def attention_maps(self, batch: Mapping[str, Array]) -> Array:
        """Returns the attention probabilities, see `EncoderModel.attention_maps`."""
        ...


class EncoderModel(nnx.Module):
    """An encoder with the heads of a `HeadsSection`.

    Every encoder can have every pretraining head. The paths of parameters do not depend on the set
    of heads.
    """

    groups: ParameterGroups
    """The groups of all parameters that a model of the class can have."""
    mlm_head: ClassVar[type[MlmDecoder]] = MlmHead
    """The class of the MLM head."""
    replaced_token_head: ClassVar[type[ReplacedTokenHead]] = ReplacedTokenHead
    """The class of ELECTRA's head."""
    encoder: Encoder
    task: TaskHead

    def __init__(self, *, architecture: Any, execution: Execution, heads: HeadsSection) -> None:
        """Creates abstract parameters. Subclasses add the encoder and the task head."""
        self.heads = heads
        parts = {"architecture": architecture, "execution": execution}
        if heads.pooler:
            self.pooler = Pooler(**parts)
        if heads.mlm:
            self.mlm = self.mlm_head(**parts)
        if heads.next_sentence:
            self.next_sentence = NextSentenceHead(**parts)
        if heads.replaced_tokens:
            self.replaced_tokens = self.replaced_token_head(**parts)
        if heads.vectors is not None:
            self.embedding = VECTOR_HEADS[type(heads.vectors)](settings=heads.vectors, **parts)

    @staticmethod
    @abc.abstractmethod
    def limit(use: KernelUse) -> Limit | None:
        """Returns why a kernel cannot run, or None if it can."""

    def hidden(
        self,
        batch: Mapping[str, Array],
        *,
        words_BLD: Float[Array, "batch length embedding"] | None = None,
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
            batch, words_BLD=words_BLD, queries_BQ=queries_BQ, dropout_key=subkey(dropout_key, 0)
        )

    def embedded(
        self, batch: Mapping[str, Array], *, dropout_key: Array | None
    ) -> Float[Array, "batch ..."]:
        """Returns the vector of each text, see `VectorHead`. For the arguments, see `hidden`.

        The last layer computes only the states that are read.
        """
        segment_ids = batch["segment_ids"]
        queries_B1 = self.embedding.read_positions(segment_ids)
        hidden = self.hidden(batch, queries_BQ=queries_B1, dropout_key=dropout_key)
        return self.embedding(hidden, segment_ids, model=self)

    def embedded_states(
        self,
        hidden_BLD: Float[Array, "batch length hidden"],
        segment_ids: Int[Array, "batch length"],
    ) -> Float[Array, "batch ..."]:
        """Returns the vectors of `embedded` from all states of the last layer, cut."""
        return self.embedding.cut(self.embedding(hidden_BLD, segment_ids, model=self))

    def decoder_input(self, hidden_BPD: Array) -> Array:
        """Returns the input of the MLM head, [B, P, D]."""
        return hidden_BPD

    def mlm_logits(
        self,
        hidden_BLD: Float[Array, "batch length hidden"],
        positions_BP: Int[Array, "batch predictions"] | None = None,
    ) -> Float[Array, "batch predictions vocab"]:
        """Returns float32 logits over the padded vocabulary.

        `positions_BP` are the positions of the logits. The default is all positions.
        """
        if positions_BP is not None:
            hidden_BLD = gather_positions(hidden_BLD, positions_BP)
        return self.mlm(self.decoder_input(hidden_BLD), self.encoder.table)

    def scored(self, batch: Mapping[str, Array], *, dropout_key: Array | None) -> PretrainingScores:
        """Returns the MLM scores and the next-sentence logits of a batch in pretraining.

        In addition to the arrays for `hidden`, the batch has `masked_lm_positions` and
        `masked_lm_ids`, int32 [B, P], and with a next-sentence head `cls_positions`, int32 [B, E].
        The last layer computes only the states that the heads read.
        """
        words_BLD, shares_SVD = self.encoder.look_up(batch["input_ids"])
        masked = queries_BQ = batch["masked_lm_positions"]
        if self.heads.next_sentence:
            queries_BQ = jnp.concatenate([masked, batch["cls_positions"]], axis=1)
        hidden_BQD = self.hidden(
            batch, words_BLD=words_BLD, queries_BQ=queries_BQ, dropout_key=dropout_key
        )
        masked_BPD, cls_BED = hidden_BQD[:, : masked.shape[1]], hidden_BQD[:, masked.shape[1] :]
        rows_BPD, labels_BP = self.decoder_input(masked_BPD), batch["masked_lm_ids"]
        mlm = self.mlm.scored(rows_BPD, self.encoder.table, shares_SVD, labels_BP)
        pair = self.next_sentence_logits(cls_BED) if self.heads.next_sentence else None
        return PretrainingScores(mlm, pair)

    def next_token_scores(self, batch: Mapping[str, Array], *, dropout_key: Array | None) -> Scored:
        """Returns the scores [B, L] of every token's prediction of the next token of its row.

        The predictions read the MLM head. At the last token of a row, and where the next token
        belongs to another example, the score has no meaning. `scored_in_parts` keeps the logits of
        few tokens at a time. For the batch, see `hidden`.
        """
        words_BLD, shares_SVD = self.encoder.look_up(batch["input_ids"])
        hidden_BLD = self.hidden(batch, words_BLD=words_BLD, dropout_key=dropout_key)

        def score(hidden_BPD: Array, labels_BP: Array) -> Scored:
            rows_BPD = self.decoder_input(hidden_BPD)
            return self.mlm.scored(rows_BPD, self.encoder.table, shares_SVD, labels_BP)

        return scored_in_parts(score, hidden_BLD, jnp.roll(batch["input_ids"], -1, axis=1))

    def next_sentence_logits(
        self, cls_BED: Float[Array, "batch examples hidden"]
    ) -> Float[Array, "batch examples 2"]:
        """Returns the float32 logits of the next-sentence head for states of [CLS] tokens."""
        return self.next_sentence(self.pooler(cls_BED))

    def replaced_token_logits(
        self,
        hidden_BLD: Float[Array, "batch length hidden"],
        segment_ids: Int[Array, "batch length"],
    ) -> Float[Array, "batch length"]:
        """Returns a float32 logit per token: above 0 for a token that was probably replaced."""
        del segment_ids  # for heads that read other tokens of the example
        return self.replaced_tokens(hidden_BLD)

    def pooled(
        self, cls_BED: Float[Array, "batch examples hidden"]
    ) -> Float[Array, "batch examples hidden"]:
        """Returns the pooled vectors for states of [CLS] tokens."""
        return self.pooler(cls_BED)

    def read_positions(
        self, segment_ids: Int[Array, "batch length"]
    ) -> Int[Array, "batch 1"] | None:
        """Returns the position of the token that the task head reads, or None for all tokens.

        The token is [CLS]. If attention is left to right, it is the last token, because [CLS] then
        sees only itself.
        """
        if not self.heads.scores_rows:
            return None
        return position_of("last" if self.heads.causal else "cls", segment_ids)

    def read_token(self, hidden_BLD: Array, segment_ids: Array) -> Array:
        """Returns the state at `read_positions`, [B, 1, D], from all states or this state alone."""
        if not self.heads.causal or hidden_BLD.shape[1] == 1:
            return hidden_BLD[:, :1]
        position_B1 = position_of("last", segment_ids)
        assert position_B1 is not None
        return gather_positions(hidden_BLD, position_B1)

    def task_logits(
        self,
        hidden_BLD: Float[Array, "batch length hidden"],
        segment_ids: Array,
        *,
        dropout_key: Array | None = None,
    ) -> Float[Array, "batch ..."]:
        """Returns the float32 logits of the task head.

        The shape is [B, labels] for sequence classification, [B, 1] for a choice, [B, L, labels]
        for token classification, and [B, L, 2] (start, end) for question answering. `dropout_key`
        is the key of the dropout before the head, or None in evaluation.
        """
        states = self.task_states(hidden_BLD, segment_ids, dropout_key)
        logits = self.task(states).astype(jnp.float32)
        return self.row_logits(logits, segment_ids) if self.heads.scores_rows else logits

    @abc.abstractmethod
    def task_states(
        self, hidden_BLD: Array, segment_ids: Array, dropout_key: Array | None
    ) -> Float[Array, "batch queries hidden"]:
        """Returns the input of the task head: all states, or one vector of a row, [B, 1, D]."""

    def row_logits(self, logits_BQC: Array, segment_ids: Array) -> Float[Array, "batch outputs"]:
        """Returns the logits of rows from the outputs of the task head for `task_states`."""
        del segment_ids
        return logits_BQC[:, 0]

    def attention_maps(
        self, batch: Mapping[str, Array]
    ) -> Float[Array, "layers batch heads length length"]:
        """Returns the attention probabilities of every layer and head, float32, without dropout.

        ``maps[layer, row, head, query, key]`` is the weight of `key` for `query`. The weights of a
        query sum to 1 over the tokens that it attends to. If query or key is padding, the weight is
        0. Queries and keys are computed in the execution's dtype, as in training. The size of the
        result grows with L², so pass only a few sentences. For the batch, see `hidden`.
        """
        return self.encoder.attention_maps(batch)
