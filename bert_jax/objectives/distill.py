"""The loss of DistilBERT (arXiv 1910.01108, section 3).

The logits of student and teacher exist only for masked tokens, and only for `MOST_ROWS` of them per
device at a time. The backward pass computes them again.

Shape suffixes: B batch, L length, P masked positions, D hidden size.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array

from bert_jax.errors import UserError
from bert_jax.model.architecture import TRAINING, EncoderArchitecture
from bert_jax.model.cross_entropy import cross_entropy, soft_target_loss, token_parts
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.layers import gather_positions
from bert_jax.model.section import Execution
from bert_jax.objectives.masked_lm import MLM_EPSILON, MaskedLanguageModel
from bert_jax.objectives.metrics import means, token_weights
from bert_jax.objectives.sections import DistillObjectiveSection
from bert_jax.runs.teacher import TEACHER, Teacher, open_teacher, spread_layers, student_params
from bert_jax.task import Batch, FrozenModel, Metrics, Objective, Params, Rngs, RowTransform, Sums
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.train.state import define_model

TEACHER_KEY: Final = "objective.teacher"
LAYERS_KEY: Final = "objective.initial_layers"

MOST_ROWS: Final = 512
"""Maximum number of masked tokens per device whose logits exist at the same time."""


def open_mlm_teacher(
    section: DistillObjectiveSection, *, architecture: EncoderArchitecture, execution: Execution
) -> Teacher:
    """Opens the teacher of a student with this architecture and execution.

    Raises UserError if there is no such run, or the teacher lacks the MLM head, has another number
    of pieces, or has another width although the loss compares hidden states.
    """
    teacher = open_teacher(
        section.teacher, student=architecture, execution=execution, checkpoint="last"
    )
    if not teacher.heads.mlm or teacher.heads.causal:
        raise UserError(
            "distill.no_mlm_head", f"{teacher.directory} has no MLM head", place=TEACHER_KEY
        )
    ours, theirs = architecture.vocab_size, teacher.architecture.vocab_size
    if ours != theirs:
        raise UserError.wrong(
            "distill.vocab_size", f"{theirs:,} pieces", f"the student's {ours:,}", place=TEACHER_KEY
        )
    ours, theirs = architecture.hidden_size, teacher.architecture.hidden_size
    if section.cosine_weight and ours != theirs:
        raise UserError(
            "distill.sizes",
            f"found {section.cosine_weight}, but widths {ours} and {theirs}. Use 0.",
            place="objective.cosine_weight",
        )
    return teacher


_PREDICTED: Final = ("mlm_loss", "mlm_accuracy", "soft_loss")  # metrics of masked tokens
_NAMES: Final = (*_PREDICTED, "cosine_loss")
_LEAST_SQUARE: Final = 1e-12  # added to squared lengths


class _Masked(NamedTuple):
    """Masked tokens: states of student and teacher [B, P, D], labels and weights [B, P]."""

    student: Array
    teacher: Array
    labels: Array
    weights: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Distillation(MaskedLanguageModel):
    """The loss is the sum of its terms with the weights of `settings`.

    Fields with ``compare=False`` affect neither the model nor the loss.
    """

    teacher: Teacher
    settings: DistillObjectiveSection

    def features(self, *, seq_length: int, **options: Any) -> RowTransform:
        """Returns the row transform. Raises UserError if rows do not fit the teacher."""
        self.teacher.check_positions(seq_length, key=TEACHER_KEY)
        return super().features(seq_length=seq_length, **options)

    def frozen_models(self) -> Mapping[str, FrozenModel]:
        """Returns the teacher. If `initial_layers` is set, the student starts from it."""
        initial = None if self.settings.initial_layers is None else self._initial
        return {
            TEACHER: self.teacher.frozen(tokenizer=self.tokenizer, key=TEACHER_KEY, initial=initial)
        }

    def _initial(self, params: Params, abstract: Params) -> Params:
        """Returns the student's initial parameters, see `student_params`."""
        assert self.settings.initial_layers is not None
        layers = spread_layers(
            self.settings.initial_layers,
            teacher=self.teacher.architecture.num_hidden_layers,
            student=self.architecture.num_hidden_layers,
            place=LAYERS_KEY,
        )
        return student_params(
            params,
            abstract,
            layers=layers,
            teacher=define_model(self.teacher.build).groups,
            student=define_model(self.build).groups,
            key=LAYERS_KEY,
        )

    def divisors(self, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the numbers of masked tokens and of all tokens."""
        masked = batch["masked_lm_weights"].sum()
        return {
            "mlm": masked + MLM_EPSILON,
            "soft": jnp.maximum(masked, 1.0),
            "cosine": jnp.maximum(token_weights(batch).sum(), 1.0),
        }

    @property
    def weights(self) -> dict[str, float]:
        """Weights of the terms of the loss, without terms of weight 0."""
        weights = {
            "mlm": self.settings.mlm_weight,
            "soft": self.settings.soft_weight,
            "cosine": self.settings.cosine_weight,
        }
        return {name: weight for name, weight in weights.items() if weight}

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
        teacher = frozen[TEACHER]
        assert isinstance(model, EncoderModel)
        assert isinstance(teacher, EncoderModel)
        positions_BP = batch["masked_lm_positions"]
        # Unless hidden states are compared, the last layers compute only the masked tokens.
        queries_BQ = None if self.settings.cosine_weight else positions_BP
        words_BLD, shares_SVD = model.encoder.look_up(batch["input_ids"])
        metrics: Metrics = {}
        ours_BQD = model.hidden(
            batch, words_BLD=words_BLD, queries_BQ=queries_BQ, dropout_key=rngs.dropout
        )
        theirs_BQD = teacher.hidden(batch, queries_BQ=queries_BQ, dropout_key=None)
        if self.settings.cosine_weight:
            metrics |= _cosine(ours_BQD, theirs_BQD, token_weights(batch))
        if queries_BQ is None:
            ours_BQD = gather_positions(ours_BQD, positions_BP)
            theirs_BQD = gather_positions(theirs_BQD, positions_BP)
        labels, weights = batch["masked_lm_ids"], batch["masked_lm_weights"]
        rows = _Masked(ours_BQD, theirs_BQD, labels, weights)
        metrics |= self._predictions(model, teacher, rows, shares_SVD)
        loss = sum(
            weight * metrics[f"{name}_loss"][0] / divisors[name]
            for name, weight in self.weights.items()
        )
        return jnp.asarray(loss), metrics

    def _predictions(
        self, model: EncoderModel, teacher: EncoderModel, rows: _Masked, shares_SVD: Array
    ) -> Metrics:
        """Returns the metrics of masked tokens: MLM loss and accuracy, and soft-target loss."""

        @jax.checkpoint
        def sums(rows: _Masked) -> Array:
            ours = model.mlm(model.decoder_input(rows.student), model.encoder.table, shares_SVD)
            theirs = teacher.mlm_logits(rows.teacher)
            mlm = cross_entropy(ours, rows.labels)
            soft = soft_target_loss(ours, theirs, temperature=self.settings.temperature)
            return jnp.stack([(each * rows.weights).sum() for each in (*mlm, soft)])

        total, _ = jax.lax.scan(
            lambda total, part: (total + sums(part), None),
            jnp.zeros(len(_PREDICTED), jnp.float32),
            token_parts(rows, most=MOST_ROWS),
        )
        count = rows.weights.sum()
        return {name: (total[at], count) for at, name in enumerate(_PREDICTED)}

    def flops_per_row(self, batch: Mapping[str, Any]) -> float:
        """Returns the model FLOPs of one row: student forward and backward, teacher forward."""
        predictions = batch["masked_lm_positions"].shape[1]
        student, teacher = (
            each.forward_flops(
                seq_length=batch["input_ids"].shape[1],
                read=None if self.settings.cosine_weight else predictions,
                predictions=predictions,
            )
            for each in (self.architecture, self.teacher.architecture)
        )
        return TRAINING * student + teacher

    def score(self, sums: Sums) -> dict[str, float]:
        """Returns the total loss, each term's loss, and the MLM accuracy."""
        scores = means(sums, *(name for name in sums if name in _NAMES))
        loss = sum(weight * scores[f"{name}_loss"] for name, weight in self.weights.items())
        return {"loss": loss, **scores}


def _cosine(ours_BLD: Array, theirs_BLD: Array, weights_BL: Array) -> Metrics:
    """Returns the sum of 1 − cosine over tokens, as PyTorch's `CosineEmbeddingLoss`."""
    ours, theirs = (each.astype(jnp.float32) for each in (ours_BLD, theirs_BLD))
    squares = [jnp.square(each).sum(-1) + _LEAST_SQUARE for each in (ours, theirs)]
    cosines = (ours * theirs).sum(-1) * jax.lax.rsqrt(squares[0] * squares[1])
    return {"cosine_loss": (((1.0 - cosines) * weights_BL).sum(), weights_BL.sum())}


def make(
    section: DistillObjectiveSection,
    *,
    architecture: EncoderArchitecture,
    execution: Execution,
    tokenizer: Tokenizer,
) -> Objective:
    """Returns the objective of a section for a model.

    `teacher` must be a run directory. Raises UserError if it is none, or the teacher does not fit
    the model.
    """
    return Distillation(
        architecture=architecture,
        execution=execution,
        heads=section.heads,
        masking=section.masking,
        tokenizer=tokenizer,
        pair=None,
        teacher=open_mlm_teacher(section, architecture=architecture, execution=execution),
        settings=section,
    )
