"""The task family of GLUE, and submissions to gluebenchmark.com."""

import functools
import io
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import pydantic
from etils import epath

from bert_jax.data.tables import RowErrors
from bert_jax.errors import UserError, commas
from bert_jax.files.atomic import write_whole
from bert_jax.files.download import local_copy
from bert_jax.files.read import read_bytes
from bert_jax.files.remote import within
from bert_jax.section import PathText
from bert_jax.tasks import family
from bert_jax.tasks.glue.files import TASKS, GlueRows, GlueTask, TaskName, files_of, read_glue
from bert_jax.tasks.glue.tfds import NAME as TFDS
from bert_jax.tasks.glue.tfds import read_tfds
from bert_jax.tasks.labels import Labelling, shown_labels
from bert_jax.tasks.sequence import SequenceTask, TextExample

ZIP: Final = "submission.zip"
HIGHEST: Final = 5.0  # highest similarity of STS-B; the lowest is 0

# {(task, split): submission file}, in the order of the leaderboard.
FILES: Final = {
    ("cola", "test"): "CoLA.tsv",
    ("sst2", "test"): "SST-2.tsv",
    ("mrpc", "test"): "MRPC.tsv",
    ("stsb", "test"): "STS-B.tsv",
    ("qqp", "test"): "QQP.tsv",
    ("mnli", "test_matched"): "MNLI-m.tsv",
    ("mnli", "test_mismatched"): "MNLI-mm.tsv",
    ("qnli", "test"): "QNLI.tsv",
    ("rte", "test"): "RTE.tsv",
    ("wnli", "test"): "WNLI.tsv",
    ("mnli", "diagnostic"): "AX.tsv",
}
# Constant date of archive entries, so that equal files give equal archives.
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


class GlueSection(family.FamilySection):
    """A GLUE task and the location of its files.

    ``{kind: glue, name: mrpc, data: glue/MRPC}``
    """

    kind: Literal["glue"] = "glue"
    name: TaskName
    """The GLUE task."""
    data: PathText
    """Directory of the task's original files, or its parent directory. `tfds`: TensorFlow
    Datasets."""
    data_dir: PathText | None = None
    """Data directory of TFDS. By default, the default directory of TFDS."""
    train_limit: int | None = pydantic.Field(default=None, ge=1)
    """Maximum number of training examples, for trial runs. By default, all examples."""
    class_weights: Literal["none", "balanced"] | dict[str, pydantic.PositiveFloat] = "none"
    """Label weights in the loss. `balanced`: equal total weight per label. Or {label: weight}."""

    @property
    def inputs(self) -> dict[str, str]:
        """The directory of the files."""
        return {} if self.data == TFDS else {"data": self.data}

    def check_input(self, name: str) -> None:
        """Raises UserError if the directory does not exist."""
        del name
        directory_of(self)

    def open(self, request: family.DataRequest) -> family.Family:
        """Opens the task.

        The labels come from `TASKS`. If the request has a model's labels, they set the order.
        Labels in test files are optional. Raises UserError for a missing file or column, a
        malformed line, a missing or unknown label, or a model with other labels.
        """
        layout = TASKS[self.name]
        task = SequenceTask(
            labelling=_labelling(self, layout, request.labels),
            keys=layout.figures,
            positive=layout.names[-1],
            class_weights=self.class_weights,
            write_official=functools.partial(write_submission, self.name),
        )
        notes: list[str] = []
        examples: dict[str, list[TextExample]] = {}
        for name, found in _read(self, request).items():
            for what, lines in found.ragged.items():
                notes += family.count_notes(
                    name, {f"{what} {family.shown_lines(lines)}": len(lines)}
                )
            rows = found.rows[: self.train_limit] if name == "train" else found.rows
            if not rows:
                raise UserError(
                    "glue.no_examples", f"found no {name} in {self.data}", place="task.data"
                )
            required = family.needs_labels(name)
            examples[name] = task.examples(rows, required=required, errors=RowErrors())
        return task.family(examples, request, notes=notes)


def _labelling(section: GlueSection, task: GlueTask, given: tuple[str, ...] | None) -> Labelling:
    names = given or task.names
    # A regression has one output, whose name does not matter.
    if set(names) != set(task.names) and not len(names) == len(task.names) == 1:
        raise UserError(
            "glue.other_labels",
            f"found {section.name}, allowed: a task with the labels {commas(shown_labels(names))}",
            place="task.name",
        )
    problem = "regression" if section.name == "stsb" else "single_label"
    return Labelling(problem, names, column=task.label[0])


def _read(section: GlueSection, request: family.DataRequest) -> dict[str, GlueRows]:
    found: dict[str, GlueRows] = {}
    for role in request.roles:
        if role == "input":
            found[role] = read_glue(request.source(section, role), section.name, labelled=False)
        elif section.data == TFDS:
            found |= read_tfds(section.name, role, section.data_dir)
        else:
            files = files_of(section.name, role, directory_of(section))
            for split, path in files.items():
                found[split] = read_glue(path, section.name, labelled=family.needs_labels(role))
    return found


def directory_of(section: GlueSection) -> Path:
    """Returns the local directory of a task's files. Raises UserError if it does not exist."""
    root = local_copy(section.data)
    if not root.is_dir():
        raise UserError.wrong(
            "glue.no_directory", f"no {root}{within(root)}", f"a folder, {TFDS}", place="task.data"
        )
    inside = root / TASKS[section.name].directory
    return inside if inside.is_dir() else root


def write_submission(
    task: str, split: str, records: Sequence[family.Record], directory: Path
) -> list[Path]:
    """Writes a submission file, and an archive of all submission files in `directory`.

    The file has one line ``index<TAB>prediction`` per example. A prediction is a label name (MNLI,
    QNLI, RTE, AX), a number from 0 to 5 (STS-B), or 0 or 1 (other tasks). The leaderboard requires
    an archive with the files of all tasks. Creates missing directories.

    Returns the paths of both. Raises UserError if the split is not a test set, or if a file cannot
    be written.
    """
    name = FILES.get((task, split))
    if name is None:
        allowed = [test for of, test in FILES if of == task]
        raise UserError.wrong(
            "glue.no_submission", f"{task}, {split}", commas(allowed), place="submission"
        )
    lines = ["index\tprediction"]
    lines += [f"{record['id']}\t{_spelled(task, record['prediction'])}" for record in records]
    write_whole(directory / name, "".join(f"{line}\n" for line in lines))
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for file in filter(Path.exists, (directory / each for each in FILES.values())):
            entry = zipfile.ZipInfo(file.name, date_time=_EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, read_bytes(epath.Path(file)))
    write_whole(directory / ZIP, made.getvalue())
    return [directory / name, directory / ZIP]


def _spelled(task: str, prediction: str | float) -> str:
    if not isinstance(prediction, str):
        return f"{min(max(prediction, 0.0), HIGHEST):.6f}"
    layout = TASKS[task]
    return prediction if layout.spelled == "name" else str(layout.names.index(prediction))
