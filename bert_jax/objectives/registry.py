"""The explicit registry of objectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal

from bert_jax.data.masking import MaskingSection
from bert_jax.model.config import Architecture, Execution
from bert_jax.objectives.bert import BertObjective
from bert_jax.section import Section
from bert_jax.task import Task
from bert_jax.text.tokenizer import Tokenizer

ObjectiveName = Literal["bert"]


class ObjectiveSection(Section):
    """Which objective, and how it masks."""

    name: ObjectiveName = "bert"
    masking: MaskingSection = MaskingSection()


OBJECTIVES: Final[dict[ObjectiveName, Callable[..., Task]]] = {"bert": BertObjective.create}


def make_objective(
    section: ObjectiveSection,
    *,
    architecture: Architecture,
    execution: Execution,
    tokenizer: Tokenizer,
) -> Task:
    """Returns the objective a section names, for a model and a tokenizer."""
    return OBJECTIVES[section.name](
        masking=section.masking,
        architecture=architecture,
        execution=execution,
        tokenizer=tokenizer,
    )
