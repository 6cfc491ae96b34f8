"""Decides whether a .tsv has quotes, as pandas and `csv` write them, or none, as GLUE's tables."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bert_jax.errors import UserError
from bert_jax.files import read

_QUOTE: Final = '"'
# Inside quotes: a quote, written twice, or a CR that ends no line.
_ESCAPED: Final = re.compile(r'""|\r(?!\n)')
_FEWEST_ROWS: Final = 2  # rows, each with the same column in quotes, that show quotes


def is_quoted(path: Path, delimiter: str, *, limit: int) -> bool:
    r"""Returns whether the quotes of a .tsv are those of a CSV.

    ``text\tlabel\n"She said ""no""."\t1`` is quoted. ``text\tlabel\nShe said "no".\t1`` is not.

    In a quoted table, each field with a quote, delimiter or line end is in quotes, and quotes
    inside are doubled. One other quote shows a table without quoting. Fields in quotes alone may be
    quotations. They count only if a quote is doubled inside, if the lines would otherwise have
    another number of fields, or if a whole column and its name are in quotes.

    A field in quotes with tabs and line ends may also be several rows that begin and end with a
    quote. If nothing else in the file shows quotes, both readings are possible.

    Args:
        path: path of the file.
        delimiter: delimiter of the fields.
        limit: maximum number of characters in a row.

    Raises:
        UserError: Both readings are possible, but differ in their rows. Also as `read.read_lines`.
    """
    other = re.escape(delimiter)
    field = rf'(?:"[^"]*+(?:""[^"]*+)*+"|[^"\r\n{other}]*+)'
    row = re.compile(rf"{field}(?:{other}{field})*+(?:\r?\n)?")
    fields = re.compile(rf"(?:^|{other})({field})")
    width, rows, is_certain = 0, 0, False
    wrapped: set[int] = set()  # columns in quotes in every row after the header
    names: set[int] = set()  # columns with a name in quotes
    either: int | None = None  # first line of a row that may also be several rows
    for number, text in _logical_rows(path, limit):
        if _QUOTE in text and not row.fullmatch(text):
            return False
        cells = fields.findall(text.rstrip("\r\n"))
        quoted = {at for at, cell in enumerate(cells) if cell.startswith(_QUOTE)}
        if not width:
            width, names = len(cells), quoted
            continue
        wrapped = wrapped & quoted if rows else quoted
        rows += 1
        if quoted and not is_certain:
            lines = [line.count(delimiter) + 1 for line in text.rstrip("\r\n").split("\n")]
            fits = len(cells) == width
            is_certain = (fits and {*lines} != {width}) or any(
                _ESCAPED.search(cells[at][1:-1]) for at in quoted
            )
            if fits and lines[1:] and either is None:
                either = number
    is_certain = is_certain or bool(wrapped & names)
    if either is not None and not is_certain:
        raise UserError(
            "table.quotes",
            "found quotes with two possible meanings. Save it as .jsonl, .parquet or .csv.",
            place=f"{path}: line {either}",
        )
    return is_certain or (rows >= _FEWEST_ROWS and bool(wrapped))


def _logical_rows(path: Path, limit: int) -> Iterator[tuple[int, str]]:
    """Yields the rows of a quoted table that are not blank, each of one or more lines.

    The number is the row's first line, from 1.
    """
    lines: list[str] = []
    number = quotes = size = 0
    for number, line in enumerate(read.read_lines(path, limit=limit), start=1):
        lines.append(line)
        quotes += line.count(_QUOTE)
        size += len(line)
        if quotes % 2 and size <= limit:
            continue
        if (text := "".join(lines)).strip("\r\n"):
            yield number - len(lines) + 1, text
        lines, quotes, size = [], 0, 0
    if lines:
        yield number - len(lines) + 1, "".join(lines)
