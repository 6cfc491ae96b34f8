"""Streaming readers of tables: CSV, TSV, JSON lines and Parquet."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from bert_jax.errors import UserError, first_line
from bert_jax.files.read import parse_json_object

SUFFIXES: Final = (".jsonl", ".csv", ".tsv", ".parquet")
# Characters in a field of a .csv; the csv module's default of 131,072 is less than long documents.
FIELD_LIMIT: Final = 1 << 28
BATCH_ROWS: Final = 1024  # of a .parquet in memory


T = TypeVar("T")


class TableRow(NamedTuple):
    """One row and its place in the file."""

    path: Path
    line: int  # its last line, from 1; for .parquet the row, from 1
    values: Mapping[str, Any]  # by column; text, or any other type of JSON and Parquet

    @property
    def place(self) -> str:
        """Location for error messages: ``t.csv: line 7``."""
        unit = "row" if self.path.suffix == ".parquet" else "line"
        return f"{self.path}: {unit} {self.line}"

    @property
    def names_place(self) -> str:
        """Location of the column names: ``line 1 of t.csv``."""
        if self.path.suffix == ".parquet":
            return f"the schema of {self.path}"
        return f"line {self.line if self.path.suffix == '.jsonl' else 1} of {self.path}"

    def text(self, name: str) -> str:
        """Returns the text in a column.

        Raises:
            UserError: the value is not text (JSON and Parquet).
        """
        found = self.values[name]
        if not isinstance(found, str):
            kind = "null" if found is None else type(found).__name__
            raise UserError(f'{self.place}: "{name}" found {kind}, allowed: text')
        return found


def read_table(path: Path) -> Iterator[TableRow]:
    """Yields the rows of a table in order.

    After a line ``text,label``, ``good,1`` -> ``TableRow(path, 2, {"text": "good", "label": "1"})``

    A .tsv has no quoting, like the tables of GLUE; a .csv follows RFC 4180. Both have column names
    in line 1. Every line of a .jsonl has its own names.

    Args:
        path: .jsonl, .csv, .tsv or .parquet; texts in UTF-8, with or without a byte order mark.

    Raises:
        UserError: no such file or suffix; a line with too few or too many fields; a column twice;
            no CSV, JSON, Parquet or UTF-8.
    """
    readers = {".jsonl": _read_jsonl, ".csv": _read_csv, ".tsv": _read_tsv}
    readers[".parquet"] = _read_parquet
    if path.suffix not in readers:
        raise UserError(
            f"{path}: found {path.suffix or 'no suffix'}, allowed: {', '.join(SUFFIXES)}"
        )
    return _named_errors(path, readers[path.suffix](path))


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields each line with its number, from 1, without its end (LF or CR LF).

    Args:
        path: in UTF-8, with or without a byte order mark.

    Raises:
        UserError: no such file, or not UTF-8.
    """
    return _named_errors(path, _lines(path))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            yield number, line.removesuffix("\n").removesuffix("\r")


def _named_errors(path: Path, found: Iterator[T]) -> Iterator[T]:
    """Re-raises decoding and I/O errors as user errors that name the file."""
    try:
        yield from found
    except UnicodeDecodeError as error:
        raise _no_utf8(path, error) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def _no_utf8(path: Path, error: UnicodeDecodeError) -> UserError:
    """Finds the line of the error, since the decoder reads ahead."""
    line, found = 0, error.object[error.start]
    with path.open("rb") as file:
        for line, content in enumerate(file, start=1):  # noqa: B007 (the last one counts)
            try:
                content.decode("utf-8")
            except UnicodeDecodeError as exact:
                found = content[exact.start]
                break
    return UserError(f"{path}: line {line}: found byte 0x{found:02x}, allowed: UTF-8")


def _read_tsv(path: Path) -> Iterator[TableRow]:
    header: list[str] = []
    for number, line in _lines(path):
        fields = line.split("\t")
        if number == 1:
            header = _header(path, fields)
        else:
            yield _row(path, number, header, fields)
    if not header:
        raise _no_header(path)


def _read_csv(path: Path) -> Iterator[TableRow]:
    csv.field_size_limit(FIELD_LIMIT)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            header = _header(path, next(reader, []))
            for fields in reader:
                # With one column, an empty line is an empty text.
                yield _row(path, reader.line_num, header, fields or [""])
        except csv.Error as error:
            raise UserError(f"{path}: line {reader.line_num}: found no CSV ({error})") from None


def _header(path: Path, names: list[str]) -> list[str]:
    if not any(names):
        raise _no_header(path)
    for name in names:
        if names.count(name) > 1:
            raise UserError(f'{path}: line 1: found the column "{name}" twice, allowed: once')
    return names


def _no_header(path: Path) -> UserError:
    return UserError(f"{path}: found no header, allowed: names of columns in line 1")


def _row(path: Path, line: int, header: list[str], fields: list[str]) -> TableRow:
    if len(fields) != len(header):
        raise ragged(path, line, found=len(fields), allowed=len(header))
    return TableRow(path, line, dict(zip(header, fields, strict=True)))


def ragged(path: Path, line: int, *, found: int, allowed: int) -> UserError:
    """Returns the error for a line whose number of fields differs from the header's."""
    return UserError(
        f"{path}: line {line}: found {found} fields, allowed: {allowed}, as in the header"
    )


def _read_jsonl(path: Path) -> Iterator[TableRow]:
    for number, line in _lines(path):
        try:
            values = parse_json_object(line, allowed="an object")
        except UserError as error:
            raise UserError(f"{path}: line {number}: {error}") from None
        yield TableRow(path, number, values)


def _read_parquet(path: Path) -> Iterator[TableRow]:
    # Slow to import and rarely needed.
    import pyarrow as pa
    import pyarrow.parquet as pq

    with path.open("rb") as file:
        try:
            table = pq.ParquetFile(file)
            batches = (batch.to_pylist() for batch in table.iter_batches(BATCH_ROWS))
            for number, values in enumerate(itertools.chain.from_iterable(batches), start=1):
                yield TableRow(path, number, values)
        except pa.ArrowException as error:
            raise UserError(f"{path}: found no Parquet ({first_line(error)})") from None
