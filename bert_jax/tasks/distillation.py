"""Fine-tuning with a teacher: the student learns the labels and the teacher's predictions."""

import dataclasses
from collections.abc import Mapping
from typing import Final

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from bert_jax.errors import UserError, commas
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.cross_entropy import soft_target_loss
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.runs.settings import describe
from bert_jax.runs.teacher import TEACHER, Teacher, open_teacher
from bert_jax.task import Batch, FrozenModel, Metrics, Rngs, Sums
from bert_jax.tasks.task import FinetuneTask, logits, position_logits
from bert_jax.text import Tokenizer

TEACHER_KEY: Final = "finetune.distill_from"


def open_task_teacher(
    run_dir: str,
    *,
    student: EncoderArchitecture,
    execution: Execution,
    heads: HeadsSection,
    max_length: int,
) -> Teacher:
    """Opens the fine-tuned teacher of a student with this architecture, execution and heads.

    Raises UserError if there is no such run, or the teacher has another task, other labels, or
    fewer than `max_length` positions.
    """
    teacher = open_teacher(run_dir, student=student, execution=execution, checkpoint="auto")
    theirs = teacher.heads
    if (theirs.task, theirs.labels) != (heads.task, heads.labels) or (
        None not in (theirs.problem, heads.problem) and theirs.problem != heads.problem
    ):
        raise UserError(
            "distill.other_task",
            f"{teacher.directory} has {_shown(theirs)}, but the task needs {_shown(heads)}",
            place=TEACHER_KEY,
        )
    teacher.check_positions(max_length, key=TEACHER_KEY)
    return teacher


def _shown(heads: HeadsSection) -> str:
    return f"{describe(heads)} (labels: {commas(heads.labels)})"


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistilledTask(FinetuneTask):
    """Loss = `weight` · soft targets + (1 − `weight`) · the loss of `FinetuneTask`.

    Both terms have the same weights of rows, pieces and classes.
    """

    teacher: Teacher
    temperature: float
    weight: float
    tokenizer: Tokenizer = dataclasses.field(compare=False)

    def frozen_models(self) -> Mapping[str, FrozenModel]:
        """Returns the teacher."""
        return {TEACHER: self.teacher.frozen(tokenizer=self.tokenizer, key=TEACHER_KEY)}

    def loss(
        self,
        model: nnx.Module,
        batch: Batch,
        *,
        divisors: Mapping[str, jax.Array],
        rngs: Rngs,
        frozen: Mapping[str, nnx.Module],
    ) -> tuple[jax.Array, Metrics]:
        """Returns the loss, divided by `divisors`, and the sums of both terms."""
        teacher, student = frozen[TEACHER], self._without_frozen_gradients(model)
        assert isinstance(teacher, EncoderModel)
        ours = logits(student, batch, dropout_key=rngs.dropout)
        theirs = logits(teacher, batch, dropout_key=None)
        items = self._item_weights(batch)
        hard = (self._losses(ours, batch) * items).sum()
        soft = (self._soft_losses(ours, theirs, batch) * items).sum()
        total = self.weight * soft + (1.0 - self.weight) * hard
        metrics = {"task_loss": (hard, items.sum()), "soft_loss": (soft, items.sum())}
        return total / divisors["task"], metrics

    def score(self, sums: Sums) -> dict[str, float]:
        """Returns the mean loss, and the mean of its terms."""
        means = {
            name: sums[name][0] / max(sums[name][1], 1e-9) for name in ("task_loss", "soft_loss")
        }
        loss = self.weight * means["soft_loss"] + (1.0 - self.weight) * means["task_loss"]
        return {"loss": loss, **means}

    def flops_per_row(self, *, seq_length: int) -> float:
        """Returns the FLOPs of a row, including the teacher's forward pass."""
        read = 1 if self.heads.scores_rows else None
        teacher = self.teacher.architecture.forward_flops(seq_length=seq_length, read=read)
        return super().flops_per_row(seq_length=seq_length) + teacher

    def _soft_losses(self, ours: jax.Array, theirs: jax.Array, batch: Batch) -> jax.Array:
        """Returns the loss of each row, [B]; token classification: of each piece, [B, L].

        A regression has no distribution: its loss is the squared difference of the predictions.
        """
        temperature = self.temperature
        if self.heads.task == "question_answering":
            ends = (position_logits(each, batch) for each in (ours, theirs))
            return soft_target_loss(*ends, temperature=temperature).mean(axis=1)
        if self.heads.problem == "regression":
            return jnp.square(ours - theirs)[:, 0]
        if self.heads.problem == "multi_label":
            targets = jax.nn.sigmoid(theirs / temperature)
            crossed, own = (
                optax.sigmoid_binary_cross_entropy(each / temperature, targets)
                for each in (ours, theirs)
            )
            return temperature**2 * (crossed - own).mean(axis=-1)
        return soft_target_loss(ours, theirs, temperature=temperature)
