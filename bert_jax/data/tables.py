"""Reads CSV, TSV, JSON lines and Parquet row by row. A malformed row raises or is skipped."""

import csv
import json
import types
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from bert_jax.data.row_errors import RowError, RowErrors
from bert_jax.data.tsv_quotes import is_quoted
from bert_jax.errors import UserError, commas, counted, did_you_mean
from bert_jax.files import read
from bert_jax.files.parquet import open_parquet, parquet_rows

# Names by column: {"label": ("neg", "pos")}. The values of such a column are indices.
ClassNames: TypeAlias = Mapping[str, tuple[str, ...]]
NO_CLASSES: Final[ClassNames] = types.MappingProxyType({})

_METADATA_KEY: Final = b"huggingface"  # key of the features in a Parquet or Arrow schema


def names_of_features(features: Any) -> ClassNames:
    """Returns the names of all columns of classes, or of lists of classes.

    `features` is the result of `datasets.Features.to_dict`. Unknown forms have no names.
    """
    found = features.items() if isinstance(features, Mapping) else ()
    return {column: names for column, feature in found if (names := _names(feature))}


def names_of_schema(metadata: Mapping[bytes, bytes] | None) -> ClassNames:
    """Returns the names of all columns of classes from the metadata of an Arrow schema."""
    try:
        found = json.loads((metadata or {}).get(_METADATA_KEY, b"{}"))
        return names_of_features(found["info"]["features"])
    except (ValueError, KeyError, TypeError, RecursionError):  # not written by `datasets`
        return {}


def _names(feature: Any) -> tuple[str, ...]:
    # Lists of classes: {"feature": …, "_type": "List" or "Sequence"}, formerly […].
    if isinstance(feature, list) and len(feature) == 1:
        return _names(feature[0])
    if not isinstance(feature, Mapping):
        return ()
    if feature.get("_type") != "ClassLabel":
        return _names(feature.get("feature"))
    names: Any = feature.get("names")
    texts = isinstance(names, list) and all(isinstance(name, str) for name in names)
    return tuple(names) if texts else ()


SUFFIXES: Final = (".jsonl", ".csv", ".tsv", ".parquet")
Delimiter: TypeAlias = Literal["comma", "semicolon", "tab", "pipe"]
_DELIMITERS: Final[Mapping[str, str]] = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
# Maximum characters in a .csv field. Long documents exceed the csv module's default of 131,072.
FIELD_LIMIT: Final = 1 << 24
MAX_COLUMNS: Final = 10_000
BATCH_ROWS: Final = 1024  # rows of a .parquet in memory at once


class TableRow(NamedTuple):
    """A row and its place in the file."""

    path: Path
    line: int  # number of the row's last line, from 1; in .parquet and in memory, of the row
    values: Mapping[str, Any]  # values by column: text, or any type of JSON and Parquet
    columns: Collection[str]  # columns of the header; without a header, of the first row
    delimiter: str | None = None  # delimiter of a .csv or .tsv
    classes: ClassNames = NO_CLASSES  # names of numbered classes, by column

    @property
    def place(self) -> str:
        """Place for errors: ``t.csv: line 7``."""
        unit = "line" if self.path.suffix in (".jsonl", ".csv", ".tsv") else "row"
        return f"{self.path}: {unit} {self.line}"

    def at(self, column: str) -> str:
        """Returns the place of a value: ``t.csv: line 7: column "label"``."""
        return f'{self.place}: column "{column}"'

    def require(self, asked: Iterable[tuple[str, str | None]]) -> None:
        """Raises an error if a column is missing.

        `asked` has pairs of a setting and its column. If the column is None, the pair is skipped.
        If the whole table lacks the column, raises UserError with hints on the delimiter and the
        header.
        If only this row lacks the column (JSON lines, tables in memory), raises RowError.
        """
        named = [(key, name) for key, name in asked if name is not None]
        for key, name in named:
            if name in self.values:
                continue
            found = [each or "''" for each in self.values] or "none"
            if name in self.columns:
                raise RowError(
                    "table.row_without_column",
                    f'found {commas(found)}, but not the column "{name}" ({key})',
                    place=self.place,
                )
            if not self.path.suffix:  # in memory: the rows are wrong, not a setting
                raise UserError(
                    "rows.columns",
                    f'found {commas(found)}. Rename one to "{name}", the {key} of the model.',
                    place=self.place,
                )
            if self.delimiter is not None:
                settable = key.startswith("task.")
                _check_delimiter(self.path, [*self.columns], self.delimiter, settable=settable)
            hint = did_you_mean(name, self.values)
            if self.delimiter is not None and not any(each in self.values for _, each in named):
                hint = hint or NO_HEADER
            raise UserError(
                "table.column_unknown",
                f'found "{name}", allowed: {commas(found)} in {self.path}{hint}',
                place=key,
            )

    def only_column(self, key: str, *, but: Collection[str]) -> str:
        """Returns the only column that is not in `but`.

        Raises UserError at the setting `key` if there is no such column or more than one.
        """
        rest = [name for name in self.values if name not in but]
        if len(rest) != 1:
            raise UserError(
                "table.column_needed", f"missing, allowed: {commas(self.values)}", place=key
            )
        return rest[0]

    def labels(self, name: str) -> Any:
        """Returns the value in a column of labels, with the names of numbered classes.

        ``{"label": 1}`` is ``"pos"`` if the classes are ``neg`` and ``pos``; a list has one name
        per number. The number -1 is None: `datasets` writes it if the label is unknown. A missing
        column is None. Raises RowError if a class has no name.
        """
        names = self.classes.get(name)
        found = self.values.get(name)
        return found if names is None else self._named(name, found, names)

    def _named(self, column: str, found: Any, names: Sequence[str]) -> Any:
        if isinstance(found, list | tuple):
            return [self._named(column, each, names) for each in found]
        if not isinstance(found, int) or isinstance(found, bool) or found == -1:
            return None if found == -1 else found
        if not 0 <= found < len(names):
            raise RowError.wrong(
                "table.class_number", found, f"0 to {len(names) - 1}", place=self.at(column)
            )
        return names[found]

    def text(self, name: str) -> str:
        """Returns the text in a column. Raises RowError if the value is not text."""
        found = self.values[name]
        if not isinstance(found, str):
            kind = "null" if found is None else type(found).__name__
            raise RowError.wrong("table.not_text", kind, "text", place=self.at(name))
        return found


def read_table(
    path: Path, *, delimiter: Delimiter | None = None, errors: RowErrors | None = None
) -> Iterator[TableRow]:
    """Yields the rows of a .jsonl, .csv, .tsv or .parquet in order.

    With the header ``text,label``, the values of ``good,1`` are ``{"text": "good", "label": "1"}``.

    A .csv follows RFC 4180. In a .tsv, quotes are ordinary characters, as in GLUE's tables, unless
    all of them are those of a CSV, as pandas writes them; see `is_quoted`. The first line of a .csv
    or .tsv is a header with column names; each line of a .jsonl has its own.
    Blank lines are skipped, as in pandas. Text is UTF-8, with or without a byte order mark.

    Args:
        path: path of the file.
        delimiter: delimiter of a .csv or .tsv. By default a comma in a .csv and a tab in a .tsv.
        errors: treatment of malformed rows. If None, the error is raised.

    Raises:
        UserError: if the file or its header is missing, the suffix is unknown, the header has
            another delimiter or a repeated column, or the file is not valid Parquet or UTF-8.
        RowError: if a row has too few or too many fields, or a line is not valid CSV or JSON.
    """
    errors = errors or RowErrors()
    if path.suffix == ".jsonl":
        return _read_jsonl(path, errors)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    if path.suffix in SUFFIXES:
        return _read_rows(path, delimiter, errors)
    raise UserError.wrong("table.suffix", path.suffix or "no suffix", commas(SUFFIXES), place=path)


def read_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yields the number, from 1, and the text of each line, without the line end.

    Raises UserError as `read.read_lines` does.
    """
    for number, line in enumerate(read.read_lines(path), start=1):
        yield number, line.removesuffix("\n").removesuffix("\r")


def read_fields(
    path: Path,
    *,
    delimiter: Delimiter | None = None,
    errors: RowErrors | None = None,
    quoted: bool | None = None,
) -> Iterator[tuple[int, list[str]]]:
    """Yields each row of a .csv or .tsv: the number of its last line, and its fields.

    Blank lines are skipped. A line ``""`` in a .csv is a row with one empty field. For `delimiter`
    and `errors` see `read_table`. `quoted` is whether the file has quotes; by default, a .csv has,
    and the content of a .tsv decides. Raises UserError as `read_lines` does, and if a row has more
    than `MAX_COLUMNS` columns. Raises RowError if a row is not valid CSV.
    """
    between = _between(path, delimiter)
    if quoted is None:
        quoted = path.suffix == ".csv" or is_quoted(path, between, limit=FIELD_LIMIT)
    tsv = ((number, line.split(between, MAX_COLUMNS)) for number, line in read_lines(path) if line)
    rows = _csv_rows(path, between, errors or RowErrors()) if quoted else tsv
    for line, fields in rows:
        if len(fields) > MAX_COLUMNS:
            raise UserError(
                "table.too_many_columns",
                f"found more columns than {MAX_COLUMNS:,}, the limit",
                place=f"{path}: line {line}",
            )
        yield line, fields


def _between(path: Path, delimiter: Delimiter | None) -> str:
    return _DELIMITERS[delimiter or ("tab" if path.suffix == ".tsv" else "comma")]


def _csv_rows(path: Path, delimiter: str, errors: RowErrors) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(FIELD_LIMIT)
    lines = read.read_lines(path, newline="", limit=FIELD_LIMIT)
    again: deque[str] = deque()  # lines to read again: a malformed row without its first line
    row: list[str] = []  # lines of the current row
    number, is_first = 0, True

    def numbered() -> Iterator[str]:
        nonlocal number
        for line in iter(lambda: again.popleft() if again else next(lines, ""), ""):
            number += 1
            row.append(line)
            yield line

    reader = csv.reader(numbered(), strict=True, delimiter=delimiter)
    while True:
        row.clear()
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            first = number - len(row) + 1
            place = f"{path}: line {first}"
            if len(row) > 1 or "end of data" in str(error):
                problem = RowError(
                    "table.open_quote",
                    f"its open quote is not closed by line {number}. Quote the whole field.",
                    place=place,
                )
            else:
                problem = RowError("table.not_csv", f"found no CSV ({error})", place=place)
            if is_first:  # the header is never skipped
                _check_delimiter(path, row[:1], delimiter, settable=errors.setting is not None)
                raise problem from None
            errors.refuse(problem)
            again.extendleft(reversed(row[1:]))  # the second line may begin a row
            number = first
            reader = csv.reader(numbered(), strict=True, delimiter=delimiter)
            continue
        if fields:  # a blank line has no fields
            yield number, fields
            is_first = False


def _read_rows(path: Path, delimiter: Delimiter | None, errors: RowErrors) -> Iterator[TableRow]:
    between = _between(path, delimiter)
    rows = read_fields(path, delimiter=delimiter, errors=errors)
    first, header = next(rows, (1, []))
    if not any(header):
        raise UserError.wrong(
            "table.no_header", "no header", "names of columns in the first line", place=path
        )
    for name, times in Counter(header).items():
        if times > 1:
            raise UserError(
                "table.column_twice",
                f'found the column "{name}" twice, allowed: once{NO_HEADER}',
                place=f"{path}: line {first}",
            )
    for line, fields in rows:
        if len(fields) == len(header):
            values = dict(zip(header, fields, strict=True))
            yield TableRow(path, line, values, header, between)
            continue
        _check_delimiter(path, header, between, settable=errors.setting is not None)
        errors.refuse(ragged(path, line, found=len(fields), allowed=len(header)))


NO_HEADER: Final = "; if this line is a row, put a line with the names of the columns before it"


def _check_delimiter(path: Path, header: Sequence[str], delimiter: str, *, settable: bool) -> None:
    """Raises UserError if the header is one column that another delimiter would divide.

    If `settable`, the error mentions the setting of the delimiter.
    """
    if len(header) != 1 or delimiter in header[0]:
        return
    for name, other in _DELIMITERS.items():
        if other in header[0]:
            found, allowed = (_shown_delimiter(each) for each in (other, delimiter))
            hint = f", or the setting finetune.task.delimiter={name}" if settable else ""
            raise UserError(
                "table.delimiter",
                f"found {found} between the columns of the header, allowed: {allowed}{hint}",
                place=path,
            )


def _shown_delimiter(delimiter: str) -> str:
    return "a tab" if delimiter == "\t" else f'"{delimiter}"'


def ragged(
    path: Path, line: int, *, found: int, allowed: int, like: str = "the header"
) -> RowError:
    """Returns the error for a line with too few or too many fields.

    `like` names the line that has the right number of fields.
    """
    return RowError(
        "table.fields",
        f"found {counted(found, 'field')}, allowed: {allowed}, as in {like}",
        place=f"{path}: line {line}",
    )


def _read_jsonl(path: Path, errors: RowErrors) -> Iterator[TableRow]:
    columns: Collection[str] | None = None
    for number, line in read_lines(path):
        if not line.strip():
            continue
        try:
            values = read.parse_json_object(line, allowed="an object")
        except UserError as error:
            place = f"{path}: line {number}"
            errors.refuse(RowError(error.key, error.message, place=place))
            continue
        columns = values if columns is None else columns
        yield TableRow(path, number, values, columns)


def _read_parquet(path: Path) -> Iterator[TableRow]:
    with open_parquet(path) as file:
        classes = names_of_schema(file.schema_arrow.metadata)
        rows = parquet_rows(path, file, batch_size=BATCH_ROWS)
        for number, values in enumerate(rows, start=1):
            yield TableRow(path, number, values, values, classes=classes)
