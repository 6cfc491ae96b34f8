"""The task of reranking in the train loop: losses over lists of candidates.

Shape suffixes: B rows, K candidates of a row. A row of the loss `bce` or `mse` may have one.
"""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.task import Batch
from bert_jax.tasks.batches import WEIGHTS
from bert_jax.tasks.rerank.candidates import LABELS
from bert_jax.tasks.rerank.section import RerankLossSection
from bert_jax.tasks.task import NO_POSITION, FinetuneTask


@dataclasses.dataclass(frozen=True, kw_only=True)
class RerankTask(FinetuneTask):
    """A cross-encoder. The loss is a mean over pairs, over lists, or over margins."""

    training: RerankLossSection

    def _item_weights(self, batch: Batch) -> jax.Array:
        """Returns the weight of each list, [B], or of each pair or margin, [B, K] or [B, K − 1]."""
        if self.training.kind == "list_net":
            return batch[WEIGHTS]
        weights_BK = batch[WEIGHTS][:, None] * _exists(batch)
        return weights_BK[:, 1:] if self.training.kind == "margin_mse" else weights_BK

    def _losses(self, found: jax.Array, batch: Batch) -> jax.Array:
        """Returns the loss of each item of `_item_weights` from the logits, [B, K].

        Sources: `BinaryCrossEntropyLoss`, `MSELoss`, `ListNetLoss` (doi 10.1145/1273496.1273513)
        and `MarginMSELoss` (arXiv 2010.02666) of cross-encoders in sentence-transformers.
        """
        exists_BK, labels_BK = _exists(batch), batch[LABELS]
        if self.training.kind == "list_net":
            wanted_BK = jax.nn.softmax(jnp.where(exists_BK, labels_BK, NO_POSITION))
            return -(wanted_BK * jax.nn.log_softmax(found)).sum(axis=-1)
        found_BK = jnp.where(exists_BK, found, 0)
        if self.training.kind == "bce":
            fits_BK = self.training.positive_weight * labels_BK * jax.nn.log_sigmoid(found_BK)
            return -fits_BK - (1 - labels_BK) * jax.nn.log_sigmoid(-found_BK)
        differences_BK = found_BK - labels_BK
        if self.training.kind == "margin_mse":
            differences_BK = differences_BK[:, :1] - differences_BK[:, 1:]
        return jnp.square(differences_BK)


def _exists(batch: Batch) -> jax.Array:
    """Returns whether each candidate of a row exists, [B, K]."""
    return (batch["segment_ids"] > 0).any(axis=-1).reshape(batch[LABELS].shape)
