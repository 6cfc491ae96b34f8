"""The loss of BERT, ALBERT and RoBERTa: masked language modelling and an optional pair task.

BERT adds next sentence prediction (arXiv 1810.04805, section 3.1), ALBERT adds sentence order
prediction (arXiv 1909.11942), and RoBERTa has no pair task (arXiv 1907.11692).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.data.rows.masking import MaskingSection
from bert_jax.encoders.build import encoder_builder
from bert_jax.model.architecture import TRAINING, EncoderArchitecture
from bert_jax.model.cross_entropy import cross_entropy
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.objectives.metrics import PlateauWatch, means, summed
from bert_jax.objectives.sections import MaskedObjectiveSection, PairTask, masked_rows
from bert_jax.task import Batch, FrozenModel, Metrics, Objective, Rngs, RowTransform, Sums, Watch
from bert_jax.text.tokenizer import Tokenizer

# Added to the loss's divisor, the number of masked pieces, as in google-research/bert
# `run_pretraining.py`.
MLM_EPSILON: Final = 1e-5

# Evaluation always masks as in the paper, so that runs can be compared.
EVALUATION_MASKING: Final = MaskingSection()


@dataclasses.dataclass(frozen=True, kw_only=True)
class MaskedLanguageModel:
    """Loss = Σ(w·nll)/(Σw + 1e-5) over a batch's masked pieces + mean nll of its pair task.

    Fields with ``compare=False`` affect neither the model nor the loss.
    """

    architecture: EncoderArchitecture
    execution: Execution
    heads: HeadsSection  # heads of the model
    masking: MaskingSection = dataclasses.field(compare=False)  # masking of training rows
    tokenizer: Tokenizer = dataclasses.field(compare=False)
    pair: PairTask | None  # also the prefix of metrics: ``sop_accuracy``
    best_metric: str = dataclasses.field(default="loss", compare=False)

    def features(
        self,
        *,
        seq_length: int,
        max_predictions: int | None = None,
        max_examples: int = 1,
        evaluation: bool,
    ) -> RowTransform:
        """Returns the row transform. Evaluation always uses `EVALUATION_MASKING`.

        If `max_predictions` is None, `MaskingSection` computes it.
        """
        return masked_rows(
            self.tokenizer,
            EVALUATION_MASKING if evaluation else self.masking,
            seq_length=seq_length,
            max_predictions=None if evaluation else max_predictions,
            max_examples=max_examples,
            pairs=self.pair is not None,
        )

    def build(self) -> EncoderModel:
        """Returns the model."""
        return encoder_builder(self.architecture, self.execution, self.heads)()

    def frozen_models(self) -> Mapping[str, FrozenModel]:
        """Returns no models."""
        return {}

    def divisors(self, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the divisor of each term of the loss for a batch."""
        divisors = {"mlm": batch["masked_lm_weights"].sum() + MLM_EPSILON}
        if self.pair is not None:
            divisors[self.pair] = jnp.maximum(batch["next_sentence_weights"].sum(), 1.0)
        return divisors

    def loss(
        self,
        model: nnx.Module,
        batch: Batch,
        *,
        divisors: Mapping[str, jax.Array],
        rngs: Rngs,
        frozen: Mapping[str, nnx.Module],
    ) -> tuple[jax.Array, Metrics]:
        """Returns the batch's contribution to the loss, and its metrics as (sum, count)."""
        del frozen
        assert isinstance(model, EncoderModel)
        found = model.scored(batch, dropout_key=rngs.dropout)
        metrics = summed("mlm", found.mlm, batch["masked_lm_weights"])
        loss = metrics["mlm_loss"][0] / divisors["mlm"]
        if self.pair is not None:
            assert found.next_sentence is not None
            pair = cross_entropy(found.next_sentence, batch["next_sentence_labels"])
            metrics |= summed(self.pair, pair, batch["next_sentence_weights"])
            loss += metrics[f"{self.pair}_loss"][0] / divisors[self.pair]
        return loss, metrics

    def flops_per_row(self, batch: Mapping[str, Any]) -> float:
        """Returns the model FLOPs of one row, forward and backward."""
        predictions = batch["masked_lm_positions"].shape[1]
        pooled = 0 if self.pair is None else batch["cls_positions"].shape[1]
        return TRAINING * self.architecture.forward_flops(
            seq_length=batch["input_ids"].shape[1],
            read=predictions + pooled,  # the masked pieces and [CLS]
            predictions=predictions,
            pooled=pooled,
        )

    def watch(self, *, unigram_entropy: float, total_steps: int) -> Watch:
        """Returns a watch that warns if the loss stays at the unigram entropy."""
        return PlateauWatch(
            unigram_entropy=unigram_entropy,
            vocab_size=self.architecture.vocab_size,
            total_steps=total_steps,
        )

    def score(self, sums: Sums) -> dict[str, float]:
        """Returns the total loss, and each task's loss and accuracy, from summed metrics.

        Without a pair in the data, the pair task has no scores.
        """
        paired = self.pair is not None and sums[f"{self.pair}_loss"][1] > 0
        terms = ("mlm", self.pair) if paired else ("mlm",)
        scores = means(sums, *(f"{term}_{kind}" for term in terms for kind in ("loss", "accuracy")))
        total, count = sums["mlm_loss"]
        scores["mlm_loss"] = total / (count + MLM_EPSILON)
        return {"loss": sum(scores[f"{term}_loss"] for term in terms), **scores}


def make(
    section: MaskedObjectiveSection,
    *,
    architecture: EncoderArchitecture,
    execution: Execution,
    tokenizer: Tokenizer,
) -> Objective:
    """Returns the objective of a section for a model."""
    return MaskedLanguageModel(
        architecture=architecture,
        execution=execution,
        heads=section.heads,
        masking=section.masking,
        tokenizer=tokenizer,
        pair=section.pair,
    )
