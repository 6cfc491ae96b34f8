"""Streaming readers of tables: CSV, TSV, JSON lines and Parquet."""

import csv
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from bert_jax.errors import UserError, counted, first_line
from bert_jax.files import read

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

    @property
    def place(self) -> str:
        """Location for error messages: ``t.csv: line 7``."""
        unit = "line" if self.path.suffix in (".jsonl", ".csv", ".tsv") else "row"
        return f"{self.path}: {unit} {self.line}"

    @property
    def names_place(self) -> str:
        """Location of the column names: ``the header of t.csv``."""
        if self.path.suffix == ".parquet":
            return f"the schema of {self.path}"
        if not self.path.suffix:  # in memory
            return self.place
        if self.path.suffix == ".jsonl":
            return f"line {self.line} of {self.path}"
        return f"the header of {self.path}"

    def lacks(self, name: str, *, asked_by: str) -> UserError:
        """Returns the error of a row without a column that the rows before it have."""
        shown = ", ".join(name or "''" for name in self.values) or "none"
        return UserError(
            f'{self.place}: column "{name}" ({asked_by}) is missing, found: {shown}; allowed: all '
            "columns in every row"
        )

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

    After a line ``text,label``, ``good,1`` -> ``TableRow(path, 2, {"text": "good", "label": "1"})``

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
        yield TableRow(path, line, dict(zip(header, fields, strict=True)))


def ragged(
    path: Path, line: int, *, found: int, allowed: int, like: str = "the header"
) -> UserError:
    """Returns the error of a line with too few fields or too many; `like` what it should be."""
    return UserError(
        f"{path}: line {line}: found {counted(found, 'field')}, allowed: {allowed}, as in {like}"
    )


def _read_jsonl(path: Path) -> Iterator[TableRow]:
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            values = read.parse_json_object(line, allowed="an object")
        except UserError as error:
            raise UserError(f"{path}: line {number}: {error}") from None
        yield TableRow(path, number, values)


def _read_parquet(path: Path) -> Iterator[TableRow]:
    # Slow to import and rarely needed.
    import pyarrow as pa
    import pyarrow.parquet as pq

    read.require_file(path)
    with path.open("rb") as file:
        try:
            table = pq.ParquetFile(file)
            batches = (batch.to_pylist() for batch in table.iter_batches(BATCH_ROWS))
            for number, values in enumerate(itertools.chain.from_iterable(batches), start=1):
                yield TableRow(path, number, values)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path}: found no Parquet ({first_line(error)})") from None
