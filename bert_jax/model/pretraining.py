"""The encoder with both pretraining heads."""

from collections.abc import Mapping
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from bert_jax.model.bert import Bert
from bert_jax.model.config import Architecture, Execution, HeadsSection
from bert_jax.model.cross_entropy import Scored


class PretrainingLogits(NamedTuple):
    """Float32 logits of both heads."""

    mlm: Float[Array, "batch predictions vocab"]
    next_sentence: Float[Array, "batch examples 2"]


class PretrainingScores(NamedTuple):
    """What both heads say of a batch with labels."""

    mlm: Scored  # of its predictions
    next_sentence: Float[Array, "batch examples 2"]  # float32 logits


class BertForPretraining(Bert):
    """BERT with its masked-language-model and next-sentence heads."""

    def __init__(self, *, architecture: Architecture, execution: Execution) -> None:
        super().__init__(architecture=architecture, execution=execution, heads=HeadsSection())

    def __call__(
        self, batch: Mapping[str, Array], *, dropout_key: Array | None
    ) -> PretrainingLogits:
        """Returns the logits of a batch of rows.

        The batch is as for `Bert.hidden`, with `masked_lm_positions` int32 [B, P] and
        `cls_positions` int32 [B, E]. `dropout_key`: None in evaluation.
        """
        masked_BPD, cls_BED = self._read(batch, dropout_key=dropout_key)
        return PretrainingLogits(
            mlm=self.mlm(masked_BPD, self.encoder.embeddings.word[...]),
            next_sentence=self.next_sentence(self.pooler(cls_BED)),
        )

    def scored(self, batch: Mapping[str, Array], *, dropout_key: Array | None) -> PretrainingScores:
        """Returns the same with the MLM logits compared with `masked_lm_ids`, int32 [B, P].

        Where a kernel does so, the logits are no array of the program's.
        """
        words_BLD, shares_SVD = self.encoder.embeddings.look_up(batch["input_ids"])
        masked_BPD, cls_BED = self._read(batch, words_BLD=words_BLD, dropout_key=dropout_key)
        table_VD = self.encoder.embeddings.word[...]
        mlm = self.mlm.scored(masked_BPD, table_VD, shares_SVD, batch["masked_lm_ids"])
        return PretrainingScores(mlm, self.next_sentence(self.pooler(cls_BED)))

    def _read(
        self,
        batch: Mapping[str, Array],
        *,
        words_BLD: Array | None = None,
        dropout_key: Array | None,
    ) -> tuple[Array, Array]:
        """Returns the states that the heads read, [B, P, D] and [B, E, D]: no others are made."""
        masked, cls = batch["masked_lm_positions"], batch["cls_positions"]
        queries_BQ = jnp.concatenate([masked, cls], axis=1)
        hidden_BQD = self.hidden(
            batch, words_BLD=words_BLD, queries_BQ=queries_BQ, dropout_key=dropout_key
        )
        return hidden_BQD[:, : masked.shape[1]], hidden_BQD[:, masked.shape[1] :]
