"""The tasks of GLUE."""

import functools
from pathlib import Path
from typing import Literal

import pydantic

from bert_jax.errors import UserError
from bert_jax.files.local_copy import local_copy
from bert_jax.section import PathText, Section
from bert_jax.tasks.family import DataRequest, Family, count_notes, needs_labels, shown_lines
from bert_jax.tasks.glue.files import TASKS, GlueRows, GlueTask, TaskName, files_of, read_glue
from bert_jax.tasks.glue.submission import write_submission
from bert_jax.tasks.glue.tfds import NAME as TFDS
from bert_jax.tasks.glue.tfds import read_tfds
from bert_jax.tasks.labels import Labelling, spell_names
from bert_jax.tasks.sequence import SequenceTask, TextExample


class GlueSection(Section):
    """A task and where its files are.

    ``{kind: glue, name: mrpc, data: glue/MRPC}``
    """

    kind: Literal["glue"] = "glue"
    """This family."""
    name: TaskName
    """Which of GLUE's tasks."""
    data: PathText
    """A directory with the original files, or with a directory such as MRPC that has them; or
    `tfds`."""
    data_dir: PathText | None = None
    """Of TFDS. None: its own default."""
    train_limit: int | None = pydantic.Field(default=None, ge=1)
    """The first training examples, for a trial. None: all."""
    class_weights: Literal["none", "balanced"] | dict[str, pydantic.PositiveFloat] = "none"
    """`balanced`, or a weight for each label."""

    def open(self, request: DataRequest) -> Family:
        """Opens the task.

        Labels have the names and the order of `TASKS`, or the model's own order if it has them in
        another. Labels of a test set are read where its file has them.

        Raises:
            UserError: a file or column that is not there; a line that is no row; a label that is
                missing in training or dev data, or unknown; a model with other labels.
        """
        layout = TASKS[self.name]
        task = SequenceTask(
            labelling=_labelling(self, layout, request.labels),
            column=layout.label[0],
            keys=layout.figures,
            positive=layout.positive,
            class_weights=self.class_weights,
            write_official=functools.partial(write_submission, self.name),
        )
        notes: list[str] = []
        examples: dict[str, list[TextExample]] = {}
        for name, found in _read(self, request).items():
            notes += _ragged_notes(name, found)
            rows = found.rows[: self.train_limit] if name == "train" else found.rows
            if not rows:
                raise UserError(f"task.data: found no examples of {name} in {self.data}")
            examples[name] = task.examples(rows, required=needs_labels(name))
        return task.family(examples, request, notes=notes)


def _labelling(section: GlueSection, task: GlueTask, given: tuple[str, ...] | None) -> Labelling:
    problem = "regression" if section.name == "stsb" else "single_label"
    if given is None:
        return Labelling(problem, task.names)
    # A regression's one output may have any name.
    if set(given) != set(task.names) and not len(given) == len(task.names) == 1:
        raise UserError(
            f'task.name: found "{section.name}", whose labels are {spell_names(task.names)}, '
            f"allowed: a task with the model's, {spell_names(given)}"
        )
    return Labelling(problem, given)


def _read(section: GlueSection, request: DataRequest) -> dict[str, GlueRows]:
    """Returns the examples of every split that the roles name."""
    found: dict[str, GlueRows] = {}
    for role in request.roles:
        if role == "input":
            found[role] = read_glue(request.source(section, role), section.name, labelled=False)
        elif section.data == TFDS:
            found |= read_tfds(section.name, role, section.data_dir)
        else:
            files = files_of(section.name, role, _directory(section))
            for split, path in files.items():
                found[split] = read_glue(path, section.name, labelled=needs_labels(role))
    return found


def _directory(section: GlueSection) -> Path:
    root = local_copy(section.data)
    if not root.is_dir():
        raise UserError(f'task.data: found no directory {root}, allowed: one, or "{TFDS}"')
    inside = root / TASKS[section.name].directory
    return inside if inside.is_dir() else root


def _ragged_notes(name: str, found: GlueRows) -> list[str]:
    few = "lines have too few fields, as in the original, and are skipped"
    many = "lines have more fields than the header, which are ignored"
    lines = {few: found.skipped, many: found.trimmed}
    return count_notes(name, {f"{k} {shown_lines(v)}": len(v) for k, v in lines.items()})
