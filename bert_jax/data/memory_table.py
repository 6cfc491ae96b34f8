"""Tables in memory: lists of rows, dicts of columns, DataFrames, Arrow tables, `datasets`."""

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Protocol, Self, TypeAlias

import numpy as np
import pydantic
from etils import epath

from bert_jax.data.tables import ClassNames, TableRow, names_of_features, names_of_schema
from bert_jax.errors import UserError, commas
from bert_jax.files.atomic import write_whole

_NOTHING: Final = ("NAType", "NaTType")  # names of pandas' types for missing values


class Frame(Protocol):
    """A table of pandas, polars or pyarrow."""

    @property
    def columns(self) -> Any:
        """Columns of the table."""
        ...


# Accepted tables: a list, array or `datasets.Dataset` of texts, tuples or dicts; a dict of columns;
# a table of pandas, polars or pyarrow.
Rows: TypeAlias = Annotated[
    Iterable[str]
    | Iterable[Sequence[str]]
    | Iterable[Mapping[str, Any]]
    | Mapping[str, Sequence[Any]]
    | Frame,
    pydantic.SkipValidation,  # `MemoryTable.of` validates them
]


@dataclasses.dataclass(frozen=True)
class MemoryTable:
    """A table in memory. Each row is a text, a tuple of values, or a dict of values by column."""

    rows: tuple[str | tuple[Any, ...] | dict[str, Any], ...]
    classes: ClassNames = dataclasses.field(default_factory=dict)
    """Names of numbered classes by column, of a `datasets.Dataset` or an Arrow table."""
    name: str = "rows"
    """Name of the table in messages."""

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, rows: Rows, *, name: str = "rows") -> Self:
        """Returns a table from any form of `Rows`.

        ``MemoryTable.of({"text": ["a", "b"]}).rows -> ({"text": "a"}, {"text": "b"})``

        Raises UserError if a row is not a text, tuple or dict, if column lengths differ, or if two
        columns have the same name.
        """
        each = enumerate(_each(rows, name), start=1)
        found = tuple(_row(row, f"{name}: row {at}") for at, row in each)
        if hasattr(rows, "to_pylist"):  # pyarrow
            schema: Any = getattr(rows, "schema", None)
            return cls(found, names_of_schema(getattr(schema, "metadata", None)), name)
        features: Any = getattr(rows, "features", None)  # `datasets`
        known = hasattr(features, "to_dict")
        return cls(found, names_of_features(features.to_dict()) if known else {}, name)

    def named(self, names: Sequence[str]) -> Iterator[TableRow]:
        """Yields the rows with values by column.

        ``names`` are the columns of text and tuple rows. Raises UserError if a tuple has more
        values than ``names``.
        """
        columns: Collection[str] | None = None
        for number, row in enumerate(self.rows, start=1):
            values = (row,) if isinstance(row, str) else row
            if isinstance(values, tuple):
                if not 1 <= len(values) <= len(names):
                    raise UserError(
                        "rows.too_many_values",
                        f"found {len(values)} values, allowed: {commas(names)}",
                        place=f"{self}: row {number}",
                    )
                values = dict(zip(names, values, strict=False))
            columns = values if columns is None else columns
            yield TableRow(Path(self.name), number, values, columns, classes=self.classes)

    def require_column(self, column: str) -> None:
        """Raises UserError if a row is no dict with `column`, which an argument names."""
        for row in self.rows:
            found = [*row] if isinstance(row, dict) else []
            if column not in found:
                raise UserError.unknown("rows.column_unknown", column, found, place="column")

    def has(self, column: str | None, *, width: float = math.inf) -> bool:
        """Returns whether any row is a dict with `column` or a tuple of at least `width` values."""
        return any(
            column in row if isinstance(row, dict) else isinstance(row, tuple) and len(row) >= width
            for row in self.rows
        )

    def write_jsonl(
        self, path: epath.PathLike, names: Sequence[str], *, labels: Sequence[str] = ()
    ) -> None:
        """Writes the rows as JSON lines.

        `labels` are columns to write with the names of their classes, which JSON lines cannot
        store. Raises UserError if JSON cannot represent a value.
        """
        try:
            lines = [
                json.dumps(
                    {
                        **row.values,
                        **{name: row.labels(name) for name in labels if name in row.values},
                    },
                    ensure_ascii=False,
                )
                for row in self.named(names)
            ]
        except TypeError as error:
            raise UserError(
                "rows.not_json",
                f"a value cannot be written as JSON ({error}), allowed: text, numbers, lists",
                place=self.name,
            ) from None
        write_whole(epath.Path(path), "".join(f"{line}\n" for line in lines).encode())


def _each(rows: Any, name: str) -> Iterable[Any]:
    if isinstance(rows, str):
        return [rows]
    if isinstance(rows, Mapping):
        return _of_columns(rows, name)
    if hasattr(rows, "to_pylist"):  # pyarrow
        _refuse_repeated(getattr(getattr(rows, "schema", None), "names", ()), name)
        return rows.to_pylist()
    if hasattr(rows, "to_dicts"):  # polars
        return rows.to_dicts()
    if hasattr(rows, "to_dict") and hasattr(rows, "columns"):  # pandas
        _refuse_repeated(rows.columns, name)
        return rows.to_dict("records")
    # A `datasets.Dataset` yields dicts.
    if isinstance(rows, Iterable) and not isinstance(rows, bytes):
        return rows
    raise UserError(
        "rows.kind",
        f"found {type(rows).__name__}, allowed: rows in a list, columns in a dict, or a table",
        place=name,
    )


def _refuse_repeated(columns: Iterable[Any], table: str) -> None:
    """Raises UserError if two columns have the same name, since a dict would keep only one."""
    for column, times in Counter(map(str, columns)).items():
        if times > 1:
            raise UserError(
                "rows.column_twice",
                f'found the column "{column}" {times} times, allowed: once. Rename the others.',
                place=table,
            )


def _of_columns(columns: Mapping[str, Sequence[Any]], table: str) -> list[dict[str, Any]]:
    if any(
        isinstance(values, str) or not hasattr(values, "__len__") for values in columns.values()
    ):
        return [dict(columns)]  # one row
    sizes = {name: len(values) for name, values in columns.items()}
    if len(set(sizes.values())) > 1:
        raise UserError(
            "rows.column_lengths",
            f"columns differ in length: {commas(f'{n} {size}' for n, size in sizes.items())}",
            place=table,
        )
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def _row(row: Any, place: str) -> str | tuple[Any, ...] | dict[str, Any]:
    plain = _plain(dict(row) if isinstance(row, Mapping) else row)
    if isinstance(plain, str | dict):
        return plain
    if isinstance(plain, list | tuple) and plain:
        return tuple(map(_plain, plain))
    raise UserError(
        "rows.row_kind",
        f"found {type(row).__name__}, allowed: a text, a tuple of texts or a dict of columns",
        place=place,
    )


def _plain(value: Any) -> Any:
    """Returns arrays as lists, also inside lists and dicts, and NaN and pandas' NA as None."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    # Arrays and numbers of NumPy and PyTorch.
    if isinstance(value, np.generic | np.ndarray) or type(value).__name__ == "Tensor":
        value = value.tolist()
    if isinstance(value, list):
        return [*map(_plain, value)]
    if (isinstance(value, float) and math.isnan(value)) or type(value).__name__ in _NOTHING:
        return None
    return value
