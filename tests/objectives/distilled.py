"""A small distillation: the BERT objective with a frozen teacher."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bert_jax.model.encoder_model import EncoderModel
from bert_jax.objectives.masked_lm import MaskedLanguageModel
from bert_jax.runs.open_checkpoints import read_checkpoints
from bert_jax.runs.run_directory import open_run
from bert_jax.task import Batch, FrozenModel, Metrics


class Distilled(MaskedLanguageModel):
    """Adds the mean squared difference of the teacher's and the student's MLM losses."""

    teacher: tuple[Path, int]  # run directory and step, set by the test

    def frozen_models(self) -> dict[str, FrozenModel]:
        directory, step = self.teacher

        def load(abstract: Any) -> Any:
            return read_checkpoints(directory, lambda run: run.restore_params(abstract, step=step))

        return {"teacher": FrozenModel(open_run(directory).build, load)}

    def loss(
        self, model: nnx.Module, batch: Batch, *, frozen: Any, **others: Any
    ) -> tuple[jax.Array, Metrics]:
        loss, metrics = super().loss(model, batch, frozen=frozen, **others)
        teacher = frozen["teacher"]
        assert isinstance(model, EncoderModel)
        assert isinstance(teacher, EncoderModel)
        ours, theirs = (each.scored(batch, dropout_key=None).mlm.loss for each in (model, teacher))
        weights = batch["masked_lm_weights"]
        gap = (jnp.square(ours - theirs) * weights).sum()
        return loss + gap / others["divisors"]["mlm"], metrics | {"gap": (gap, weights.sum())}
