"""The task families of search share their data, and dev sets that are split off by query."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pydantic

from bert_jax.data.memory_table import MemoryTable
from bert_jax.data.row_errors import RowErrors
from bert_jax.data.tables import TableRow
from bert_jax.errors import UserError
from bert_jax.files.read import require_file
from bert_jax.tasks.family import DataRequest, RowsSection, no_rows
from bert_jax.tasks.search.directory import PARTS, files_of, is_directory
from bert_jax.tasks.sequence import TextExample
from bert_jax.tasks.table import hold_out

DirectoryT = TypeVar("DirectoryT")


class SearchSection(RowsSection):
    """Settings of a task family whose dev and test sets may be directories in the layout of BEIR.

    `text_column` is the setting with the column of the queries.
    """

    parts: ClassVar[Sequence[str]] = PARTS
    """The parts of a directory that the task needs."""

    dev_fraction: float = pydantic.Field(default=0.1, gt=0, lt=1)
    """Fraction of the queries of `train` to hold out if `dev` is not set."""

    def parse(self, table: Iterable[TableRow], role: str, errors: RowErrors) -> list[Any]:
        """Returns what the task needs of the rows of a table."""
        raise NotImplementedError

    def query_of(self, row: Any) -> str:
        """Returns the query of a result of `parse`."""
        raise NotImplementedError

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

    def read_data(
        self,
        request: DataRequest,
        notes: list[str],
        read_directory: Callable[[str, str], tuple[DirectoryT, list[str]]],
    ) -> tuple[dict[str, Sequence[Any]], dict[str, DirectoryT]]:
        """Returns the results of `parse` for the roles with tables, and the other roles' data.

        `read_directory` returns the data of a directory for a role, with notes. If there is no dev
        set, holds out some queries of the training set. Adds notes on what was found. Raises
        UserError for a missing file or column, a malformed row, or a training set of one query.
        """
        tables: dict[str, Sequence[Any]] = {}
        directories: dict[str, DirectoryT] = {}
        # A training finds mistakes in the directory of a test set early.
        early = "test" if "train" in request.roles else None
        for role in ("train", "dev", "test", "input"):
            asked = role in request.roles and (role != "dev" or self.dev is not None)
            directory = self.directory(role, request.input)
            if directory is not None and (asked or role == early):
                data, found = read_directory(directory, role)
                notes += found
                if asked:
                    directories[role] = data
            elif asked:
                tables[role] = self._read(request.source(self, role), role, notes)
        if "dev" in request.roles and self.dev is None:
            train = tables.get("train") or self._read(request.source(self, "train"), "train", notes)
            tables |= self._split_off_dev(train, request, notes)
        return tables, directories

    def _read(self, source: Path | MemoryTable, role: str, notes: list[str]) -> list[Any]:
        table, errors = self.rows(source, role)
        rows = self.parse(table, role, errors)
        if not rows:
            raise no_rows(source, errors)
        notes += errors.note(source, kept=len(rows))
        return rows

    def _split_off_dev(
        self, rows: Sequence[Any], request: DataRequest, notes: list[str]
    ) -> dict[str, Sequence[Any]]:
        """Splits training rows into train and dev; rows of equal queries stay together."""
        queries = map(self.query_of, rows)
        texts = [TextExample(at, query, None, None, at) for at, query in enumerate(queries)]
        parts = hold_out(texts, fraction=self.dev_fraction, seed=request.seed)
        train, dev = ([rows[int(each.id)] for each in part] for part in parts)
        if not dev:
            raise UserError(
                f"{self.kind}.no_dev_rows",
                f"all {len(rows):,} rows have the same {self.text_column}. Set finetune.task.dev.",
                place=self.train,
            )
        notes.append(
            f"dev: split off from {self.train} with split_seed {request.seed}: "
            f"{len(train):,} train and {len(dev):,} dev rows"
        )
        return {"train": train, "dev": dev}
