"""The encoder with both pretraining heads."""

from collections.abc import Mapping
from typing import NamedTuple

from jaxtyping import Array, Float

from bert_jax.model.bert import Bert
from bert_jax.model.config import Architecture, Execution, HeadsSection
from bert_jax.model.cross_entropy import Scored
from bert_jax.model.heads import gather_positions


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
        hidden_BLD = self.hidden(batch, dropout_key=dropout_key)
        return PretrainingLogits(
            mlm=self.mlm_logits(hidden_BLD, batch["masked_lm_positions"]),
            next_sentence=self._next_sentence(hidden_BLD, batch),
        )

    def scored(self, batch: Mapping[str, Array], *, dropout_key: Array | None) -> PretrainingScores:
        """Returns the same with the MLM logits compared with `masked_lm_ids`, int32 [B, P].

        Where a kernel does so, the logits are no array of the program's.
        """
        positions, labels = batch["masked_lm_positions"], batch["masked_lm_ids"]
        words_BLD, shares_SVD = self.encoder.embeddings.look_up(batch["input_ids"])
        hidden_BLD = self.hidden(batch, words_BLD=words_BLD, dropout_key=dropout_key)
        masked_BPD = gather_positions(hidden_BLD, positions)
        table_VD = self.encoder.embeddings.word[...]
        mlm = self.mlm.scored(masked_BPD, table_VD, shares_SVD, labels)
        return PretrainingScores(mlm, self._next_sentence(hidden_BLD, batch))

    def _next_sentence(self, hidden_BLD: Array, batch: Mapping[str, Array]) -> Array:
        cls_BED = gather_positions(hidden_BLD, batch["cls_positions"])
        return self.next_sentence(self.pooler(cls_BED))
