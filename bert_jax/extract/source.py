"""Texts from a file, one record at a time."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from bert_jax.errors import UserError, did_you_mean

SUFFIXES: Final = (".txt", ".jsonl", ".csv", ".tsv")


class Columns(NamedTuple):
    """Which fields of a table are read; a .txt has none."""

    text: str | None = None
    pair: str | None = None
    label: str | None = None

    @property
    def asked(self) -> dict[str, str]:
        """The names given, by option."""
        options = {"--column": self.text, "--pair-column": self.pair, "--probe": self.label}
        return {option: name for option, name in options.items() if name is not None}


class Record(NamedTuple):
    """One text, or two, with the number of the line it ends in."""

    line: int
    text: str
    pair: str | None
    label: str | None


def read_records(path: Path, columns: Columns) -> Iterator[Record]:
    """Yields the records of a file in its order.

    A .tsv knows no quotes, as the tables of GLUE; a .csv is as RFC 4180 has it.

    Args:
        path: .txt (a text per line), .jsonl, .csv or .tsv, in UTF-8.
        columns: fields to read; without `text`, the only one that there is.

    Raises:
        UserError: no such file, suffix, or column; a line with too few or too many fields; no JSON;
            no UTF-8; a label that is not there.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(
            f"{path}: found {path.suffix or 'no suffix'}, allowed: {', '.join(SUFFIXES)}"
        )
    if path.suffix == ".txt" and columns.asked:
        option, name = next(iter(columns.asked.items()))
        raise UserError(
            f'{option}: found "{name}" with a .txt, which has no columns; allowed: with .jsonl, '
            f".csv, .tsv"
        )
    readers = {".txt": _read_text, ".jsonl": _read_jsonl}
    line = 0
    try:
        for record in readers.get(path.suffix, _read_table)(path, columns):
            line = record.line
            yield record
    except UnicodeDecodeError as error:
        found = error.object[error.start]
        raise UserError(
            f"{path}: found byte 0x{found:02x} after line {line}, allowed: UTF-8"
        ) from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error


def _read_text(path: Path, columns: Columns) -> Iterator[Record]:
    del columns
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            yield Record(number, line.rstrip("\n"), None, None)


def _read_table(path: Path, columns: Columns) -> Iterator[Record]:
    layout: dict[str, Any] = {"strict": True}
    if path.suffix == ".tsv":
        layout = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, **layout)
        try:
            header = next(reader, None)
            if not header:
                raise UserError(f"{path}: found no header, allowed: names of columns in line 1")
            columns = _resolve(path, columns, header)
            for fields in reader:
                # An empty line is an empty text where there is but one column.
                fields = fields or [""]
                if len(fields) != len(header):
                    raise UserError(
                        f"{path}: line {reader.line_num}: found {len(fields)} fields, allowed: "
                        f"{len(header)}, as in the header"
                    )
                values = dict(zip(header, fields, strict=True))
                yield _record(path, reader.line_num, values, columns)
        except csv.Error as error:
            raise UserError(f"{path}: line {reader.line_num}: found no CSV ({error})") from None


def _read_jsonl(path: Path, columns: Columns) -> Iterator[Record]:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            try:
                values = json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(
                    f"{path}: line {number}: found no JSON ({error.msg}), allowed: an object"
                ) from None
            if not isinstance(values, dict):
                raise UserError(
                    f"{path}: line {number}: found a JSON {type(values).__name__}, "
                    f"allowed: an object"
                )
            yield _record(path, number, values, _resolve(path, columns, list(values), line=number))


def _resolve(path: Path, columns: Columns, names: list[str], *, line: int = 1) -> Columns:
    """Returns the columns with `text` filled in, all of them there."""
    for option, name in columns.asked.items():
        if name not in names:
            raise UserError(
                f'{option}: found "{name}", allowed: {", ".join(names)} (line {line} of {path})'
                f"{did_you_mean(name, names)}"
            )
    if columns.text is not None:
        return columns
    rest = [name for name in names if name not in columns.asked.values()]
    if len(rest) != 1:
        raise UserError(
            f"--column: found none, allowed: {', '.join(names)} (line {line} of {path})"
        )
    return columns._replace(text=rest[0])


def _record(path: Path, line: int, values: dict[str, Any], columns: Columns) -> Record:
    def text_of(name: str) -> str:
        if not isinstance(values[name], str):
            kind = type(values[name]).__name__
            raise UserError(f'{path}: line {line}: "{name}" found {kind}, allowed: text')
        return values[name]

    label = None
    if columns.label is not None:
        found = values[columns.label]
        if found is None or found == "" or isinstance(found, dict | list):
            raise UserError(
                f'{path}: line {line}: "{columns.label}" found {found!r}, allowed: a label'
            )
        label = str(found)
    assert columns.text is not None
    pair = None if columns.pair is None else text_of(columns.pair)
    return Record(line, text_of(columns.text), pair, label)
