"""The task of sparse encoders in the train loop."""

import dataclasses

import jax
import jax.numpy as jnp

from bert_jax.model.architecture import TRAINING
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.task import Batch, Metrics
from bert_jax.tasks.batches import WEIGHTS
from bert_jax.tasks.search import losses
from bert_jax.tasks.search.task import VectorTask
from bert_jax.tasks.sparse.section import SparseLossSection


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparseTask(VectorTask):
    """Sparse vectors, with a regulariser for queries and one for passages."""

    training: SparseLossSection
    warmup: int  # number of steps in which the regularisers' weights rise

    def flops_per_row(self, *, seq_length: int) -> float:
        """Returns the FLOPs of a text, forward and backward."""
        return TRAINING * self.architecture.forward_flops(
            seq_length=seq_length, predictions=seq_length
        )

    def loss_of(
        self,
        model: EncoderModel,
        vectors_BN: jax.Array,
        batch: Batch,
        *,
        step: jax.Array | None,
    ) -> tuple[jax.Array, Metrics]:
        """Returns the loss with its regularisers; the regularisers and the active pieces."""
        training, weights_B = self.training, batch[WEIGHTS]
        loss = self.similarity_loss(model, vectors_BN, batch)
        rise = 1.0 if step is None else jnp.minimum(step / max(self.warmup, 1), 1) ** 2
        metrics: Metrics = {}
        for name, texts, weight in (
            ("query", vectors_BN[:, :1], training.query_flops),
            ("passage", vectors_BN[:, 1:], training.passage_flops),
        ):
            flops = losses.flops(texts, weights_B)
            loss += rise * weight * flops
            active = ((texts > 0).sum(axis=-1) * weights_B[:, None]).sum()
            metrics[f"{name}_flops"] = flops, jnp.ones((), jnp.float32)
            metrics[f"{name}_pieces"] = active, weights_B.sum() * texts.shape[1]
        return loss, metrics
