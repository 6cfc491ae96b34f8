"""The objectives of BERT, ALBERT and RoBERTa: masked language modelling and an optional pair task.

BERT adds next sentence prediction (arXiv 1810.04805, section 3.1), ALBERT adds sentence order
prediction (arXiv 1909.11942), and RoBERTa has no pair task (arXiv 1907.11692).
"""

import dataclasses
import math
from collections import deque
from collections.abc import Mapping
from typing import Final, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.data.rows.masking import MaskingSection
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.encoders.build import encoder_builder
from bert_jax.model.architecture import TRAINING, EncoderArchitecture
from bert_jax.model.cross_entropy import Scored, cross_entropy
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.task import Batch, FrozenModel, Metrics, Rngs, RowTransform, Sums, Watch
from bert_jax.text.tokenizer import Tokenizer

# Added to the loss's divisor, the number of masked pieces, as in google-research/bert
# `run_pretraining.py`.
MLM_EPSILON: Final = 1e-5

# A loss within this relative distance of the entropy is on the plateau. In small runs, the noise of
# the loss is about as large.
TOLERANCE: Final = 0.02
# Warm-up steps in the paper. With a good learning rate, BERT leaves the plateau during warm-up.
PATIENCE_STEPS: Final = 10_000
# Consecutive reports on the plateau before a warning.
WINDOW: Final = 5

PairTask = Literal["nsp", "sop"]

# Evaluation always masks as in the paper, so that runs can be compared.
EVALUATION_MASKING: Final = MaskingSection()


@dataclasses.dataclass(frozen=True, kw_only=True)
class BertObjective:
    """Loss = Σ(w·nll)/(Σw + 1e-5) over a batch's masked pieces + mean nll of its pair task.

    Without a pair task, the model still has a pooler and a next-sentence head, so that a run can
    start from the checkpoint of another objective. These heads get no gradient, and only weight
    decay changes them.

    Fields with ``compare=False`` affect neither the model nor the loss.
    """

    architecture: EncoderArchitecture
    execution: Execution
    masking: MaskingSection = dataclasses.field(compare=False)  # masking of training rows
    tokenizer: Tokenizer = dataclasses.field(compare=False)
    pair: PairTask | None = "nsp"  # also the prefix of metrics: ``sop_accuracy``
    best_metric: str = dataclasses.field(default="loss", compare=False)

    def features(
        self, *, seq_length: int, max_predictions: int | None, evaluation: bool
    ) -> RowTransform:
        """Returns the row transform. Evaluation always uses `EVALUATION_MASKING`.

        If `max_predictions` is None, `MaskingSection` computes it.
        """
        masking = EVALUATION_MASKING if evaluation else self.masking
        if max_predictions is not None and not evaluation:
            masking = masking.model_copy(update={"max_predictions": max_predictions})
        return MaskingTransform.from_tokenizer(
            self.tokenizer, seq_length=seq_length, masking=masking
        )

    def build(self) -> EncoderModel:
        """Returns the model."""
        return encoder_builder(self.architecture, self.execution, HeadsSection())()

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
        metrics = _summed("mlm", found.mlm, batch["masked_lm_weights"])
        loss = metrics["mlm_loss"][0] / divisors["mlm"]
        if self.pair is not None:
            assert found.next_sentence is not None
            pair = cross_entropy(found.next_sentence, batch["next_sentence_labels"])
            metrics |= _summed(self.pair, pair, batch["next_sentence_weights"])
            loss += metrics[f"{self.pair}_loss"][0] / divisors[self.pair]
        return loss, metrics

    def flops_per_row(self, *, seq_length: int, predictions: int) -> float:
        """Returns the model FLOPs of one row, forward and backward."""
        return TRAINING * self.architecture.forward_flops(
            seq_length=seq_length,
            read=predictions + 1,  # the masked pieces and [CLS]
            predictions=predictions,
            pooled=1,
        )

    def watch(self, *, unigram_entropy: float, total_steps: int) -> Watch:
        """Returns a watch that warns if the loss stays at the unigram entropy."""
        return PlateauWatch(
            unigram_entropy=unigram_entropy,
            vocab_size=self.architecture.vocab_size,
            patience=min(PATIENCE_STEPS, total_steps // 4),
        )

    def score(self, sums: Sums) -> dict[str, float]:
        """Returns the total loss, and each task's loss and accuracy, from summed metrics."""
        mlm_loss, mlm_count = sums["mlm_loss"]
        loss = mlm_loss / (mlm_count + MLM_EPSILON)
        scores = {"mlm_loss": loss, "mlm_accuracy": sums["mlm_accuracy"][0] / max(mlm_count, 1.0)}
        if self.pair is not None:
            for name in (f"{self.pair}_loss", f"{self.pair}_accuracy"):
                total, count = sums[name]
                scores[name] = total / max(count, 1.0)
            loss += scores[f"{self.pair}_loss"]
        return {"loss": loss, **scores}


def _summed(term: str, scored: Scored, weights: jax.Array) -> Metrics:
    count = weights.sum()
    return {
        f"{term}_loss": ((scored.loss * weights).sum(), count),
        f"{term}_accuracy": ((scored.right * weights).sum(), count),
    }


class PlateauWatch:
    """Compares the loss of the masked language model with the unigram entropy of the corpus.

    A masked language model first learns how often each piece occurs. Its loss then equals the
    unigram entropy, and can stay on this plateau for thousands of steps, until attention starts to
    use the context.
    """

    def __init__(
        self, *, unigram_entropy: float, vocab_size: int, patience: int = PATIENCE_STEPS
    ) -> None:
        """Never warns before step `patience`. The entropy is in nats."""
        self._entropy = unigram_entropy
        self._start = math.log(vocab_size)
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._patience = patience
        self._warned = False

    @property
    def expectation(self) -> str:
        """The normal course of the loss, as a message for the start of a run."""
        return (
            f"normal MLM loss: {self._start:.1f} at the start (ln of the vocabulary size), near "
            f"{self._entropy:.2f} (unigram entropy of this corpus) while the model ignores the "
            f"context, and lower once it uses the context"
        )

    def remark(self, scores: Mapping[str, float]) -> str:
        """Returns a comparison of the MLM loss with the unigram entropy, in words."""
        mlm_loss = scores["mlm_loss"]
        if mlm_loss > self._entropy * (1 + TOLERANCE):
            return "above the unigram entropy"
        if mlm_loss >= self._entropy * (1 - TOLERANCE):
            return "on the unigram plateau"
        return f"{self._entropy - mlm_loss:.2f} below the unigram entropy"

    def warn(self, *, step: int, scores: Mapping[str, float]) -> str | None:
        """Returns a warning once, when the loss has been on the plateau for too long."""
        mlm_loss = scores["mlm_loss"]
        self._recent.append(mlm_loss)
        stuck = len(self._recent) == WINDOW and all(
            abs(loss - self._entropy) <= TOLERANCE * self._entropy for loss in self._recent
        )
        if self._warned or not stuck or step < self._patience:
            return None
        self._warned = True
        return (
            f"step {step}: MLM loss {mlm_loss:.2f} has stayed at the unigram entropy "
            f"{self._entropy:.2f}: the model does not use the context yet. Usual causes: learning "
            f"rate too high or too low, warm-up too short, batch too small, post-LayerNorm with "
            f"many layers and no warm-up"
        )
