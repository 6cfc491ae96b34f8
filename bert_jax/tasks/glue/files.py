"""The tasks of GLUE, and the columns of their original files.

Source: the files of gluebenchmark.com. Labels have the names and the order of the dataset `glue` in
Hugging Face and TFDS, so that task heads are interchangeable.
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
    """The files, columns, labels and scores of a task."""

    directory: str  # directory in the downloaded archive
    names: tuple[str, ...]  # labels in the order of the logits; the last one is F1's positive label
    text: tuple[str, ...] = ("sentence1",)  # possible columns of the text
    pair: tuple[str, ...] = ("sentence2",)  # possible columns of the second text
    label: tuple[str, ...] = ("label",)
    spelled: Literal["number", "name"] = "number"  # whether files contain label indices or names
    figures: tuple[str, ...] = ("accuracy",)  # scores; the first ranks checkpoints
    # For lines with a wrong number of fields. "refuse": raise an error; "skip": skip lines with too
    # few fields; "trim": drop extra fields.
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
    # The labelled diagnostic set (diagnostic-full.tsv) has capitalised column names. Its score is
    # Matthews' correlation.
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

_COLA: Final = ("source", "label", "star", "sentence")  # train.tsv and dev.tsv lack a header
_IDS: Final = ("index", "id")
SKIPPED: Final = "lines have too few fields, as in the original, and are skipped"
TRIMMED: Final = "lines have more fields than the header, which are ignored"


class GlueRows(NamedTuple):
    """The rows of one file."""

    rows: list[TextRow]
    # {remark: line numbers} of skipped and trimmed lines.
    ragged: Mapping[str, Sequence[int]] = {}


def files_of(task: str, role: str, directory: Path) -> dict[str, Path]:
    """Returns {split: file} for the role "train", "dev" or "test".

    ``("mnli", "dev", d)`` → ``{"dev_matched": d/dev_matched.tsv, "dev_mismatched": …}``

    The test splits of MNLI include the diagnostic set if ``diagnostic.tsv`` is in `directory`, in
    ``../diagnostic`` (as in the downloaded archive) or in the parent directory.
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
    """Reads the rows of one file or table. `task` is a key of `TASKS`.

    A .tsv is an original file, without quotes. Other tables have the columns of `GlueTask`. If
    `labelled` is set, the label column is required. Raises UserError if the file or a column is
    missing, or if a line has a wrong number of fields; see `GlueTask.ragged` for exceptions.
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
    """Yields the rows of an original file. Adds line numbers to `broken`."""
    header: Sequence[str] = ()
    for line, fields in read_fields(path, quoted=False):
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
    """Returns the first of `names` that is a column of the row, otherwise of the table."""
    known = (name for where in (row.values, row.columns) for name in names if name in where)
    name = next(known, names[0])
    row.require([(f"task.{key}", name)])
    return name


def _label(row: TableRow, column: str, layout: GlueTask) -> Any:
    """Returns a label's name, a similarity as it is, or None for a hidden test label."""
    found = row.values[column]
    if found in ("", None, -1, "-1"):
        return None
    if layout.spelled == "name" or len(layout.names) == 1 or str(found) in layout.names:
        return found
    numbers = tuple(map(str, range(len(layout.names))))
    place = row.at(column)
    return layout.names[label_number(str(found), numbers, place=place)]
