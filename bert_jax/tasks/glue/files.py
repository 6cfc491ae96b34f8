"""The tasks of GLUE and the layouts of their original files.

Sources: the files of gluebenchmark.com; names and order of labels as in Hugging Face's `glue` and
in TFDS's, so that a head's outputs mean the same everywhere.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from bert_jax.data.memory_table import MemoryTable
from bert_jax.data.tables import TableRow, ragged, read_fields, read_table
from bert_jax.files.read import is_whole
from bert_jax.tasks.labels import TextRow, label_number

TaskName: TypeAlias = Literal["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli"]


class GlueTask(NamedTuple):
    """A task: its files, columns, labels and figures."""

    directory: str  # directory of its files in the archive
    names: tuple[str, ...]  # labels in the order of the logits; F1 is computed for the last
    text: tuple[str, ...] = ("sentence1",)  # the column, under any of its names
    pair: tuple[str, ...] = ("sentence2",)  # () without one
    label: tuple[str, ...] = ("label",)
    spelled: Literal["number", "name"] = "number"  # how the files give the labels
    figures: tuple[str, ...] = ("accuracy",)  # the first ranks checkpoints
    # Treatment of lines with too few fields ("skip") or too many ("trim").
    ragged: Literal["refuse", "skip", "trim"] = "refuse"


_NLI: Final = ("entailment", "not_entailment")

TASKS: Final[Mapping[str, GlueTask]] = {
    "cola": GlueTask(
        "CoLA",
        ("unacceptable", "acceptable"),
        text=("sentence",),
        pair=(),
        figures=("matthews", "accuracy"),
    ),
    "sst2": GlueTask("SST-2", ("negative", "positive"), text=("sentence",), pair=()),
    "mrpc": GlueTask(
        "MRPC",
        ("not_equivalent", "equivalent"),
        text=("#1 String", "sentence1"),
        pair=("#2 String", "sentence2"),
        label=("Quality", "label"),
        figures=("f1", "accuracy"),
    ),
    "stsb": GlueTask(
        "STS-B", ("similarity",), label=("score",), figures=("spearman", "pearson"), ragged="trim"
    ),
    "qqp": GlueTask(
        "QQP",
        ("not_duplicate", "duplicate"),
        text=("question1",),
        pair=("question2",),
        label=("is_duplicate",),
        figures=("f1", "accuracy"),
        ragged="skip",
    ),
    # The diagnostic set with its labels (diagnostic-full.tsv) has other names of columns, and
    # Matthews' correlation as its figure.
    "mnli": GlueTask(
        "MNLI",
        ("entailment", "neutral", "contradiction"),
        text=("sentence1", "Premise"),
        pair=("sentence2", "Hypothesis"),
        label=("gold_label", "Label"),
        spelled="name",
        figures=("accuracy", "matthews"),
    ),
    "qnli": GlueTask("QNLI", _NLI, text=("question",), pair=("sentence",), spelled="name"),
    "rte": GlueTask("RTE", _NLI, spelled="name"),
    "wnli": GlueTask("WNLI", _NLI[::-1]),
}

_COLA: Final = ("source", "label", "star", "sentence")  # train.tsv and dev.tsv have no header
_IDS: Final = ("index", "id")
SKIPPED: Final = "lines have too few fields, as in the original, and are skipped"
TRIMMED: Final = "lines have more fields than the header, which are ignored"


class GlueRows(NamedTuple):
    """One file."""

    rows: list[TextRow]
    # Numbers of ragged lines, where the original has such lines, by what is wrong with them.
    ragged: Mapping[str, Sequence[int]] = {}


def files_of(task: str, role: str, directory: Path) -> dict[str, Path]:
    """Returns the files of the role "train", "dev" or "test" by the split they make.

    ``("mnli", "dev", d)`` → ``{"dev_matched": d/dev_matched.tsv, "dev_mismatched": …}``

    The diagnostic set joins the test sets of MNLI if it is there or beside the directory, as in the
    archive.
    """
    if task != "mnli" or role == "train":
        return {role: directory / f"{role}.tsv"}
    names = [f"{role}_matched", f"{role}_mismatched"]
    files = {name: directory / f"{name}.tsv" for name in names}
    beside = directory.absolute().parent
    for place in (directory, beside / "diagnostic", beside):
        if role == "test" and (place / "diagnostic.tsv").exists():
            return {**files, "diagnostic": place / "diagnostic.tsv"}
    return files


def read_glue(path: Path | MemoryTable, task: str, *, labelled: bool) -> GlueRows:
    """Returns the examples of one file of a task, a key of `TASKS`.

    The file is a .tsv in the original layout, without quotes; or any other table with the columns
    of the task, also in memory. In a `labelled` file the column of labels is required. Raises
    UserError: no such file; a column that is not there; a line with another number of fields than
    the header, where the original has no such line.
    """
    layout = TASKS[task]
    broken: dict[str, list[int]] = {SKIPPED: [], TRIMMED: []}
    table: Iterable[TableRow]
    if isinstance(path, MemoryTable):
        names = [columns[0] for columns in (layout.text, layout.pair) if columns]
        table = path.named(names)
    elif path.suffix == ".tsv":
        table = _read_tsv(path, layout, broken)
    else:
        table = read_table(path)
    rows = [_row(row, number, layout, labelled) for number, row in enumerate(table)]
    return GlueRows(rows, broken)


def _read_tsv(path: Path, layout: GlueTask, broken: dict[str, list[int]]) -> Iterator[TableRow]:
    """Yields the rows of a file in the original layout; adds the ragged lines."""
    header: Sequence[str] = ()
    for line, fields in read_fields(path):
        if not header:
            has_none = layout is TASKS["cola"] and "sentence" not in fields
            header = _COLA if has_none and len(fields) == len(_COLA) else fields
            if header is fields:
                continue
        if len(fields) < len(header) and layout.ragged == "skip":
            broken[SKIPPED].append(line)
            continue
        if len(fields) > len(header) and layout.ragged == "trim":
            broken[TRIMMED].append(line)
            fields = fields[: len(header)]
        if len(fields) != len(header):
            raise ragged(path, line, found=len(fields), allowed=len(header))
        yield TableRow(path, line, dict(zip(header, fields, strict=True)), header)


def _row(row: TableRow, number: int, layout: GlueTask, labelled: bool) -> TextRow:
    text = _column(row, layout.text, "text")
    pair = _column(row, layout.pair, "pair") if layout.pair else None
    label = None
    if labelled or any(name in row.values for name in layout.label):
        label = _label(row, _column(row, layout.label, "label"), layout)
    index = next((row.values[name] for name in _IDS if name in row.values), number)
    if not isinstance(index, int):
        index = int(index) if is_whole(str(index)) else number
    second = None if pair is None else row.text(pair)
    return TextRow(row.place, row.line, index, row.text(text), second, label)


def _column(row: TableRow, names: Sequence[str], key: str) -> str:
    """Returns the first of the names that a column has, in this row or else in the table."""
    known = (name for where in (row.values, row.columns) for name in names if name in where)
    name = next(known, names[0])
    row.require([(f"task.{key}", name)])
    return name


def _label(row: TableRow, column: str, layout: GlueTask) -> Any:
    """Returns a label by name, a similarity unchanged, None for a hidden label of a test set."""
    found = row.values[column]
    if found in ("", None, -1, "-1"):
        return None
    if layout.spelled == "name" or len(layout.names) == 1 or str(found) in layout.names:
        return found
    numbers = tuple(map(str, range(len(layout.names))))
    place = f'{row.place}: column "{column}"'
    return layout.names[label_number(str(found), numbers, place=place)]
