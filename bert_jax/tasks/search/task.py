"""The tasks of search in the train loop."""

import abc
import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.layers import subkey
from bert_jax.parallel.sharding_rules import constrain, gathered
from bert_jax.task import Batch, Metrics, Rngs, Sums
from bert_jax.tasks.batches import FIRST, INPUTS, WEIGHTS
from bert_jax.tasks.search import losses
from bert_jax.tasks.search.tuples import TEACHER, TEXTS
from bert_jax.tasks.search.vector_section import VectorLossSection
from bert_jax.tasks.task import FinetuneTask, logits
from bert_jax.train.state import define_model
from bert_jax.train.step import cut, part_key


@dataclasses.dataclass(frozen=True, kw_only=True)
class VectorTask(FinetuneTask):
    """Queries and passages, encoded by themselves. The loss compares the whole global batch.

    So the train step must not split a batch into microbatches. Instead, the task encodes the batch
    in `chunks`. Only the vectors of all chunks are kept. The backward pass encodes each chunk
    again, to compute its gradients (GradCache, arXiv 2101.06983).
    """

    training: VectorLossSection

    def divisors(self, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns no divisors, because the loss is a function of the whole batch."""
        del batch
        return {}

    def loss(
        self,
        model: nnx.Module,
        batch: Batch,
        *,
        divisors: Mapping[str, jax.Array],
        rngs: Rngs,
        frozen: Mapping[str, nnx.Module],
    ) -> tuple[jax.Array, Metrics]:
        """Returns the loss of a whole batch, and its sum over rows as a metric."""
        del divisors, frozen
        encoder = self._without_frozen_gradients(model)
        vectors = self._vectors(encoder, batch, rngs.dropout)
        loss, metrics = self.loss_of(encoder, vectors, batch, step=rngs.step)
        rows = batch[WEIGHTS].sum()
        return loss, {"task_loss": (loss * rows, rows), **metrics}

    @abc.abstractmethod
    def loss_of(
        self,
        model: EncoderModel,
        vectors_BN: jax.Array,
        batch: Batch,
        *,
        step: jax.Array | None,
    ) -> tuple[jax.Array, Metrics]:
        """Returns the loss of a whole batch and metrics besides the loss, see `Metrics`.

        `vectors_BN` are the results of `VectorHead` for the texts of all rows, float32 [B, N, ...].
        For `step`, see `Rngs`.
        """

    def similarity_loss(
        self, model: EncoderModel, vectors_BN: jax.Array, batch: Batch
    ) -> jax.Array:
        """Returns the loss of a kind that is `VectorLossSection.taught`, or `info_nce`."""
        if self.training.taught:
            return self.taught_loss(model, vectors_BN, batch)
        return losses.info_nce(
            vectors_BN,
            batch[TEXTS][:, 0],
            batch[WEIGHTS],
            compare=model.embedding.compare,
            scale=1 / self.training.temperature,
        )

    def taught_loss(self, model: EncoderModel, vectors_BN: jax.Array, batch: Batch) -> jax.Array:
        """Returns the loss of a kind that is `VectorLossSection.taught`."""
        compare, settings = model.embedding.compare, self.training
        if settings.kind == "margin_mse":
            return losses.margin_mse(vectors_BN, batch[TEACHER], batch[WEIGHTS], compare=compare)
        return losses.kl(
            vectors_BN,
            batch[TEACHER],
            batch[WEIGHTS],
            compare=compare,
            temperature=settings.temperature,
            teacher_temperature=settings.teacher_temperature,
        )

    def score(self, sums: Sums) -> dict[str, float]:
        """Returns the means of the loss and of the other metrics."""
        means = {name: total / max(count, 1) for name, (total, count) in sums.items()}
        del means["task_loss"]
        return super().score(sums) | means

    def _vectors(
        self, model: EncoderModel, batch: Batch, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Returns the results of all texts, float32 [B, N, ...]."""
        inputs = {name: batch[name] for name in (*INPUTS, *FIRST.values()) if name in batch}
        if self.chunks == 1:
            return _encoded(model, inputs, dropout_key)
        graphdef, state = nnx.split(model)
        # Gather once instead of for every chunk.
        axes = define_model(self.build).axes
        params = jax.tree.map(gathered, nnx.to_pure_dict(state), axes)

        @jax.checkpoint
        def encode(of_chunk: tuple[jax.Array, Batch]) -> jax.Array:
            index, chunk = of_chunk
            key = None
            if dropout_key is not None:
                key = part_key(dropout_key, index, chunk, self.chunks)
            return _encoded(nnx.merge(graphdef, params), chunk, key)

        chunks = {name: cut(array, self.chunks) for name, array in inputs.items()}
        found = jax.lax.map(encode, (jnp.arange(self.chunks), chunks))
        rows = found.swapaxes(0, 1).reshape(-1, *found.shape[2:])
        return constrain(rows, "batch", *["rest"] * (rows.ndim - 1))


def passage_ids(batch: Batch) -> jax.Array:
    """Returns the pieces of all texts but the first, [B, N - 1, L]."""
    ids = batch["input_ids"]
    return ids if FIRST["input_ids"] in batch else ids[:, 1:]


def _encoded(model: EncoderModel, batch: Batch, dropout_key: jax.Array | None) -> jax.Array:
    """Returns the results of all texts, [B, N, ...]. Shorter rows of token vectors end with 0."""
    others = logits(model, batch, dropout_key=dropout_key)
    if FIRST["input_ids"] not in batch:
        return others
    first = {name: batch[key][:, None] for name, key in FIRST.items()}
    # `logits` uses the subkeys 0 to 2.
    parts = logits(model, first, dropout_key=subkey(dropout_key, 3)), others
    if others.ndim > 3:
        length = max(part.shape[2] for part in parts)
        parts = [
            jnp.pad(part, ((0, 0), (0, 0), (0, length - part.shape[2]), (0, 0))) for part in parts
        ]
    return jnp.concatenate(parts, axis=1)
