"""What a task family is: files → rows, logits → records, records → figures. No JAX in it.

Adding a family is one file with a section and an `open` function, and one line in `registry`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from bert_jax.model.config import HeadsSection
from bert_jax.text.tokenizer import Tokenizer

# What is known of one example once it has been predicted: plain JSON, with at least an "id", and
# "label" (None in a test set) and "prediction". `predict` writes it, metrics and the report read
# it.
Record: TypeAlias = dict[str, Any]

NO_LABEL = -1  # in token targets: a piece that has none


class Encoded(NamedTuple):
    """One row before padding.

    A choice among several has one sequence for each; any other row has one.
    """

    sequences: Sequence[Sequence[int]]  # ids with [CLS] and [SEP]
    seconds: Sequence[int]  # where the second span of each begins; its length without one
    # Targets of the row by name, e.g. {"label": 2}; {} where they are not known. An array of
    # integers has one for each piece and is padded with the row (by NO_LABEL); a number or an
    # array of floats has the same shape in every row.
    targets: Mapping[str, np.ndarray | int | float]

    @property
    def length(self) -> int:
        """Pieces of the longest sequence."""
        return max(map(len, self.sequences))


class Collector(Protocol):
    """Takes the logits of a split's rows, in any order, and makes one record per example."""

    def add(self, row: int, logits: np.ndarray) -> None:
        """Takes one row's logits: float32, unpadded.

        [labels] for sequence classification, [choices] for a choice, [pieces, labels] for token
        classification, [pieces, 2] (start, end) for question answering.
        """
        ...

    def records(self) -> list[Record]:
        """Returns a record for every example of the split, in the order of its file."""
        ...


class Split(Protocol):
    """The rows of one file. An example may be cut into several rows."""

    @property
    def lengths(self) -> np.ndarray:
        """Pieces of each row: int32 [rows]."""
        ...

    @property
    def examples(self) -> int:
        """How many examples the rows come from."""
        ...

    def row(self, index: int) -> Encoded:
        """Returns one row."""
        ...

    def collect(self) -> Collector:
        """Returns what gathers this split's predictions."""
        ...


class Family(Protocol):
    """A task with its data opened."""

    @property
    def heads(self) -> HeadsSection:
        """The heads that its model needs, with the names of the labels."""
        ...

    @property
    def best_metric(self) -> str:
        """The key of `score` by which checkpoints are ranked; larger is better."""
        ...

    @property
    def class_weights(self) -> Sequence[float] | None:
        """What an example of each label weighs in the loss; None for 1."""
        ...

    @property
    def splits(self) -> Mapping[str, Split]:
        """The splits that were asked for, by name."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """What was found in the data that its owner should know, a line each."""
        ...

    def score(self, records: Sequence[Record]) -> dict[str, float]:
        """Returns the figures of a labelled split's records."""
        ...

    def write_official(
        self, split: str, records: Sequence[Record], directory: Path
    ) -> Sequence[Path]:
        """Writes predictions as the task's own benchmark takes them, and returns the files."""
        ...


def dev_splits(family: Family) -> list[str]:
    """Returns the names of a family's dev splits; the first decides between checkpoints."""
    return [name for name in family.splits if name.startswith("dev")]


class Opening(NamedTuple):
    """What a family needs to know to open its data."""

    tokenizer: Tokenizer
    max_length: int  # pieces in a row, special ones included
    seed: int  # of a split that the family has to make
    # The splits wanted, by role: "train", "dev" (all dev sets), "test" (all test sets); or
    # {"input": file} for a file of the user's, labelled or not.
    roles: tuple[str, ...] = ("train", "dev")
    input: Path | None = None  # the file of role "input"
    labels: tuple[str, ...] | None = None  # of the model; None: found in the training set
    tuned: Mapping[str, float] = {}  # figures of the run's dev evaluation, such as a threshold
