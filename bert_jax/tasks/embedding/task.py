"""The task of sentence embeddings in the train loop."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.errors import UserError
from bert_jax.model.embedding_head import EmbeddingHead
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.task import Batch, Metrics
from bert_jax.tasks.batches import WEIGHTS
from bert_jax.tasks.embedding.section import EmbeddingLossSection
from bert_jax.tasks.family import Split
from bert_jax.tasks.search import losses
from bert_jax.tasks.search.task import VectorTask
from bert_jax.tasks.search.tuples import SCORE, TEACHER, TEXTS

_LARGEST_SCALE = 100.0  # limit of a learned 1/temperature, as in CLIP (arXiv 2103.00020)


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingTask(VectorTask):
    """Sentence embeddings."""

    training: EmbeddingLossSection

    def __post_init__(self) -> None:
        """Raises UserError if a width of `matryoshka` is too large, or SimCSE has no dropout."""
        width = self._width
        if self.training.matryoshka and max(self.training.matryoshka) > width:
            raise UserError(
                "embedding.matryoshka",
                f"found {max(self.training.matryoshka)}, but vectors have the width {width}",
                place="finetune.task.loss.matryoshka",
            )
        no_dropout = self.architecture.with_dropout(0.0)
        if self.training.kind == "simcse" and self.architecture == no_dropout:
            raise UserError.wrong(
                "embedding.no_dropout", 0, "more than 0 for simcse", place="finetune.dropout"
            )

    @property
    def _width(self) -> int:
        assert self.heads.embedding is not None
        return self.heads.embedding.projection or self.architecture.hidden_size

    def check_rows(self, train: Split) -> None:
        """Raises UserError if a teacher's vectors have another width than the model's."""
        if self.training.kind != "mse":
            return
        if (found := np.size(train.row(0).targets[TEACHER])) != self._width:
            raise UserError(
                "embedding.teacher_width",
                f"found {self._width}, but the teacher's vectors have {found}. Use {found}.",
                place="finetune.task.projection",
            )

    def loss_of(
        self,
        model: EncoderModel,
        vectors_BN: jax.Array,
        batch: Batch,
        *,
        step: jax.Array | None,
    ) -> tuple[jax.Array, Metrics]:
        """Returns the sum of the losses at all widths, and a learned temperature."""
        del step
        assert model.heads.embedding is not None
        scale, normalize = self._scale(model), model.heads.embedding.by_cosine
        loss = jnp.zeros((), jnp.float32)
        for width in self.training.matryoshka or (vectors_BN.shape[-1],):
            shorter = losses.truncated(vectors_BN, width, normalize=normalize)
            loss += self._loss_of(model, shorter, batch, scale)
        if not isinstance(scale, jax.Array):
            return loss, {}
        return loss, {"temperature": (1 / scale, jnp.ones((), jnp.float32))}

    def _loss_of(
        self, model: EncoderModel, vectors_BNW: jax.Array, batch: Batch, scale: jax.Array | float
    ) -> jax.Array:
        kind, weights = self.training.kind, batch[WEIGHTS]
        if kind == "cosent":
            return losses.cosent(vectors_BNW, batch[SCORE], weights, scale=float(scale))
        if kind == "mse":
            return losses.regression(vectors_BNW, batch[TEACHER], weights)
        if self.training.taught:
            return self.taught_loss(model, vectors_BNW, batch)
        if kind == "cosine":
            return losses.cosine_regression(vectors_BNW, batch[SCORE], weights)
        return losses.info_nce(
            vectors_BNW,
            batch[TEXTS][:, 0],
            weights,
            compare=model.embedding.compare,
            scale=scale,
            symmetric=self.training.symmetric,
        )

    def _scale(self, model: EncoderModel) -> jax.Array | float:
        if not self.training.learn_temperature:
            return 1 / self.training.temperature
        assert isinstance(model.embedding, EmbeddingHead)
        return jnp.minimum(jnp.exp(model.embedding.scale[0]), _LARGEST_SCALE)
