"""Recognises tables of texts: CSV, TSV, Markdown, and columns of tokens."""

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from typing import Final

_DELIMITERS: Final = {"\t": "a TSV table", ",": "a CSV table", ";": "a CSV table", "|": "a table"}
_LONGEST_NAME: Final = 40  # characters
_IN_NAMES: Final = " .()#/:_-（）・"
# Latin, Greek, Cyrillic and Armenian: prose has a space after a comma. In other scripts, a line may
# have commas or tabs between phrases or verses.
_SPACED: Final = re.compile("[\x00-\u058f]*")
_NUMBER: Final = re.compile(r"-?\d{1,18}(\.\d{1,18})?")
_PHRASE: Final = re.compile(r"(an?|the) |\S+ \S+ \S")
_THOUSANDS: Final = re.compile(r"\d{3}(?!\d)")
_SENTENCE_ENDS: Final = tuple("。！？｡।۔؟։!?.…")
_HEADER_ROWS: Final = 3  # number of rows, with the header, that show a table
_NUMBER_ROWS: Final = 5  # number of rows that show a table without names of columns
_SHORT: Final = 20  # characters of a label, at most

_RULE: Final = re.compile(r"(?=.*[|+])[|+\s]*:?[-=]+:?([|+\s]+:?[-=]+:?)*[|+\s]*")
_CELLS: Final = re.compile(r"\s*[|+].*[|+]\s*")

_TOKEN_NUMBER: Final = re.compile(r"\d+([-.]\d+)?")
_TAG: Final = re.compile(r"O|[BIESLUM][-_]\S+")


def table_kind(text: str, *, whole: bool) -> str | None:
    """Returns what table a text is, or None. If it is not whole, it may end within a row."""
    for delimiter, kind in _DELIMITERS.items():
        # Tables of tabs have quotes, as pandas writes them, or none.
        for quoted in (True, False) if delimiter == "\t" else (True,):
            rows = _rows(text, delimiter, quoted=quoted, whole=whole)
            if len({len(row) for row in rows}) != 1 or len(rows[0]) < 2:
                continue
            is_prose = _is_glossary(rows) if delimiter == "\t" else _has_thousands(rows)
            if not is_prose and (_is_table(rows) or (delimiter == "\t" and _has_sentences(rows))):
                return kind
    return None


def _rows(text: str, delimiter: str, *, quoted: bool, whole: bool) -> list[list[str]]:
    """Returns the rows of a table without blank lines, or [] if a row is malformed."""
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    lines = io.StringIO(text, newline=None)
    rows: list[list[str]] = []
    try:
        for row in csv.reader(lines, delimiter=delimiter, quoting=quoting, strict=True):
            if len(row) == 1:  # most prose ends here
                return []
            rows.append(row)
    except csv.Error as error:
        # A quoted field may be longer than the start of the file, or than the limit of `csv`.
        is_cut = "end of data" in str(error) or "field limit" in str(error)
        rows = [*rows, []] if is_cut and not whole else []
    return [row for row in (rows if whole else rows[:-1]) if row]


def _is_table(rows: Sequence[Sequence[str]]) -> bool:
    names = [rows[0][0] or "index", *rows[0][1:]]  # pandas does not name its index
    body = list(zip(*rows[1:], strict=True))
    if len(rows) >= _HEADER_ROWS and len({*names}) == len(names) and all(map(_is_name, names)):
        spaced = all(map(_SPACED.fullmatch, names))
        if spaced or any(map(_is_labels, body)) or any(map(_is_sentences, body[:-1])):
            return True
    numbers = [all(map(_NUMBER.fullmatch, column)) for column in body]
    return (
        len(rows) >= _NUMBER_ROWS
        and any(numbers)
        and not all(numbers)
        and not (numbers[-1] and _is_contents(body[-1]))
    )


def _is_glossary(rows: Sequence[Sequence[str]]) -> bool:
    """Returns whether each row has a term and its definition, the first one included."""
    definitions = [row[1] for row in rows]
    return (
        len(rows[0]) == 2
        and _PHRASE.match(definitions[0]) is not None
        and not any(map(_is_labels, zip(*rows[1:], strict=True)))
        and not _is_sentences(definitions)
    )


def _has_thousands(rows: Sequence[Sequence[str]]) -> bool:
    """Returns whether lines begin with numbers such as ``1,000``, which have a comma inside."""
    return all(_NUMBER.fullmatch(row[0]) and _THOUSANDS.match(row[1]) for row in rows)


def _has_sentences(rows: Sequence[Sequence[str]]) -> bool:
    """Returns whether each row has a sentence with its translation, label or speaker."""
    columns = list(zip(*rows, strict=True))
    sentences = [_is_sentences(column) for column in columns]
    labels = map(_is_labels, columns)
    return len(rows) >= _NUMBER_ROWS and any(sentences) and all(map(max, sentences, labels))


def _is_name(cell: str) -> bool:
    """Returns whether a cell may name a column. In prose, a space follows a comma."""
    if not cell[:1].isidentifier() or len(cell) > _LONGEST_NAME:
        return False
    ends = cell[-1] in ")）_" or unicodedata.category(cell[-1])[0] in "LMN"
    return ends and all(
        each in _IN_NAMES or unicodedata.category(each)[0] in "LMN" for each in cell
    )


def _is_labels(column: Sequence[str]) -> bool:
    """Returns whether a column has numbers, or few short texts that repeat."""
    if all(map(_NUMBER.fullmatch, column)):
        return True
    values = {*column}
    return 1 < len(values) <= len(column) / 2 and max(map(len, values)) <= _SHORT


def _is_sentences(column: Sequence[str]) -> bool:
    # In prose, no comma follows the end of a sentence.
    return 2 * sum(cell.endswith(_SENTENCE_ENDS) for cell in column) > len(column)


def _is_contents(column: Sequence[str]) -> bool:
    """Returns whether a last column has the pages of a table of contents, which ascend."""
    pages = [float(cell) for cell in column]
    return pages == sorted(pages) and 2 * len({*pages}) > len(pages)


def drawn_table_kind(lines: Sequence[str]) -> str | None:
    """Returns "a Markdown table" if lines have rows between bars, below a rule; otherwise None.

    A document that also has paragraphs is prose.
    """
    if not any(map(_RULE.fullmatch, lines[:3])):
        return None
    cells = sum(bool(_CELLS.fullmatch(line) or _RULE.fullmatch(line)) for line in lines)
    inner = sum("|" in line for line in lines)  # a table may lack the outer bars
    return "a Markdown table" if len(lines) > 2 and len(lines) in (cells, inner) else None


def tokens_kind(lines: Sequence[str]) -> str | None:
    """Returns "CoNLL columns" if each line has a token and its tags; otherwise None."""
    rows: list[list[str]] = []
    for line in lines:
        if line.startswith(("#", "-DOCSTART-")):
            continue
        rows.append(line.split("\t") if "\t" in line else line.split())
        if len(rows[-1]) != len(rows[0]):  # most prose ends here
            return None
    if len(rows) < _HEADER_ROWS or len(rows[0]) < 2:
        return None
    columns = list(zip(*rows, strict=True))
    is_universal = len(columns) == 10 and all(map(_TOKEN_NUMBER.fullmatch, columns[0]))
    return "CoNLL columns" if is_universal or any(map(_is_tags, columns)) else None


def _is_tags(column: Sequence[str]) -> bool:
    return any(len(cell) > 2 for cell in column) and all(map(_TAG.fullmatch, column))
