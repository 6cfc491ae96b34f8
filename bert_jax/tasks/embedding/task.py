"""The task of sentence embeddings in the train loop."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.errors import UserError
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.parallel.sharding_rules import constrain, gathered
from bert_jax.task import Batch, Metrics, Rngs, Sums
from bert_jax.tasks.batches import INPUTS, WEIGHTS
from bert_jax.tasks.embedding import losses
from bert_jax.tasks.embedding.section import EmbeddingLossSection
from bert_jax.tasks.embedding.tuples import SCORE, TEXTS
from bert_jax.tasks.task import FinetuneTask, logits
from bert_jax.train.state import define_model
from bert_jax.train.step import cut, part_key

_LARGEST_SCALE = 100.0  # limit of a learned 1/temperature, as in CLIP (arXiv 2103.00020)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingTask(FinetuneTask):
    """Sentence embeddings. The loss compares all texts of the global batch.

    So the train step must not split a batch into microbatches. Instead, the task encodes the batch
    in `chunks`. Only the vectors of all chunks are kept. The backward pass encodes each chunk
    again, to compute its gradients (GradCache, arXiv 2101.06983).
    """

    training: EmbeddingLossSection

    def __post_init__(self) -> None:
        """Raises UserError if a width of `matryoshka` is too large, or SimCSE has no dropout."""
        assert self.heads.embedding is not None
        width = self.heads.embedding.projection or self.architecture.hidden_size
        if self.training.matryoshka and max(self.training.matryoshka) > width:
            raise UserError(
                "embedding.matryoshka",
                f"found {max(self.training.matryoshka)}, allowed: widths up to {width}, the width "
                "of the model's vectors",
                place="finetune.task.loss.matryoshka",
            )
        no_dropout = self.architecture.with_dropout(0.0)
        if self.training.kind == "simcse" and self.architecture == no_dropout:
            raise UserError(
                "embedding.no_dropout",
                "found 0, but the loss simcse compares vectors of different dropout. Use 0.1.",
                place="finetune.dropout",
            )

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
        assert encoder.heads.embedding is not None
        vectors_BNW = self._vectors(encoder, batch, rngs.dropout)
        scale = self._scale(encoder)
        widths = self.training.matryoshka or (vectors_BNW.shape[-1],)
        loss = jnp.zeros((), jnp.float32)
        for width in widths:
            shorter = losses.truncated(
                vectors_BNW, width, normalize=encoder.heads.embedding.by_cosine
            )
            loss += self._loss_of(shorter, batch, scale)
        rows, one = batch[WEIGHTS].sum(), jnp.ones((), jnp.float32)
        metrics = {"task_loss": (loss * rows, rows)}
        if isinstance(scale, jax.Array):
            metrics["temperature"] = (1 / scale, one)
        return loss, metrics

    def score(self, sums: Sums) -> dict[str, float]:
        """Returns the mean loss, and the mean of a learned temperature."""
        found = super().score(sums)
        if "temperature" in sums:
            total, count = sums["temperature"]
            found["temperature"] = total / max(count, 1)
        return found

    def _loss_of(self, vectors_BNW: jax.Array, batch: Batch, scale: jax.Array | float) -> jax.Array:
        kind, weights = self.training.kind, batch[WEIGHTS]
        if kind == "cosent":
            return losses.cosent(vectors_BNW, batch[SCORE], weights, scale=float(scale))
        if kind == "cosine":
            return losses.cosine_regression(vectors_BNW, batch[SCORE], weights)
        texts = batch[TEXTS][:, 0]
        symmetric = self.training.symmetric
        return losses.info_nce(vectors_BNW, texts, weights, scale=scale, symmetric=symmetric)

    def _scale(self, model: EncoderModel) -> jax.Array | float:
        if not self.training.learn_temperature:
            return 1 / self.training.temperature
        return jnp.minimum(jnp.exp(model.embedding.scale[0]), _LARGEST_SCALE)

    def _vectors(
        self, model: EncoderModel, batch: Batch, dropout_key: jax.Array | None
    ) -> jax.Array:
        """Returns the vectors of all texts, float32 [B, N, width]."""
        inputs = {name: batch[name] for name in INPUTS}
        if self.chunks == 1:
            return logits(model, inputs, dropout_key=dropout_key)
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
            return logits(nnx.merge(graphdef, params), chunk, dropout_key=key)

        chunks = {name: cut(array, self.chunks) for name, array in inputs.items()}
        found = jax.lax.map(encode, (jnp.arange(self.chunks), chunks))
        rows = found.swapaxes(0, 1).reshape(-1, *found.shape[2:])
        return constrain(rows, "batch", "rest", "rest")
