"""Predictions for rows in memory."""

from collections.abc import Mapping
from typing import Any, Final

from bert_jax.data.memory_table import MemoryTable, Rows
from bert_jax.errors import UserError
from bert_jax.inference.bucketed import InferenceModel
from bert_jax.runs.directory import Run
from bert_jax.runs.settings import describe
from bert_jax.tasks.choice.family import MultipleChoiceSection
from bert_jax.tasks.family import DataRequest, Family, Record
from bert_jax.tasks.predictor import Predictor
from bert_jax.tasks.registry import TaskSection
from bert_jax.tasks.squad.family import SquadSection
from bert_jax.tasks.squad.split import SPECIAL_PIECES
from bert_jax.tasks.table.family import TableSection
from bert_jax.tasks.tokens.family import TokenClassificationSection
from bert_jax.tasks.training.evaluation import open_data, section_of
from bert_jax.validation import validate

BATCH_SIZE: Final = 32
MAX_LENGTH: Final = 512  # pieces, of a model that was fine-tuned elsewhere
_ROLE: Final = "input"


class RowPredictor:
    """Predicts rows with a model's task head; compiles once for each shape that it meets."""

    def __init__(self, model: InferenceModel, run: Run | None) -> None:
        """Takes the model's run, None for another program's; UserError: it has no task head."""
        # An imported run has a task head without the settings that it was trained with.
        self._model, self._run = model, run if run is not None and run.is_fine_tuned else None
        if self._run is not None:
            self._max_length = section_of(self._run).max_length
        elif model.heads.task is None:
            raise UserError(
                f"{model.name}: found {describe(model.heads)}, allowed: a model that was fine-tuned"
            )
        else:
            self._max_length = min(model.architecture.max_position_embeddings, MAX_LENGTH)
        self._predictor = Predictor(
            model.loaded.model,
            model.loaded.mesh,
            batch_size=BATCH_SIZE,
            max_length=self._max_length,
            pad_id=model.tokenizer.special.pad,
            architecture=model.architecture,
            few_rows=True,
        )

    def __call__(self, rows: Rows, settings: Mapping[str, Any]) -> list[Record]:
        """Returns a record for every row, in order.

        `settings` replace those of the task by key. Raises UserError: a row that the task cannot
        read, a setting that it does not have.
        """
        table = MemoryTable.of(rows)
        if not table.rows:
            return []
        split = self._open(table, settings).splits[_ROLE]
        return self._predictor(self._model.loaded.params, split)

    def _open(self, table: MemoryTable, settings: Mapping[str, Any]) -> Family:
        model, run = self._model, self._run
        if run is not None:
            task = _for_memory(section_of(run).task, table, problem=model.heads.problem)
            task = _changed(task, settings)
            return open_data(run, roles=(_ROLE,), step=model.loaded.step, input=table, task=task)
        request = DataRequest(
            tokenizer=model.tokenizer,
            max_length=self._max_length,
            seed=0,
            roles=(_ROLE,),
            input=table,
            labels=model.heads.labels or None,
        )
        task = _task_of(model, table, max_length=self._max_length)
        return _changed(task, settings).open(request)


def _changed(task: TaskSection, settings: Mapping[str, Any]) -> TaskSection:
    values = task.model_dump(mode="json")
    return validate(type(task), {**values, **settings}, source="predict", key="task")


def _for_memory(task: TaskSection, table: MemoryTable, *, problem: str | None) -> TaskSection:
    """Returns a task's section for rows that need no ids and tell nothing of its problem."""
    changed: dict[str, Any] = {}
    if isinstance(task, TableSection) and task.problem == "auto":
        changed["problem"] = problem
    name = getattr(task, "id", None)
    if name is not None and not any(isinstance(row, Mapping) and name in row for row in table.rows):
        changed["id"] = None
    return task.model_copy(update=changed)


def _task_of(model: InferenceModel, table: MemoryTable, *, max_length: int) -> TaskSection:
    """Returns the section of a task head that says no more than its kind."""
    kind = model.heads.task
    if kind == "sequence_classification":
        # Where a checkpoint does not say it, as Hugging Face takes it.
        guessed = "regression" if len(model.heads.labels) == 1 else "single_label"
        return TableSection(
            text="text",
            pair="pair" if table.has("pair", width=2) else None,
            label="label",
            problem=model.heads.problem or guessed,
        )
    if kind == "token_classification":
        return TokenClassificationSection()
    if kind == "question_answering":
        # Half of a row at most, so that a long question leaves room for its context.
        half = max((max_length - SPECIAL_PIECES) // 2, 1)
        return SquadSection(max_query_length=min(SquadSection().max_query_length, half))
    first = table.rows[0]
    names = first if isinstance(first, dict) else [f"choice{n}" for n in range(len(first) - 1)]
    choices = tuple(name for name in names if name.startswith("choice"))
    return MultipleChoiceSection(text="text", choices=choices, label="label")
