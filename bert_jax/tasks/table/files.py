"""The rows of a table of one's own: its columns by name, its labels as they stand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bert_jax.data.tables import TableRow, read_table
from bert_jax.errors import UserError, did_you_mean


class TableColumns(NamedTuple):
    """Which column is what."""

    text: str
    pair: str | None
    label: str
    id: str | None


class RawRow(NamedTuple):
    """One example before its label has been given a meaning."""

    place: str  # such as "t.csv: line 7"
    line: int
    id: int | str  # the line where the table has no column for it
    text: str
    pair: str | None
    label: Any  # str, number, bool or list; None where there is none


def read_rows(path: Path, columns: TableColumns, *, labelled: bool) -> list[RawRow]:
    """Returns the rows of a table.

    Args:
        path: .csv, .tsv, .jsonl or .parquet.
        columns: that are read.
        labelled: whether the column of labels has to be there; a label may be missing anyhow.

    Raises:
        UserError: as `read_table`; a column that is not there; a text that is none; no rows.
    """
    rows = list(iterate_rows(path, columns, labelled=labelled))
    if not rows:
        raise UserError(f"{path}: found no rows, allowed: one or more")
    return rows


def iterate_rows(path: Path, columns: TableColumns, *, labelled: bool) -> Iterator[RawRow]:
    """Yields what `read_rows` returns; nothing of a table without rows."""
    for row in read_table(path):
        yield _raw(row, columns, labelled=labelled)


def _raw(row: TableRow, columns: TableColumns, *, labelled: bool) -> RawRow:
    named = columns._asdict()
    for key in ("text", "pair", "id", *(["label"] if labelled else [])):
        if named[key] is not None and named[key] not in row.values:
            raise no_column(key, named[key], list(row.values), row.names_place)
    found_id = row.line if columns.id is None else row.values[columns.id]
    if isinstance(found_id, bool) or not isinstance(found_id, int | str):
        raise UserError(
            f'{row.place}: "{columns.id}" found {found_id!r}, allowed: a text or a whole number'
        )
    return RawRow(
        place=row.place,
        line=row.line,
        id=found_id,
        text=row.text(columns.text),
        pair=None if columns.pair is None else row.text(columns.pair),
        label=_label(row.values.get(columns.label)),
    )


def no_column(key: str, name: str, names: Sequence[str], place: str) -> UserError:
    """Returns the error of a column that a table lacks.

    Args:
        key: of the task's section.
        name: that was asked for.
        names: of the columns that there are.
        place: where they stand.
    """
    return UserError(
        f'task.{key}: found "{name}", allowed: {", ".join(names)} ({place})'
        f"{did_you_mean(name, names)}"
    )


def _label(found: Any) -> Any:
    """Parquet has NaN where a column of numbers has no value."""
    return None if isinstance(found, float) and math.isnan(found) else found
