"""The task of reranking in the train loop: losses over lists of candidates.

Shape suffixes: B rows, K candidates of a row. A row of the loss `bce` or `mse` may have one.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp

from bert_jax.model.cross_entropy import soft_target_loss
from bert_jax.task import Batch
from bert_jax.tasks.batches import WEIGHTS
from bert_jax.tasks.rerank.pairs import LABELS
from bert_jax.tasks.rerank.section import RerankLossSection
from bert_jax.tasks.task import NO_POSITION, FinetuneTask


@dataclasses.dataclass(frozen=True, kw_only=True)
class RerankTask(FinetuneTask):
    """A cross-encoder. The loss is a mean over pairs, over lists, or over margins."""

    training: RerankLossSection

    def _item_weights(self, batch: Batch) -> jax.Array:
        """Returns the weight of each list, [B], or of each pair, [B, K], or margin, [B, K − 1].

        `lambda` has a weight for each two candidates of which the first has the larger label,
        [B, K, K].
        """
        if self.training.kind in ("list_net", "kl"):
            return batch[WEIGHTS]
        if self.training.kind == "lambda":
            exists_BK, labels_BK = _exists(batch), batch[LABELS]
            ordered_BKK = _differences(labels_BK) > 0
            both_BKK = exists_BK[:, :, None] & exists_BK[:, None, :]
            return batch[WEIGHTS][:, None, None] * (ordered_BKK & both_BKK)
        weights_BK = batch[WEIGHTS][:, None] * _exists(batch)
        return weights_BK[:, 1:] if self.training.kind == "margin_mse" else weights_BK

    def _losses(self, found: jax.Array, batch: Batch) -> jax.Array:
        """Returns the loss of each item of `_item_weights` from the logits, [B, K].

        Sources: `BinaryCrossEntropyLoss`, `MSELoss`, `ListNetLoss` (doi 10.1145/1273496.1273513),
        `LambdaLoss` and `MarginMSELoss` (arXiv 2010.02666) of cross-encoders in
        sentence-transformers, and the formula of its `DistillKLDivLoss` (arXiv 2010.11386).
        """
        exists_BK, labels_BK = _exists(batch), batch[LABELS]
        if self.training.kind == "list_net":
            wanted_BK = jax.nn.softmax(jnp.where(exists_BK, labels_BK, NO_POSITION))
            return -(wanted_BK * jax.nn.log_softmax(found)).sum(axis=-1)
        if self.training.kind == "kl":
            temperature = self.training.temperature
            scores_BK = labels_BK * (temperature / self.training.teacher_temperature)
            wanted_BK = jnp.where(exists_BK, scores_BK, NO_POSITION)
            return soft_target_loss(found, wanted_BK, temperature=temperature)
        found_BK = jnp.where(exists_BK, found, 0)
        if self.training.kind == "lambda":
            margins_BKK = _differences(found)
            weights_BKK = _lambda_weights(found, jnp.where(exists_BK, labels_BK, 0))
            return -weights_BKK * jax.nn.log_sigmoid(margins_BKK) / math.log(2)
        if self.training.kind == "bce":
            fits_BK = self.training.positive_weight * labels_BK * jax.nn.log_sigmoid(found_BK)
            return -fits_BK - (1 - labels_BK) * jax.nn.log_sigmoid(-found_BK)
        differences_BK = found_BK - labels_BK
        if self.training.kind == "margin_mse":
            differences_BK = differences_BK[:, :1] - differences_BK[:, 1:]
        return jnp.square(differences_BK)


def _lambda_weights(found: jax.Array, labels_BK: jax.Array) -> jax.Array:
    """Returns the weight of each two candidates in LambdaLoss, [B, K, K].

    The scheme is NDCG-Loss2++ of "The LambdaLoss Framework" (doi 10.1145/3269206.3271784) with the
    published μ = 10. Missing candidates have the lowest scores and the label 0.
    """
    ranks_BK = jnp.argsort(jnp.argsort(-found, axis=-1), axis=-1)
    # Relative to the largest label, so that 2 to the power of a large label does not overflow.
    largest_B1 = labels_BK.max(axis=-1, keepdims=True)
    gains_BK = jnp.exp2(jnp.maximum(labels_BK, 0) - largest_B1) - jnp.exp2(-largest_B1)
    discounts_K = 1 / jnp.log2(2.0 + jnp.arange(labels_BK.shape[1]))
    ideal_B1 = (-jnp.sort(-gains_BK, axis=-1) * discounts_K).sum(axis=-1, keepdims=True)
    gains_BK /= jnp.maximum(ideal_B1, 1e-10)
    distances_BKK = jnp.abs(ranks_BK[:, :, None] - ranks_BK[:, None, :])
    steps_K = jnp.append(0.0, discounts_K[:-1] - discounts_K[1:])
    bound_BKK = steps_K[distances_BKK]
    swap_BKK = jnp.abs(_differences(discounts_K[ranks_BK]))
    return (10.0 * bound_BKK + swap_BKK) * jnp.abs(_differences(gains_BK))


def _differences(values_BK: jax.Array) -> jax.Array:
    return values_BK[:, :, None] - values_BK[:, None, :]


def _exists(batch: Batch) -> jax.Array:
    """Returns whether each candidate of a row exists, [B, K]."""
    return (batch["segment_ids"] > 0).any(axis=-1).reshape(batch[LABELS].shape)
