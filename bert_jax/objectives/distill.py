"""The objective of DistilBERT: a student learns from the predictions of a frozen teacher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import pydantic

from bert_jax.data.rows.masking import MaskingSection
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.objectives.section import WITHOUT_PAIRS, ObjectiveSection
from bert_jax.section import ModelPathText
from bert_jax.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bert_jax.task import Objective


# pydantic's strict mode refuses lists for tuples behind the validator of `objective`.
_Layers: TypeAlias = Annotated[
    Literal["every_kth"] | tuple[int, ...],
    pydantic.BeforeValidator(lambda found: tuple(found) if isinstance(found, list) else found),
]


class DistillObjectiveSection(ObjectiveSection):
    """Distillation of a masked language model (arXiv 1910.01108).

    ``objective: {kind: distill, teacher: runs/bert}``

    The default weights and temperature are from DistilBERT's training script. The teacher must
    have the student's tokenizer and an MLM head; it may be any encoder.
    """

    heads = HeadsSection(pooler=False, next_sentence=False)
    pairings = (*WITHOUT_PAIRS, "nsp", "sop")
    has_second_model = True

    kind: Literal["distill"] = "distill"
    masking: MaskingSection = MaskingSection()
    """Masking of training rows."""
    teacher: ModelPathText
    """A run directory, a Hugging Face or google-research/bert directory, or a hub model such as
    `google-bert/bert-base-uncased` (append `@REVISION` to pin it). Its parameters do not change."""
    initial_layers: _Layers | None = "every_kth"
    """The teacher's layers from which the student's layers start: numbers from 0, or `every_kth`
    (0, 2, 4, … for half as many layers). The student also starts from the teacher's embeddings and
    MLM head. null: random initialization. `--init-from` replaces this setting."""
    temperature: float = pydantic.Field(default=2.0, gt=0)
    """Temperature of both softmaxes in the soft-target loss."""
    soft_weight: float = pydantic.Field(default=5.0, ge=0)
    """Weight of the soft-target loss: temperature² times the Kullback-Leibler divergence of the
    student's predictions from the teacher's, averaged over masked tokens."""
    mlm_weight: float = pydantic.Field(default=2.0, ge=0)
    """Weight of the MLM loss."""
    cosine_weight: float = pydantic.Field(default=1.0, ge=0)
    """Weight of 1 − the cosine of the last hidden states, averaged over tokens. If it is above 0,
    student and teacher must have the same hidden size."""

    def make(
        self, *, architecture: EncoderArchitecture, execution: Execution, tokenizer: Tokenizer
    ) -> Objective:
        """Returns the objective for a model. Imports JAX.

        `teacher` must be a run directory. Raises UserError if it is none, or the teacher does not
        fit the model.
        """
        from bert_jax.objectives.distillation import Distillation, open_mlm_teacher

        return Distillation(
            architecture=architecture,
            execution=execution,
            heads=self.heads,
            masking=self.masking,
            tokenizer=tokenizer,
            pair=None,
            teacher=open_mlm_teacher(self, architecture=architecture, execution=execution),
            settings=self,
        )
