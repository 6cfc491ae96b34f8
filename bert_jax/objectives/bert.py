"""BERT's own objective: masked language model plus next sentence (arXiv 1810.04805, 3.1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.data.masking import MaskedRow, MaskingSection
from bert_jax.model.config import Architecture, Execution
from bert_jax.model.flops import train_flops
from bert_jax.model.heads import cross_entropy
from bert_jax.model.pretraining import BertForPretraining
from bert_jax.task import Batch, Features, Metrics, Sums
from bert_jax.text.tokenizer import Tokenizer

# The release adds it to the number of masked pieces before dividing (run_pretraining.py).
MLM_EPSILON: Final = 1e-5

# Evaluation masks as the paper does, whatever training does, so that runs can be compared.
EVALUATION_MASKING: Final = MaskingSection()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertObjective:
    """Loss = Σ(w·nll)/(Σw + 1e-5) over masked pieces + mean next-sentence nll, global batch."""

    architecture: Architecture
    execution: Execution
    masking: MaskingSection
    tokenizer: Tokenizer
    best_metric: str = "loss"

    @classmethod
    def create(
        cls,
        *,
        masking: MaskingSection,
        architecture: Architecture,
        execution: Execution,
        tokenizer: Tokenizer,
    ) -> BertObjective:
        """Returns the objective for a model, a tokenizer and a way of masking."""
        return cls(
            architecture=architecture, execution=execution, masking=masking, tokenizer=tokenizer
        )

    def features(
        self, *, seq_length: int, max_predictions: int | None, evaluation: bool
    ) -> Features:
        """Returns the row maker (see `bert_jax.data.masking.MaskedRow`)."""
        masking = EVALUATION_MASKING if evaluation else self.masking
        if max_predictions is not None:
            masking = masking.model_copy(update={"max_predictions": max_predictions})
        return MaskedRow.from_tokenizer(self.tokenizer, seq_length=seq_length, masking=masking)

    def build(self, rngs: nnx.Rngs) -> BertForPretraining:
        """Returns the model with fresh parameters."""
        return BertForPretraining(
            architecture=self.architecture, execution=self.execution, rngs=rngs
        )

    def weights(self, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the divisors of the two terms over the batch handed in."""
        return {
            "mlm": batch["masked_lm_weights"].sum() + MLM_EPSILON,
            "nsp": jnp.maximum(batch["next_sentence_weights"].sum(), 1.0),
        }

    def loss(
        self,
        model: nnx.Module,
        batch: Batch,
        *,
        weights: Mapping[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> tuple[jax.Array, Metrics]:
        """Returns the batch's share of the loss and its (sum, count) metrics."""
        logits = model(batch, dropout_key=dropout_key)
        mlm_weights, nsp_weights = batch["masked_lm_weights"], batch["next_sentence_weights"]
        mlm = cross_entropy(logits.mlm, batch["masked_lm_ids"])
        nsp = cross_entropy(logits.next_sentence, batch["next_sentence_labels"])
        mlm_loss, nsp_loss = (mlm.loss * mlm_weights).sum(), (nsp.loss * nsp_weights).sum()
        mlm_count, nsp_count = mlm_weights.sum(), nsp_weights.sum()
        metrics = {
            "mlm_loss": (mlm_loss, mlm_count),
            "mlm_accuracy": ((mlm.right * mlm_weights).sum(), mlm_count),
            "nsp_loss": (nsp_loss, nsp_count),
            "nsp_accuracy": ((nsp.right * nsp_weights).sum(), nsp_count),
        }
        return mlm_loss / weights["mlm"] + nsp_loss / weights["nsp"], metrics

    def flops_per_row(self, *, seq_length: int, max_predictions: int | None) -> float:
        """Returns the model FLOPs of one row, forward and backward."""
        predictions = max_predictions or self.masking.predictions(seq_length)
        return train_flops(self.architecture, seq_length=seq_length, predictions=predictions)

    def score(self, sums: Sums) -> dict[str, float]:
        """Returns loss, MLM and NSP loss (nats) and accuracy over everything summed."""
        mlm_loss, mlm_count = sums["mlm_loss"]
        nsp_loss, nsp_count = sums["nsp_loss"]
        scores = {
            "mlm_loss": mlm_loss / (mlm_count + MLM_EPSILON),
            "mlm_accuracy": sums["mlm_accuracy"][0] / max(mlm_count, 1.0),
            "nsp_loss": nsp_loss / max(nsp_count, 1.0),
            "nsp_accuracy": sums["nsp_accuracy"][0] / max(nsp_count, 1.0),
        }
        return {"loss": scores["mlm_loss"] + scores["nsp_loss"], **scores}
