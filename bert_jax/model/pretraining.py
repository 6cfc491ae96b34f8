"""The encoder with both pretraining heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from flax import nnx
from jaxtyping import Array, Float

from bert_jax.model.config import Architecture, Execution
from bert_jax.model.encoder import Encoder
from bert_jax.model.heads import MlmHead, NextSentenceHead, Pooler, gather_positions
from bert_jax.model.layers import subkey


class PretrainingLogits(NamedTuple):
    """Float32 logits of both heads."""

    mlm: Float[Array, "batch predictions vocab"]
    next_sentence: Float[Array, "batch examples 2"]


class BertForPretraining(nnx.Module):
    """BERT with its masked-language-model and next-sentence heads."""

    def __init__(self, *, architecture: Architecture, execution: Execution, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(architecture=architecture, execution=execution, rngs=rngs)
        self.pooler = Pooler(architecture=architecture, execution=execution, rngs=rngs)
        self.mlm = MlmHead(architecture=architecture, execution=execution, rngs=rngs)
        self.next_sentence = NextSentenceHead(
            architecture=architecture, execution=execution, rngs=rngs
        )

    def __call__(
        self, batch: Mapping[str, Array], *, dropout_key: Array | None
    ) -> PretrainingLogits:
        """Returns the logits of a batch of rows.

        Args:
            batch: `input_ids`, `token_type_ids`, `segment_ids` int32 [B, L];
                `masked_lm_positions` int32 [B, P]; `cls_positions` int32 [B, E]; `position_ids`
                int32 [B, L] where several examples share a row.
            dropout_key: None in evaluation.
        """
        hidden_BLD = self.encoder(
            batch["input_ids"],
            batch["token_type_ids"],
            batch["segment_ids"],
            batch.get("position_ids"),
            dropout_key=subkey(dropout_key, 0),
        )
        masked_BPD = gather_positions(hidden_BLD, batch["masked_lm_positions"])
        cls_BED = gather_positions(hidden_BLD, batch["cls_positions"])
        return PretrainingLogits(
            mlm=self.mlm(masked_BPD, self.encoder.embeddings.word[...]),
            next_sentence=self.next_sentence(self.pooler(cls_BED)),
        )
