"""Columns of a table by name: one or two texts, a label, an id."""

import math
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from bert_jax.data.row_errors import RowError, RowErrors
from bert_jax.data.tables import TableRow

ID: Final = "id"  # column of ids where none is named


class TextRow(NamedTuple):
    """One example whose label is still as the file spells it."""

    place: str  # such as "t.csv: line 7"
    line: int
    id: int | str
    text: str
    pair: str | None
    label: Any  # str, number, bool or list; None where there is none


class TextColumns(NamedTuple):
    """The columns of a `TextRow`."""

    text: str
    pair: str | None
    label: str
    id: str | None  # None: the column "id", or else the index of the row, from 0


def text_rows(
    table: Iterable[TableRow], columns: TextColumns, *, labelled: bool, errors: RowErrors
) -> list[TextRow]:
    """Returns the rows of a table.

    Without a column of ids, the column "id" is one if all its values are texts or whole numbers;
    else the ids are the indices of the rows, from 0. A skipped row counts. The column of labels is
    required in a `labelled` table; a label may be missing. Raises UserError: a column is not there;
    RowError: a text is none, an id has another type.
    """
    found: list[TextRow] = []
    own: list[Any] = []
    for row in table:
        index = len(found) + errors.count
        try:
            found.append(_text_row(row, columns, index=index, labelled=labelled))
            own.append(row.values.get(ID) if ID not in columns else None)
        except RowError as error:
            errors.refuse(error)
    if columns.id is None and all(map(_is_id, own)):
        return [row._replace(id=value) for row, value in zip(found, own, strict=True)]
    return found


def _is_id(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _text_row(row: TableRow, columns: TextColumns, *, index: int, labelled: bool) -> TextRow:
    named = columns._asdict()
    keys = ("text", "pair", "id", *(["label"] if labelled else []))
    row.require((f"task.{key}", named[key]) for key in keys)
    found_id = index if columns.id is None else row.values[columns.id]
    if not _is_id(found_id):
        raise RowError(
            f'{row.place}: "{columns.id}" found {found_id!r}, allowed: a text or a whole number'
        )
    label = row.values.get(columns.label)
    return TextRow(
        place=row.place,
        line=row.line,
        id=found_id,
        text=row.text(columns.text),
        pair=None if columns.pair is None else row.text(columns.pair),
        # Parquet has NaN where a column of numbers has no value.
        label=None if isinstance(label, float) and math.isnan(label) else label,
    )
