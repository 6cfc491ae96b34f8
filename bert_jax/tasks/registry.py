"""The explicit registry of task families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from bert_jax.tasks.choice.family import MultipleChoiceSection, open_multiple_choice
from bert_jax.tasks.family import Family, Opening
from bert_jax.tasks.glue.family import GlueSection, open_glue
from bert_jax.tasks.squad.family import open_squad
from bert_jax.tasks.squad.section import SquadSection
from bert_jax.tasks.table.family import TableSection, open_table
from bert_jax.tasks.tokens.family import (
    TokenClassificationSection,
    open_token_classification,
)

TaskSection: TypeAlias = (
    GlueSection | SquadSection | TokenClassificationSection | MultipleChoiceSection | TableSection
)

FAMILIES: Final[dict[str, Callable[[Any, Opening], Family]]] = {
    "glue": open_glue,
    "squad": open_squad,
    "token_classification": open_token_classification,
    "multiple_choice": open_multiple_choice,
    "table": open_table,
}


def open_family(section: TaskSection, opening: Opening) -> Family:
    """Opens the data of the task that a section describes."""
    return FAMILIES[section.kind](section, opening)
