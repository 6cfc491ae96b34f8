"""A task family: files → rows, logits → records, records → figures. No JAX in it.

A family is a module with a section, whose `open` returns a `Family`, and a line in
`bert_jax.tasks.section`.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import numpy as np

from bert_jax.data.memory_table import MemoryTable
from bert_jax.data.tables import OnError, RowErrors
from bert_jax.errors import UserError
from bert_jax.files.download import local_copy
from bert_jax.files.hub import HubFile, fetch_file, is_dataset_file
from bert_jax.model.config import HeadsSection, ProblemName, TaskName
from bert_jax.section import DataPathText, Section
from bert_jax.text.tokenizer import Tokenizer

# One predicted example as plain JSON: at least "id", "label" (None in a test set) and "prediction".
# `predict` writes it; metrics and the report read it.
Record: TypeAlias = dict[str, Any]

SectionT = TypeVar("SectionT", bound=Section)

NO_LABEL = -1  # token target of a piece without a label

# Fields of an example that are no part of its identity: an additional empty line changes nothing.
_PLACES: Final = ("line", "lines")


class Encoded(NamedTuple):
    """One row before padding.

    A choice among several has one sequence for each choice; any other row has one sequence.
    """

    sequences: Sequence[Sequence[int]]  # ids with [CLS] and [SEP]
    seconds: Sequence[int]  # start of each sequence's second span; its length without one
    # Targets of the row by name, e.g. {"label": 2}; {} where they are unknown. An array of integers
    # has one target for each piece and is padded with the row (by NO_LABEL); a number or an array
    # of floats has the same shape in every row.
    targets: Mapping[str, np.ndarray | int | float]


class Split:
    """The rows of one file. An example may be cut into several rows."""

    lengths: np.ndarray  # pieces of each row's longest sequence: int32 [rows]
    examples: int  # number of examples that the rows come from
    fingerprint: str  # identity of the content: texts, labels and their order
    findings: Mapping[str, int]  # remarks for the owner of the data, with their numbers of cases

    def row(self, index: int) -> Encoded:
        """Returns one row."""
        raise NotImplementedError

    def reduce(self, index: int, logits: np.ndarray) -> Any:
        """Returns the part of a row's logits that `records` needs.

        The logits are finite float32 without padding: [labels] or [choices], [pieces, labels] for
        token classification, [pieces, 2] (start, end) for question answering.
        """
        del index
        return logits

    def records(self, kept: Sequence[Any]) -> list[Record]:
        """Returns each example's record, in the file's order, from the `reduce` of every row."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A task with its data opened."""

    heads: HeadsSection  # heads of the task's model, with the names of the labels
    best_metric: str  # key of `score` by which checkpoints are ranked; larger is better
    splits: Mapping[str, Split]  # the requested splits, by name
    notes: Sequence[str]  # findings about the data for its owner, a line each
    score: Callable[[Sequence[Record]], dict[str, float]]  # labelled records → figures by name
    # Split's name, records, directory → files in the layout of the task's own benchmark.
    write_official: Callable[[str, Sequence[Record], Path], Sequence[Path]]
    class_weights: tuple[float, ...] | None = None  # of each label in the loss; None for 1

    @property
    def content(self) -> dict[str, str]:
        """The fingerprint of each split."""
        return {name: split.fingerprint for name, split in self.splits.items()}

    @property
    def dev(self) -> list[str]:
        """The names of the dev splits; the first one ranks checkpoints."""
        return [name for name in self.splits if name.startswith("dev")]


class FilesSection(Section):
    """The settings of a family with a file for each role."""

    kind: Any
    """Which task family this is."""
    train: DataPathText | None = None
    """The training data: a file, or `hf://datasets/owner/name`."""
    dev: DataPathText | None = None
    """Likewise; picks the best checkpoint. Without it `table` takes a part of `train`."""
    test: DataPathText | None = None
    """Likewise, with labels or without."""


class DataRequest(NamedTuple):
    """The data that a family is asked to open."""

    tokenizer: Tokenizer
    max_length: int  # pieces in a row, special ones included
    seed: int  # seed of a split that the family has to make
    # Roles of the splits to open: "train", "dev" (all dev sets), "test" (all test sets); or "input"
    # for the user's own rows, labelled or not.
    roles: tuple[str, ...] = ("train", "dev")
    input: str | MemoryTable | None = None  # the rows of role "input"
    labels: tuple[str, ...] | None = None  # labels of the model; by default the training set's
    tuned: Mapping[str, float] = {}  # figures of the run's dev evaluation, such as a threshold

    def source(self, section: Section, role: str) -> Path | MemoryTable:
        """Returns the rows of a role: a file that the section names, or the user's own rows.

        Raises UserError: there are none; RunStopped: they are in a bucket that does not answer.
        """
        found = self.input if role == "input" else getattr(section, role)
        if found is None:
            error = UserError("task.no_file", "missing. Set it to a file.", place=f"task.{role}")
            if role in ("train", "dev"):
                raise error
            raise error.followed_by(" `bert-jax predict` also accepts --input FILE.")
        if isinstance(found, MemoryTable):
            return found
        if is_dataset_file(str(found)):
            return fetch_file(str(found), role=role).path
        return local_copy(str(found))


def task_heads(
    task: TaskName, *, labels: tuple[str, ...] = (), problem: ProblemName | None = None
) -> HeadsSection:
    """Returns the heads of a fine-tuned model: the task's, and the pooler if that one reads it."""
    pooled = task in ("sequence_classification", "multiple_choice")
    return HeadsSection(
        pooler=pooled, mlm=False, next_sentence=False, task=task, labels=labels, problem=problem
    )


def hub_files(section: Section) -> dict[str, HubFile]:
    """Fetches a task's files on a hub by role; UserError: a file cannot be fetched."""
    named = {role: getattr(section, role, None) for role in ("train", "dev", "test")}
    return {
        role: fetch_file(source, role=role)
        for role, source in named.items()
        if isinstance(source, str) and is_dataset_file(source)
    }


def pinned(section: SectionT) -> SectionT:
    """Returns a task whose files on a hub are named with commits; UserError: as `hub_files`."""
    files = {role: file.pinned for role, file in hub_files(section).items()}
    return section.model_copy(update=files)


def content_hash(examples: Iterable[Any]) -> str:
    """Returns 32 hexadecimal digits that change with any value of named tuples and their order."""
    digest = hashlib.blake2b(digest_size=16)
    for example in examples:
        values = [
            sorted(value) if isinstance(value, frozenset) else value
            for name, value in example._asdict().items()
            if name not in _PLACES
        ]
        digest.update(repr(values).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def needs_labels(role: str) -> bool:
    """Whether every example of a split of this role must have a label."""
    return role.startswith(("train", "dev"))


def row_errors(on_error: OnError, role: str) -> RowErrors:
    """Returns the treatment of malformed rows in a role's table."""
    setting = "--on-error=skip" if role == "input" else "finetune.task.on_error=skip"
    return RowErrors(on_error, setting=setting)


def no_rows(source: Path | MemoryTable, errors: RowErrors | None = None) -> UserError:
    """Returns the error for a table without rows, or whose rows were all skipped."""
    if errors is not None and (notes := errors.note(source, kept=0)):
        reason = notes[0].removeprefix(f"{source}: ")
        return UserError(
            "task.rows_skipped", "no row is left: {reason}", place=source, reason=reason
        )
    return UserError("task.no_rows", "found no rows, allowed: one or more", place=source)


def count_notes(path: str | Path | MemoryTable, found: Mapping[str, int]) -> list[str]:
    """Returns a note for each finding that occurs: ``{"texts are cut": 3}`` → 3 texts are cut."""
    return [f"{path}: {count:,} {what}" for what, count in found.items() if count]


def shown_lines(lines: Sequence[int]) -> str:
    """Returns the first ten line numbers for a note: ``(line 3, 7, …)``."""
    return f"(line {', '.join(map(str, lines[:10]))}{', …' if lines[10:] else ''})"
