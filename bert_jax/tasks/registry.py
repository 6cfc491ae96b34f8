"""The explicit registry of task families: a family's section opens its data."""

from typing import TypeAlias

from bert_jax.tasks.choice.family import MultipleChoiceSection
from bert_jax.tasks.glue.family import GlueSection
from bert_jax.tasks.squad.family import SquadSection
from bert_jax.tasks.table.family import TableSection
from bert_jax.tasks.tokens.family import TokenClassificationSection

TaskSection: TypeAlias = (
    GlueSection | SquadSection | TokenClassificationSection | MultipleChoiceSection | TableSection
)
