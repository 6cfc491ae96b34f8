"""Predictions for rows in memory."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, Self

from bert_jax.data.memory_table import MemoryTable, Rows
from bert_jax.data.rows.collate import special_tokens
from bert_jax.errors import UserError, one_of
from bert_jax.inference.bucketed import InferenceModel
from bert_jax.model.section import HeadsSection
from bert_jax.runs.run_directory import Run
from bert_jax.runs.settings import describe
from bert_jax.tasks.choice import MultipleChoiceSection
from bert_jax.tasks.data_of_run import open_data, section_of
from bert_jax.tasks.family import DataRequest, Record, Split
from bert_jax.tasks.labels import with_integers
from bert_jax.tasks.predictor import Predictor
from bert_jax.tasks.rerank.section import RerankSection
from bert_jax.tasks.section import FAMILIES, TaskSection
from bert_jax.tasks.squad.family import SquadSection
from bert_jax.tasks.table import TableSection
from bert_jax.tasks.tokens.family import TokenClassificationSection
from bert_jax.text import Tokenizer
from bert_jax.validation import validate

BATCH_SIZE: Final = 32
_ROLE: Final = "input"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowTask:
    """The task of a model's head, for rows in memory."""

    name: str  # directory of the model, for error messages
    tokenizer: Tokenizer
    heads: HeadsSection
    run: Run | None  # fine-tuned run; None if the settings of the task are unknown
    max_length: int  # maximum number of pieces in a row
    step: int  # step of the checkpoint

    @classmethod
    def of(cls, model: InferenceModel, run: Run | None) -> Self:
        """Returns a model's task. `run` is None if the model has no run directory.

        Raises UserError if the model has no task head.
        """
        # An imported run may have a task head, but has no fine-tuning settings.
        run = run if run is not None and run.is_fine_tuned else None
        if run is not None:
            max_length = section_of(run).max_length
        elif model.heads.task is None:
            raise UserError(
                "predict.no_task_head", f"not fine-tuned: {describe(model.heads)}", place=model.name
            )
        else:
            max_length = model.heads.longest_text(model.architecture.max_position_embeddings)
        return cls(
            name=model.name,
            tokenizer=model.tokenizer,
            heads=model.heads,
            run=run,
            max_length=max_length,
            step=model.loaded.step,
        )

    def split(
        self, table: MemoryTable, settings: Mapping[str, Any], *, column: str | None = None
    ) -> Split:
        """Returns the rows of a table.

        `settings` override the settings of the task, and `column` the column of the texts. Raises
        UserError for an unknown setting or column, or a malformed row.
        """
        task = self._section(table) if self.run is None else section_of(self.run).task
        values = task.model_dump(mode="json")
        if not table.has(values.get("id")):
            values.pop("id", None)
        values |= {**_text_column(task, table, column), **settings}
        task = validate(type(task), values, source="predict", key="task")
        if self.run is None:
            request = DataRequest(self.tokenizer, self.max_length, seed=0, roles=(_ROLE,))
            labels, problem = self.heads.labels or None, self.heads.problem
            text_head = self.heads.text_head
            request = request._replace(labels=labels, problem=problem, text_head=text_head)
            family = task.open(request._replace(input=table))
        else:
            family = open_data(self.run, roles=(_ROLE,), step=self.step, input=table, task=task)
        return family.splits[_ROLE]

    def _section(self, table: MemoryTable) -> TaskSection:
        """Returns a section for a model without fine-tuning settings."""
        kind = self.heads.task
        if self.heads.cross_encoder is not None:
            return RerankSection(query="query", document="document", label="label")
        if kind == "sequence_classification":
            pair = "pair" if table.has("pair", width=2) else None
            return TableSection(text="text", pair=pair, label="label")
        if kind == "token_classification":
            return TokenClassificationSection()
        if kind == "question_answering":
            # Limit questions to half of a row, to leave room for the context.
            half = max((self.max_length - special_tokens(self.tokenizer, pair=True)) // 2, 1)
            return SquadSection(max_query_length=min(SquadSection().max_query_length, half))
        return _choices_of(table)


class RowPredictor:
    """Predicts rows with a model's task head. Compiles once per batch shape."""

    def __init__(self, model: InferenceModel, run: Run | None) -> None:
        """Compiles nothing. `run` and errors are as for `RowTask.of`."""
        self._task, self._params = RowTask.of(model, run), model.loaded.params
        self._predictor = Predictor(
            model.loaded.model,
            model.loaded.mesh,
            batch_size=BATCH_SIZE,
            max_length=self._task.max_length,
            pad_id=model.tokenizer.special.pad,
            architecture=model.architecture,
            few_rows=True,
        )

    def __call__(
        self, rows: Rows, settings: Mapping[str, Any], *, column: str | None = None
    ) -> list[Record]:
        """Returns one record per row, in order. Arguments and errors are as for `RowTask.split`."""
        table = MemoryTable.of(rows)
        if not table.rows:
            return []
        records = self._predictor(self._params, self._task.split(table, settings, column=column))
        return with_integers(records) if self._task.heads.integer_labels else records


def _text_column(task: TaskSection, table: MemoryTable, column: str | None) -> dict[str, str]:
    """Returns the setting that names the column of the texts. Raises UserError if there is none."""
    if column is None:
        return {}
    if task.text_column is None:
        kinds = [kind for kind, each in FAMILIES.items() if each.text_column]
        raise UserError(
            "predict.column", f'found "{column}", allowed: with {one_of(kinds)}', place="column"
        )
    table.require_column(column)
    return {task.text_column: column}


def _choices_of(table: MemoryTable) -> MultipleChoiceSection:
    first = table.rows[0]
    values = first if isinstance(first, dict | tuple) else (first,)
    names = values if isinstance(values, dict) else [f"choice{n}" for n in range(len(values) - 1)]
    choices = tuple(name for name in names if name.startswith("choice"))
    if not choices:
        raise UserError(
            "rows.no_choices", "found no columns choice0, choice1, …", place=f"{table}: row 1"
        )
    return MultipleChoiceSection(text="text", choices=choices, label="label")
