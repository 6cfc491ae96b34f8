"""Columns of a table by name: one or two texts, a label, an id."""

import math
from typing import Any, NamedTuple

from bert_jax.data.tables import TableRow
from bert_jax.errors import UserError


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
    id: str | None  # None: rows are named by their index, from 0


def text_row(row: TableRow, columns: TextColumns, *, index: int, labelled: bool) -> TextRow:
    """Returns one row of a table, the `index`-th from 0.

    The column of labels is required where it is `labelled`; the label itself may be missing. Raises
    UserError: a column that is not there, a text that is none, an id of another type.
    """
    named = columns._asdict()
    keys = ("text", "pair", "id", *(["label"] if labelled else []))
    row.require((f"task.{key}", named[key]) for key in keys)
    found_id = index if columns.id is None else row.values[columns.id]
    if isinstance(found_id, bool) or not isinstance(found_id, int | str):
        raise UserError(
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
