"""Writes the rows of a part to a file, which appears when it is complete."""

import contextlib
import datetime
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq
from etils import epath

from bert_jax.corpus.section import OutputFormat
from bert_jax.errors import UserError, first_line
from bert_jax.files.atomic import whole_file, write_errors

_GROUP_ROWS: Final = 1 << 16  # rows of a row group, or fewer with `_GROUP_BYTES`
_GROUP_BYTES: Final = 64 << 20


class PartWriter:
    """An open output file. The first table determines the columns.

    Attributes:
        sha256: hash of the closed file.
        bytes: size of the closed file.
    """

    sha256: str
    bytes: int

    def __init__(self, path: Path, form: OutputFormat, name: str) -> None:
        """`name` is the path of the output in errors, `path` its temporary file."""
        self._path, self._form, self._name = path, form, name
        self._files = contextlib.ExitStack()
        self._parquet: pq.ParquetWriter | None = None
        self._lines: BinaryIO | None = None
        self._held: list[pa.Table] = []

    def write(self, table: pa.Table) -> None:
        """Writes rows."""
        with write_errors(self._name):
            if self._form == "jsonl":
                lines = self._lines or self._files.enter_context(self._path.open("wb"))
                self._lines = lines
                for text in self._json(table):
                    lines.write(f"{text}\n".encode())
                return
            if self._parquet is None:
                try:
                    pq.ParquetWriter(pa.BufferOutputStream(), table.schema).close()
                except pa.ArrowNotImplementedError as error:
                    raise UserError(
                        "score.not_parquet",
                        f"Parquet cannot store a column ({first_line(error)}). Leave it out.",
                        place="score.columns",
                    ) from None
                self._parquet = self._files.enter_context(
                    pq.ParquetWriter(self._path, table.schema, compression="zstd")
                )
            self._held.append(table)
            full = sum(held.nbytes for held in self._held) >= _GROUP_BYTES
            if full or sum(held.num_rows for held in self._held) >= _GROUP_ROWS:
                self._flush()

    def close(self) -> None:
        """Writes the last rows and closes the file."""
        with write_errors(self._name):
            if self._parquet is not None and self._held:
                self._flush()
            self._files.close()
            self.bytes = self._path.stat().st_size
            with self._path.open("rb") as file:
                self.sha256 = hashlib.file_digest(file, "sha256").hexdigest()

    def abandon(self) -> None:
        """Closes the file after an error."""
        with contextlib.suppress(OSError, pa.ArrowException):
            self._files.close()

    def _flush(self) -> None:
        assert self._parquet is not None
        if any(held.num_rows for held in self._held):
            self._parquet.write_table(pa.concat_tables(self._held), row_group_size=_GROUP_ROWS)
        self._held = []

    def _json(self, table: pa.Table) -> Iterator[str]:
        try:
            for row in table.to_pylist():
                yield json.dumps(row, ensure_ascii=False, allow_nan=False, default=self._plain)
        except (ValueError, OverflowError) as error:  # NaN, no UTF-8, a time beyond Python's
            raise UserError(
                "score.not_json", f"{first_line(error)}. Use parquet.", place="score.columns"
            ) from None

    def _plain(self, value: Any) -> Any:
        if isinstance(value, datetime.date | datetime.time):
            return value.isoformat()
        raise UserError.wrong(
            "score.not_json", f"a {type(value).__name__}", "JSON's types", place="score.columns"
        )


@contextlib.contextmanager
def open_part(target: epath.Path, form: OutputFormat) -> Iterator[PartWriter]:
    """Yields a writer. Creates `target`, local or in a bucket, only if the block succeeds.

    Raises UserError if the file cannot be written.
    """
    with write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as temporary:
        writer = PartWriter(temporary, form, str(target))
        try:
            yield writer
            writer.close()
        except BaseException:
            writer.abandon()
            raise
