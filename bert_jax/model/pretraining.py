"""The encoder with both pretraining heads."""

from collections.abc import Mapping
from typing import NamedTuple

from jaxtyping import Array, Float

from bert_jax.model.bert import Bert
from bert_jax.model.config import Architecture, Execution, HeadsSection
from bert_jax.model.heads import gather_positions


class PretrainingLogits(NamedTuple):
    """Float32 logits of both heads."""

    mlm: Float[Array, "batch predictions vocab"]
    next_sentence: Float[Array, "batch examples 2"]


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
        cls_BED = gather_positions(hidden_BLD, batch["cls_positions"])
        return PretrainingLogits(
            mlm=self.mlm_logits(hidden_BLD, batch["masked_lm_positions"]),
            next_sentence=self.next_sentence(self.pooler(cls_BED)),
        )
