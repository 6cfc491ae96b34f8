"""The task families of search share their data, and dev sets that are split off by query."""

from collections.abc import Iterable, Sequence
from typing import ClassVar, TypeVar

from bert_jax.data.memory_table import MemoryTable
from bert_jax.errors import UserError
from bert_jax.files.read import require_file
from bert_jax.tasks.family import DataRequest, RowsSection
from bert_jax.tasks.search.directory import PARTS, files_of, is_directory
from bert_jax.tasks.sequence import TextExample
from bert_jax.tasks.table import hold_out

R = TypeVar("R")


class SearchSection(RowsSection):
    """Settings of a task family whose dev and test sets may be directories in the layout of BEIR.

    `text_column` is the setting with the column of the queries.
    """

    parts: ClassVar[Sequence[str]] = PARTS
    """The parts of a directory that the task needs."""

    def directory(self, role: str, input: str | MemoryTable | None = None) -> str | None:
        """Returns the directory in the layout of BEIR of a role, None if it has a table.

        `input` are the rows of the role "input".
        """
        path = {"dev": self.dev, "test": self.test, "input": input}.get(role)
        return path if isinstance(path, str) and is_directory(path) else None

    def check_input(self, name: str) -> None:
        """Raises UserError if a file does not exist, or its first row lacks a column."""
        if (directory := self.directory(name)) is None:
            super().check_input(name)
        else:
            for files in files_of(directory, name, self.parts).values():
                for file in files:
                    require_file(file)

    def split_off_dev(
        self,
        rows: Sequence[R],
        queries: Iterable[str],
        request: DataRequest,
        notes: list[str],
        *,
        kind: str,
        fraction: float,
    ) -> tuple[list[R], list[R]]:
        """Splits training rows into train and dev; rows of equal queries stay together.

        `kind` is the task, `fraction` the share of dev. Adds a note with both sizes. Raises
        UserError if all rows have the same query.
        """
        texts = [TextExample(at, query, None, None, at) for at, query in enumerate(queries)]
        parts = hold_out(texts, fraction=fraction, seed=request.seed)
        train, dev = ([rows[int(each.id)] for each in part] for part in parts)
        if not dev:
            raise UserError(
                f"{kind}.no_dev_rows",
                f"all {len(rows):,} rows have the same {self.text_column}. Set finetune.task.dev.",
                place=self.train,
            )
        notes.append(
            f"dev: split off from {self.train} with split_seed {request.seed}: "
            f"{len(train):,} train and {len(dev):,} dev rows"
        )
        return train, dev
