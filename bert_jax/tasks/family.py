"""The interface of a task family: files → rows, logits → records, records → scores.

A task family is a section in `bert_jax.tasks.section` whose `open` returns a `Family`. This module
does not import JAX.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from bert_jax.data.memory_table import MemoryTable
from bert_jax.data.row_errors import OnError, RowErrors
from bert_jax.data.tables import Delimiter, TableRow, read_table
from bert_jax.errors import UserError
from bert_jax.files.hub import HubFile, fetch_file, is_dataset_file, local_file
from bert_jax.files.read import require_file
from bert_jax.model.section import HeadsSection, ProblemName, TaskName
from bert_jax.model.text_head import TextHeadSection
from bert_jax.section import DataPathText, Section
from bert_jax.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bert_jax.report.rendering import View
    from bert_jax.tasks.task import FinetuneTask

# Prediction for one example, as plain JSON. It has at least "id", "label" (None if unknown) and
# "prediction". `predict` writes records; scores and reports are computed from them.
Record: TypeAlias = dict[str, Any]

FamilyT = TypeVar("FamilyT", bound="FamilySection")

Columns: TypeAlias = list[tuple[str, str | None]]
"""Columns of a table, by setting. A setting that is not set has None."""

ROLES: Final = ("train", "dev", "test")

NO_LABEL = -1  # target of a piece without a label

# `content_hash` ignores these fields: an added empty line must not change the hash.
_PLACES: Final = ("line", "lines", "whole_text")


class Encoded(NamedTuple):
    """One row before padding.

    Multiple choice has one sequence per choice, other tasks have one sequence. All rows of a split
    have the same number of sequences, of which the last ones may be empty.
    """

    sequences: Sequence[Sequence[int]]  # ids with [CLS] and [SEP]
    seconds: Sequence[int]  # start of each second text; without one, the sequence length
    # Targets by name, such as {"label": 2}; {} if unlabelled. An integer array has one target per
    # piece; batches pad it with NO_LABEL. Other targets have the same shape in every row.
    targets: Mapping[str, np.ndarray | int | float]

    def of(self, part: slice) -> "Encoded":
        """Returns a row with some of the sequences."""
        return self._replace(sequences=self.sequences[part], seconds=self.seconds[part])


class Split:
    """The rows of one file. A long example may have several rows, its windows."""

    lengths: np.ndarray  # number of pieces in the longest sequence, int32 [rows]
    # Number of pieces in every sequence, int32 [rows, sequences], if a model may read the first
    # sequences in a batch of their own.
    lengths_of_each: np.ndarray | None = None
    examples: int  # number of examples
    fingerprint: str  # hash of the texts, the labels and their order
    findings: Mapping[str, int]  # {remark about the data: number of cases}

    def row(self, index: int) -> Encoded:
        """Returns one row."""
        raise NotImplementedError

    def reduce(self, index: int, logits: np.ndarray) -> Any:
        """Reduces the logits of a row to what `records` needs.

        `logits` are finite, float32, without padding: [labels], [choices], [pieces, labels] for
        token classification, or [pieces, 2] (start, end) for question answering.
        """
        del index
        return logits

    def starts_example(self, row: int) -> bool:
        """Returns whether a row is the first one of an example. Rows are in order of examples."""
        del row
        return True

    def records(self, reduced: Sequence[Any], *, first: int = 0) -> list[Record]:
        """Returns the records of whole examples, in the order of the file.

        `reduced` are the results of `reduce` for the rows from `first`.
        """
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A task and its data."""

    heads: HeadsSection  # the task head, with the labels
    best_metric: str  # name of the score that ranks checkpoints; larger is better
    splits: Mapping[str, Split]  # the requested splits, by name
    notes: Sequence[str]  # remarks about the data
    score: Callable[[Sequence[Record]], dict[str, float]]  # labelled records → {metric: score}
    # Writes predictions in the benchmark's format: (split, records, directory) → paths.
    write_official: Callable[[str, Sequence[Record], Path], Sequence[Path]]
    scored: tuple[str, ...] = ("label", "prediction")  # values of a record for `score`
    class_weights: tuple[float, ...] | None = None  # weight of each label; None: all 1
    # Labelled records → records of a constant prediction. By default, see `baseline_of`.
    constant: Callable[[Sequence[Record]], list[Record]] | None = None
    # Contents of the report for a dev split, from its records and a function that predicts
    # other splits. All processes call it. By default, the heads decide.
    view: "ViewOfSplit | None" = None

    @property
    def content(self) -> dict[str, str]:
        """The fingerprint of each split."""
        return {name: split.fingerprint for name, split in self.splits.items()}

    def labelled(self, records: Iterable[Record]) -> list[Record]:
        """Returns the labelled records, with only the values that `score` reads."""
        return [
            {name: record[name] for name in self.scored if name in record}
            for record in records
            if record.get("label") is not None
        ]

    @property
    def dev(self) -> list[str]:
        """Names of the dev splits. The first one ranks checkpoints."""
        return [name for name in self.splits if name.startswith("dev")]


ViewOfSplit: TypeAlias = (
    "Callable[[Split, Sequence[Record], Callable[[Split], list[Record]]], View]"
)


class DataRequest(NamedTuple):
    """The arguments of a section's `open`."""

    tokenizer: Tokenizer
    max_length: int  # maximum number of pieces in a row, including special pieces
    seed: int  # seed for splitting off a dev set
    # Roles to open: "train", "dev" (all dev sets), "test" (all test sets) or "input" (the user's
    # rows, with optional labels).
    roles: tuple[str, ...] = ("train", "dev")
    input: str | MemoryTable | None = None  # rows of the role "input"
    labels: tuple[str, ...] | None = None  # default: labels of the training set
    problem: ProblemName | None = None  # problem of the model, if known
    tuned: Mapping[str, float] = {}  # dev scores, including a tuned threshold
    text_head: TextHeadSection | None = None  # of the checkpoint
    split_punctuation: bool = True  # see `HeadsSection`

    def source(self, section: Section, role: str) -> Path | MemoryTable:
        """Returns the data of a role: the file that the section names, or `input`.

        Raises UserError if the role has no data, and RunStopped if a bucket does not respond.
        """
        found = self.input if role == "input" else getattr(section, role)
        if found is None:
            error = UserError("task.no_file", "missing. Set it to a file.", place=f"task.{role}")
            if role in ("train", "dev"):
                raise error
            raise error.followed_by(" `bert-jax predict` also accepts --input FILE.")
        return found if isinstance(found, MemoryTable) else local_file(str(found), role=role)


class FamilySection(Section):
    """The settings of a task family."""

    text_column: ClassVar[str | None] = None
    """The setting that names the column of the texts, if there is one."""
    compares_rows: ClassVar[bool] = False
    """Whether the loss compares the rows of a batch."""
    learns_labels: ClassVar[bool] = True
    """Whether a teacher can replace the labels in the loss."""

    kind: Any
    """The task family."""

    @property
    def inputs(self) -> dict[str, str]:
        """The paths of the task's data, by setting."""
        return {}

    def train_task(self, *, accumulation: int, steps: int, **parts: Any) -> "FinetuneTask":
        """Returns the task in the train loop. Imports JAX.

        `accumulation` is the number of microbatches, `steps` the number of updates of the training,
        and `parts` are the arguments of `FinetuneTask`.
        """
        from bert_jax.tasks.task import FinetuneTask

        del accumulation, steps
        return FinetuneTask(**parts)

    @property
    def tunes_threshold(self) -> bool:
        """Whether predictions need a threshold that was tuned on dev."""
        return False


class FilesSection(FamilySection):
    """Settings of a task family with one file per role."""

    train: DataPathText | None = None
    """Training data: a file, or `hf://datasets/owner/name`."""
    dev: DataPathText | None = None
    """Validation data, which selects the best checkpoint, in the format of `train`. If it is
    missing, a task of kind `table` holds out part of `train`."""
    test: DataPathText | None = None
    """Test data, in the format of `train`. Labels are optional."""

    @property
    def inputs(self) -> dict[str, str]:
        """The files by role."""
        named = {role: getattr(self, role) for role in ROLES}
        return {role: path for role, path in named.items() if path is not None}

    @property
    def class_columns(self) -> Sequence[str]:
        """The columns whose numbered classes may have names, which JSON lines cannot store."""
        return ()

    def tuple_columns(self, role: str) -> Sequence[str]:
        """Returns the columns of a role's data if its rows are tuples in memory."""
        raise NotImplementedError

    def check_input(self, name: str) -> None:
        """Raises UserError if the file of a role does not exist."""
        require_file(self.inputs[name])


class RowsSection(FilesSection):
    """Settings of a task family that reads tables with one example per row."""

    id: str | None = None
    """Column of the ids in predictions. By default, `id` if that column exists, otherwise the row
    index."""
    delimiter: Delimiter | None = None
    """Separator of columns. By default, a comma in a .csv and a tab in a .tsv."""
    on_error: OnError = "stop"
    """`skip`: skip and count malformed rows. Malformed rows have a wrong number of fields, invalid
    CSV or JSON, a missing column, an empty text of an embedding, or a missing or invalid label or
    score."""

    def required(self, role: str) -> Columns:
        """Returns the columns that the data of a role must have, by setting."""
        raise NotImplementedError

    def tuple_columns(self, role: str) -> list[str]:
        """Returns the required columns, except ids, and the labels even if they are optional."""
        asked = self.required("dev" if role == "test" else role)
        return [name for key, name in asked if name is not None and key != "task.id"]

    def rows(self, source: Path | MemoryTable, role: str) -> tuple[Iterator[TableRow], RowErrors]:
        """Returns the rows of a role's data, and the handler of malformed rows."""
        if isinstance(source, MemoryTable):  # never skip a row: each one needs a prediction
            return source.named(self.tuple_columns(role)), RowErrors()
        setting = "--on-error=skip" if role == "input" else "finetune.task.on_error=skip"
        errors = RowErrors(self.on_error, setting=setting)
        return self.read(source, errors), errors

    def read(self, path: Path, errors: RowErrors) -> Iterator[TableRow]:
        """Returns the rows of a file."""
        return read_table(path, delimiter=self.delimiter, errors=errors)

    def check_input(self, name: str) -> None:
        """Raises UserError if a file does not exist, or its first row lacks a column."""
        super().check_input(name)
        rows, errors = self.rows(Path(self.inputs[name]), name)
        asked = self.required(name)
        errors.kept(itertools.islice(rows, 1), lambda row: row.require(asked))


def task_heads(task: TaskName, **settings: Any) -> HeadsSection:
    """Returns the heads of a task, without the pooler, see `ModelSection.of_task`."""
    return HeadsSection(pooler=False, mlm=False, next_sentence=False, task=task, **settings)


def hub_files(section: FamilySection) -> dict[str, HubFile]:
    """Returns the task's hub files by role. Raises UserError if a file cannot be fetched."""
    return {
        role: fetch_file(source, role=role)
        for role, source in section.inputs.items()
        if is_dataset_file(source)
    }


def pinned(section: FamilyT) -> FamilyT:
    """Returns the section with each hub file pinned to a commit. Raises as `hub_files`."""
    files = {role: file.pinned for role, file in hub_files(section).items()}
    return section.model_copy(update=files)


def content_hash(examples: Iterable[Any]) -> str:
    """Returns a hash of named tuples that depends on their order, as 32 hexadecimal digits."""
    digest = hashlib.blake2b(digest_size=16)
    for example in examples:
        values = [_plain(value) for name, value in example._asdict().items() if name not in _PLACES]
        digest.update(repr(values).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):  # whose text is shortened
        return value.tobytes()
    return sorted(value) if isinstance(value, frozenset) else value


def needs_labels(role: str) -> bool:
    """Returns whether every example of a role must have a label."""
    return role.startswith(("train", "dev"))


def no_rows(source: Path | MemoryTable, errors: RowErrors | None = None) -> UserError:
    """Returns the error for a table that is empty, or whose rows were all skipped."""
    if errors is not None and (notes := errors.note(source, kept=0)):
        reason = notes[0].removeprefix(f"{source}: ")
        return UserError("task.rows_skipped", f"no row is left: {reason}", place=source)
    return UserError.wrong("task.no_rows", "no rows", "one or more", place=source)


def no_benchmark(kind: str) -> Callable[[str, Sequence[Record], Path], Sequence[Path]]:
    """Returns `Family.write_official` of a task without a benchmark; it raises UserError."""

    def refuse(split: str, records: Sequence[Record], directory: Path) -> Sequence[Path]:
        del split, records, directory
        raise UserError.wrong(
            "table.no_benchmark", kind, "glue or squad for an official file", place="task.kind"
        )

    return refuse


def count_notes(path: str | Path | MemoryTable, found: Mapping[str, int]) -> list[str]:
    """Returns a note for each nonzero count: ``{"texts are cut": 3}`` → 3 texts are cut."""
    return [f"{path}: {count:,} {what}" for what, count in found.items() if count]


def shown_lines(lines: Sequence[int]) -> str:
    """Formats at most ten line numbers for a note: ``(line 3, 7, …)``."""
    return f"(line {', '.join(map(str, lines[:10]))}{', …' if lines[10:] else ''})"
