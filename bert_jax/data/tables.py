"""Streaming readers of tables: CSV, TSV, JSON lines and Parquet."""

import csv
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from bert_jax.errors import UserError, counted, did_you_mean
from bert_jax.files import read
from bert_jax.files.parquet import open_parquet, parquet_rows

SUFFIXES: Final = (".jsonl", ".csv", ".tsv", ".parquet")
# Characters in a field of a .csv; the csv module's default of 131,072 is less than long documents.
FIELD_LIMIT: Final = 1 << 24
MAX_COLUMNS: Final = 10_000
BATCH_ROWS: Final = 1024  # of a .parquet in memory


class TableRow(NamedTuple):
    """One row and its place in the file."""

    path: Path
    line: int  # its last line, from 1; for .parquet and in memory the row, from 1
    values: Mapping[str, Any]  # by column; text, or any other type of JSON and Parquet
    columns: Collection[str]  # of the table: the header's, or those of the first row

    @property
    def place(self) -> str:
        """Location for error messages: ``t.csv: line 7``."""
        unit = "line" if self.path.suffix in (".jsonl", ".csv", ".tsv") else "row"
        return f"{self.path}: {unit} {self.line}"

    @property
    def _names_place(self) -> str:
        """Location of the column names: ``the header of t.csv``."""
        if self.path.suffix == ".parquet":
            return f"the schema of {self.path}"
        if not self.path.suffix:  # in memory
            return self.place
        if self.path.suffix == ".jsonl":
            return f"line {self.line} of {self.path}"
        return f"the header of {self.path}"

    def require(self, asked: Iterable[tuple[str, str | None]]) -> None:
        """Refuses a row without one of some columns.

        They come after the key or option that names each; None is not asked for. Raises UserError:
        the table has no such column, so the key is wrong; or this row of JSON lines or in memory
        lacks what the first one has.
        """
        for key, name in asked:
            if name is None or name in self.values:
                continue
            found = ", ".join(each or "''" for each in self.values) or "none"
            if name in self.columns:
                raise UserError(
                    f'{self.place}: column "{name}" ({key}) is missing, found: {found}; allowed: '
                    "all columns in every row"
                )
            if not self.path.suffix:  # in memory: the rows are mistaken, and no setting
                raise UserError(
                    f'{self.place}: found the columns {found}, allowed: "{name}" ({key} of the '
                    f'model); rename a column to "{name}"'
                )
            raise UserError(
                f'{key}: found "{name}", allowed: {found} ({self._names_place})'
                f"{did_you_mean(name, self.values)}"
            )

    def only_column(self, key: str, *, but: Collection[str]) -> str:
        """Returns the one column that is none of some others.

        Raises UserError: there is none, or there are several, of which `key` would have to name it.
        """
        rest = [name for name in self.values if name not in but]
        if len(rest) != 1:
            found = ", ".join(self.values)
            raise UserError(f"{key}: found none, allowed: {found} ({self._names_place})")
        return rest[0]

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
    """Yields the rows of a .jsonl, .csv, .tsv or .parquet in order.

    After a line ``text,label``, the values of ``good,1`` are ``{"text": "good", "label": "1"}``.

    A .tsv has no quoting, like the tables of GLUE; a .csv follows RFC 4180. Both have column names
    in their first line. Every line of a .jsonl has its own names. A blank line is no row, as for
    `csv.DictReader` and pandas. Texts are in UTF-8, with or without a byte order mark.

    Raises:
        UserError: no such file or suffix; a line with too few or too many fields; a column twice;
            no CSV, JSON, Parquet or UTF-8.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(
            f"{path}: found {path.suffix or 'no suffix'}, allowed: {', '.join(SUFFIXES)}"
        )
    readers = {".jsonl": _read_jsonl, ".parquet": _read_parquet}
    return readers.get(path.suffix, _read_rows)(path)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields each line with its number, from 1, without its end (LF or CR LF).

    The file is in UTF-8, with or without a byte order mark.

    Raises:
        UserError: no such file, a line too long, or not UTF-8.
    """
    for number, line in enumerate(read.read_lines(path), start=1):
        yield number, line.removesuffix("\n").removesuffix("\r")


def read_fields(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the fields of each line of a .tsv, without quoting, or of each row of a .csv.

    Each comes after the number of its (last) line, from 1. Blank lines are left out; ``""`` alone
    in a .csv is a row of one empty field.

    Raises:
        UserError: as `read_lines`, more columns than `MAX_COLUMNS`, or no CSV.
    """
    tsv = ((number, line.split("\t", MAX_COLUMNS)) for number, line in read_lines(path) if line)
    for line, fields in _csv_rows(path) if path.suffix == ".csv" else tsv:
        if len(fields) > MAX_COLUMNS:
            raise UserError(
                f"{path}: line {line}: found more than {MAX_COLUMNS:,} columns, allowed: at most "
                "that many"
            )
        yield line, fields


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(FIELD_LIMIT)
    reader = csv.reader(read.read_lines(path, newline="", limit=FIELD_LIMIT), strict=True)
    try:
        for fields in reader:
            if fields:  # of a blank line there are none
                yield reader.line_num, fields
    except csv.Error as error:
        raise UserError(f"{path}: line {reader.line_num}: found no CSV ({error})") from None


def _read_rows(path: Path) -> Iterator[TableRow]:
    rows = read_fields(path)
    first, header = next(rows, (1, []))
    if not any(header):
        raise UserError(f"{path}: found no header, allowed: names of columns in the first line")
    for name, times in Counter(header).items():
        if times > 1:
            raise UserError(f'{path}: line {first}: found the column "{name}" twice, allowed: once')
    for line, fields in rows:
        if len(fields) != len(header):
            raise ragged(path, line, found=len(fields), allowed=len(header))
        yield TableRow(path, line, dict(zip(header, fields, strict=True)), header)


def ragged(
    path: Path, line: int, *, found: int, allowed: int, like: str = "the header"
) -> UserError:
    """Returns the error of a line with too few fields or too many; `like` what it should be."""
    return UserError(
        f"{path}: line {line}: found {counted(found, 'field')}, allowed: {allowed}, as in {like}"
    )


def _read_jsonl(path: Path) -> Iterator[TableRow]:
    columns: Collection[str] | None = None
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            values = read.parse_json_object(line, allowed="an object")
        except UserError as error:
            raise UserError(f"{path}: line {number}: {error}") from None
        columns = values if columns is None else columns
        yield TableRow(path, number, values, columns)


def _read_parquet(path: Path) -> Iterator[TableRow]:
    with open_parquet(path) as file:
        rows = parquet_rows(path, file, batch_size=BATCH_ROWS)
        for number, values in enumerate(rows, start=1):
            yield TableRow(path, number, values, values)
