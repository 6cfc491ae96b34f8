"""The loss of left-to-right language models: every token predicts the next one."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Final

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.data.rows.unmasked_transform import UnmaskedTransform
from bert_jax.encoders.build import encoder_builder
from bert_jax.model.architecture import TRAINING, EncoderArchitecture
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.objectives.metrics import PlateauWatch, means, summed
from bert_jax.objectives.sections import CausalObjectiveSection
from bert_jax.task import Batch, FrozenModel, Metrics, Objective, Rngs, RowTransform, Sums, Watch
from bert_jax.text.tokenizer import Tokenizer

# Above this loss in nats, the perplexity is not a float.
_MOST_NATS: Final = 700.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextToken:
    """Loss = the mean over all tokens but the last of each example of −log p(next token).

    Fields with ``compare=False`` affect neither the model nor the loss.
    """

    architecture: EncoderArchitecture
    execution: Execution
    heads: HeadsSection  # heads of the model
    tokenizer: Tokenizer = dataclasses.field(compare=False)
    best_metric: str = dataclasses.field(default="loss", compare=False)

    def features(
        self,
        *,
        seq_length: int,
        max_predictions: int | None = None,
        max_examples: int = 1,
        evaluation: bool,
    ) -> RowTransform:
        """Returns the row transform, the same in evaluation. Every token is a prediction."""
        del max_predictions, evaluation
        return UnmaskedTransform(
            seq_length=seq_length,
            vocab_size=self.tokenizer.vocab_size,
            pad_id=self.tokenizer.special.pad,
            max_examples=max_examples,
        )

    def build(self) -> EncoderModel:
        """Returns the model."""
        return encoder_builder(self.architecture, self.execution, self.heads)()

    def frozen_models(self) -> Mapping[str, FrozenModel]:
        """Returns no models."""
        return {}

    def divisors(self, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the number of predictions of a batch."""
        return {"next_token": jnp.maximum(_has_next(batch).sum(), 1.0)}

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
        found, weights = model.next_token_scores(batch, dropout_key=rngs.dropout), _has_next(batch)
        metrics = summed("next_token", found, weights)
        return metrics["next_token_loss"][0] / divisors["next_token"], metrics

    def flops_per_row(self, batch: Mapping[str, Any]) -> float:
        """Returns the model FLOPs of one row, forward and backward.

        As in PaLM's definition of MFU, scores of later tokens count as if they were computed.
        """
        length = batch["input_ids"].shape[1]
        forward = self.architecture.forward_flops(seq_length=length, predictions=length)
        return TRAINING * forward

    def watch(self, *, unigram_entropy: float, total_steps: int) -> Watch:
        """Returns a watch that warns if the loss stays at the unigram entropy."""
        return PlateauWatch(
            unigram_entropy=unigram_entropy,
            vocab_size=self.architecture.vocab_size,
            total_steps=total_steps,
            metric="next_token_loss",
        )

    def score(self, sums: Sums) -> dict[str, float]:
        """Returns loss, accuracy and perplexity (e to the loss) from summed metrics."""
        scores = means(sums, "next_token_loss", "next_token_accuracy")
        loss = scores["next_token_loss"]
        return {"loss": loss, **scores, "perplexity": math.exp(min(loss, _MOST_NATS))}


def _has_next(batch: Batch) -> jax.Array:
    """Returns 1 for every token that has a next token in its example, float32 [B, L]."""
    segments = batch["segment_ids"]
    found = (segments[:, :-1] == segments[:, 1:]) & (segments[:, :-1] > 0)
    return jnp.pad(found.astype(jnp.float32), ((0, 0), (0, 1)))


def make(
    section: CausalObjectiveSection,
    *,
    architecture: EncoderArchitecture,
    execution: Execution,
    tokenizer: Tokenizer,
) -> Objective:
    """Returns the objective of a section for a model."""
    return NextToken(
        architecture=architecture, execution=execution, heads=section.heads, tokenizer=tokenizer
    )
