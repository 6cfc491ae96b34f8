"""The tasks of GLUE."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pydantic

from bert_jax.errors import UserError
from bert_jax.section import Section
from bert_jax.tasks.family import Opening
from bert_jax.tasks.glue.files import (
    TASKS,
    GlueRow,
    GlueRows,
    GlueTask,
    TaskName,
    files_of,
    read_glue,
)
from bert_jax.tasks.glue.submission import write_submission
from bert_jax.tasks.glue.tfds import NAME as TFDS
from bert_jax.tasks.glue.tfds import read_tfds
from bert_jax.tasks.scores import figures
from bert_jax.tasks.sequence import (
    NAMED_LINES,
    Example,
    Labelling,
    SequenceFamily,
    SequenceSplit,
    Target,
    notes_of,
)
from bert_jax.tasks.table.labels import label_number, number_of, spell_names, weights_of


class GlueSection(Section):
    """A task and where its files are.

    ``{kind: glue, name: mrpc, data: glue/MRPC}``
    """

    kind: Literal["glue"] = "glue"
    name: TaskName
    data: str  # a directory with the original files, or with a directory MRPC that has them; "tfds"
    data_dir: str | None = None  # of TFDS; None: its own default
    train_limit: int | None = pydantic.Field(default=None, ge=1)  # the first training examples
    class_weights: Literal["none", "balanced"] | dict[str, pydantic.PositiveFloat] = "none"


def open_glue(section: GlueSection, opening: Opening) -> SequenceFamily:
    """Opens a task of GLUE.

    Labels have the names and the order of `TASKS`, or the model's own order if it has them in
    another. Labels of a test set are read where its file has them.

    Args:
        section: of the task.
        opening: of the run. Without role "train" there are no class weights.

    Raises:
        UserError: a file or column that is not there; a line that is no row; a label that is
            missing in training or dev data, or unknown; a model with other labels.
    """
    task = TASKS[section.name]
    labelling = _labelling(section, task, opening.labels)
    notes: list[str] = []
    splits: dict[str, SequenceSplit] = {}
    weights = None
    for name, found in _read(section, opening).items():
        notes += _ragged_notes(name, found)
        required = name.startswith(("train", "dev"))
        rows = found.rows[: section.train_limit] if name == "train" else found.rows
        examples = [_example(row, task, labelling, required=required) for row in rows]
        if not examples:
            raise UserError(f"task.data: found no examples of {name} in {section.data}")
        if name == "train":
            targets = (example.target for example in examples)
            weights = weights_of(section.class_weights, labelling, targets)
        splits[name] = SequenceSplit(
            examples,
            labelling=labelling,
            tokenizer=opening.tokenizer,
            max_length=opening.max_length,
        )
        notes += notes_of(name, splits[name], examples, opening.max_length)
    return SequenceFamily(
        labelling=labelling,
        best_metric=task.figures[0],
        class_weights=weights,
        splits=splits,
        notes=tuple(notes),
        figures=lambda records: figures(records, task.figures, positive=task.positive),
        official=lambda split, records, directory: write_submission(
            section.name, split, records, directory
        ),
    )


def _labelling(section: GlueSection, task: GlueTask, given: tuple[str, ...] | None) -> Labelling:
    problem = "regression" if section.name == "stsb" else "single_label"
    if given is None:
        return Labelling(problem, task.names)
    # The one number of a regression is a similarity whatever the model calls it.
    if set(given) != set(task.names) and not len(given) == len(task.names) == 1:
        raise UserError(
            f'task.name: found "{section.name}", whose labels are {spell_names(task.names)}, '
            f"allowed: a task with the model's, {spell_names(given)}"
        )
    return Labelling(problem, given)


def _read(section: GlueSection, opening: Opening) -> dict[str, GlueRows]:
    """Returns the examples of every split that the roles name."""
    found: dict[str, GlueRows] = {}
    for role in opening.roles:
        labelled = role in ("train", "dev")
        if role == "input":
            if opening.input is None:
                raise UserError("task.input: found no file, allowed: one, to open this split")
            found[role] = read_glue(opening.input, section.name, labelled=False)
        elif section.data == TFDS:
            found |= read_tfds(section.name, role, section.data_dir)
        else:
            files = files_of(section.name, role, _directory(section))
            for split, path in files.items():
                found[split] = read_glue(path, section.name, labelled=labelled)
    return found


def _directory(section: GlueSection) -> Path:
    root = Path(section.data)
    if not root.is_dir():
        raise UserError(f'task.data: found no directory {root}, allowed: one, or "{TFDS}"')
    inside = root / TASKS[section.name].directory
    return inside if inside.is_dir() else root


def _example(row: GlueRow, task: GlueTask, labelling: Labelling, *, required: bool) -> Example:
    if row.label is None and required:
        raise UserError(f"{row.place}: found no label, allowed: one in training and dev data")
    target = None if row.label is None else _target(row, row.label, task, labelling)
    return Example(row.id, row.text, row.pair, target, row.line)


def _target(row: GlueRow, label: str | float, task: GlueTask, labelling: Labelling) -> Target:
    place = f'{row.place}: "{task.label[0]}"'
    if labelling.problem == "regression":
        number = number_of(label)
        if number is None:
            raise UserError(f"{place} found {label!r}, allowed: a number")
        return number
    name = str(label)
    if task.spelled == "number" and name not in task.names:
        numbers = tuple(map(str, range(len(task.names))))
        name = task.names[label_number(name, numbers, place)]
    return label_number(name, labelling.names, place)


def _ragged_notes(name: str, found: GlueRows) -> list[str]:
    def lines(numbers: tuple[int, ...]) -> str:
        more = ", …" if numbers[NAMED_LINES:] else ""
        return f"(line {', '.join(map(str, numbers[:NAMED_LINES]))}{more})"

    notes = []
    if found.skipped:
        notes.append(
            f"{name}: {len(found.skipped):,} lines have too few fields, as they do in the "
            f"original, and are left out {lines(found.skipped)}"
        )
    if found.trimmed:
        notes.append(
            f"{name}: {len(found.trimmed):,} lines have more fields than the header, which are "
            f"not read {lines(found.trimmed)}"
        )
    return notes
