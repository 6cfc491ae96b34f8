"""Recognises files that are not prose, such as JSON arrays and tables, by their first bytes."""

import csv
import io
import json
import re
from typing import Final

from bert_jax.errors import UserError

START_BYTES: Final = 1 << 18
"""Number of bytes to look at: enough for the header and several rows of a table of documents."""

_JSON_LINES: Final = "JSON lines without the suffix .jsonl"
_TABLE_SUFFIXES: Final = {".csv": "a CSV table", ".tsv": "a TSV table"}
_BINARY: Final = (
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "gzip data without the suffix .gz"),
    (b"BZh", "bzip2 data without the suffix .bz2"),
    (b"\xfd7zXZ\x00", "xz data without the suffix .xz"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data without the suffix .zst"),
    (b"ARROW1", "an Arrow file"),
    (b"\xff\xff\xff\xff", "an Arrow stream"),
    (b"%PDF-", "a PDF"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"SQLite format 3\x00", "an SQLite database"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
)
_MARKUP: Final = (
    (re.compile(r"(<!--.*?-->\s*)?<(!doctype )?html\b", re.IGNORECASE | re.DOTALL), "HTML"),
    (re.compile(r"<\?xml\s"), "XML"),
    (re.compile(r"\{\\rtf\d"), "RTF"),
)

_DELIMITERS: Final = {"\t": "a TSV table", ",": "a CSV table", ";": "a CSV table", "|": "a table"}
# A column name has no blank beside a delimiter. Prose has a space after a comma. Scripts without
# spaces between words are left out: a line of them may have commas between phrases.
_COLUMN: Final = re.compile(r"[A-Za-z_\u00c0-\u052f]([\w .()#/:-]{0,38}[\w)])?")
_NUMBER: Final = re.compile(r"-?\d{1,18}(\.0)?")
_HEADER_ROWS: Final = 3  # number of rows, with the header, that show a table
_NUMBER_ROWS: Final = 5  # number of rows without a header that show a table


def refuse_other_formats(path: str, suffix: str, start: bytes, *, expected: str) -> None:
    """Raises UserError if a file begins like a format that is not read as text, or has CR lines.

    ``[{"text": "One."}, {"text": "Two."}]`` is a JSON array. ``text,label`` before rows of two
    fields is a CSV table. Prose that begins with a bracket or contains commas passes.

    Args:
        path: path of the file, for the message.
        suffix: suffix of the unpacked file, in lower case.
        start: the first `START_BYTES` of the unpacked file.
        expected: format that the file seems to have: "text" or "jsonl".
    """
    whole = len(start) < START_BYTES
    text = start.decode("utf-8-sig", "replace")
    found = _json_kind(text.lstrip(), whole=whole)
    if expected == "jsonl":
        if found in (None, _JSON_LINES):
            return
    else:
        found = found or next((name for sign, name in _BINARY if start.startswith(sign)), None)
        found = found or next((name for sign, name in _MARKUP if sign.match(text.lstrip())), None)
        found = found or _TABLE_SUFFIXES.get(suffix) or _table_kind(text, whole=whole)
    if found is None and "\n" not in text and "\r" in text.strip():
        raise UserError(
            "input.line_ends",
            "found lines that end in CR, allowed: LF or CRLF. Convert the line ends, or set "
            "format: text to read the file as one line.",
            place=path,
        )
    if found is not None:
        raise UserError(
            "input.other_format",
            "found {found}, allowed: {allowed}. Convert the file to a .jsonl with one object per "
            "document and line, or set format: text to read its lines as prose.",
            place=path,
            found=found,
            allowed=["plain text", "JSON lines", "Parquet", "WikiExtractor", "Wikipedia XML"],
        )


def _json_kind(text: str, *, whole: bool) -> str | None:
    """Returns what JSON a text is, or None. If it is not whole, it may end within a value."""
    if not text.startswith(("[", "{")):
        return None
    decoder, at, values, several_lines = json.JSONDecoder(), 0, 0, False
    while at < len(text):
        try:
            value, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            # JSON up to the end of the text, or up to a string that does not end in it.
            is_cut = error.pos >= len(text) - 8 or error.msg.startswith("Unterminated string")
            if whole or not is_cut:
                return None
            value, end = [], len(text)
        except (RecursionError, ValueError):
            return None
        after = len(text) - len(text[end:].lstrip())
        # A line end separates JSON lines. In prose, a word may follow the bracket.
        is_alone = after == len(text) or "\n" in text[end:after]
        if not is_alone or not isinstance(value, list | dict):
            return None
        several_lines = several_lines or "\n" in text[at:end]
        at, values = after, values + 1
    if text[0] == "[":
        return "a JSON array" if values == 1 else "JSON lists"
    if several_lines:
        return "a JSON object of several lines"
    return _JSON_LINES


def _table_kind(text: str, *, whole: bool) -> str | None:
    """Returns what table a text is, or None. If it is not whole, it may end within a row."""
    for delimiter, kind in _DELIMITERS.items():
        rows = _rows(text, delimiter, whole=whole)
        if len({len(row) for row in rows}) != 1 or len(rows[0]) < 2:
            continue
        names = [rows[0][0] or "index", *rows[0][1:]]  # pandas does not name its index
        if all(map(_COLUMN.fullmatch, names)) and len({*names}) == len(names):
            least = _HEADER_ROWS
        elif any(all(map(_NUMBER.fullmatch, column)) for column in zip(*rows, strict=True)):
            least = _NUMBER_ROWS
        else:
            continue
        if len(rows) >= least:
            return kind
    return None


def _rows(text: str, delimiter: str, *, whole: bool) -> list[list[str]]:
    """Returns the rows of a table without blank lines, or [] if a row is malformed."""
    quoting = csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL
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
