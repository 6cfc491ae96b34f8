"""Writes predictions to a file while they are computed."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import csv as pa_csv

from bert_jax.files.atomic import unfinished, write_errors
from bert_jax.tasks.family import Record

SUFFIXES: Final = (".jsonl", ".csv")

CSV_STYLE: Final = pa_csv.WriteOptions(quoting_style="needed")


@contextlib.contextmanager
def open_prediction_file(path: Path, *, probabilities: bool = False) -> Iterator["PredictionFile"]:
    """Yields a file for predictions. Creates `path` only if the block succeeds.

    With `probabilities`, a .csv has a column for each label. Raises UserError if the file cannot be
    written.
    """
    temporary = unfinished(path)
    try:
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = PredictionFile(path, temporary, probabilities=probabilities)
        with file:
            yield file
        with write_errors(path):
            temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class PredictionFile:
    """An open .jsonl file with whole records, or .csv file with ids and predictions."""

    def __init__(self, path: Path, temporary: Path, *, probabilities: bool) -> None:
        """Opens `temporary`. Errors name `path`, whose suffix is the format."""
        self._path, self._is_csv, self._probabilities = path, path.suffix == ".csv", probabilities
        self._sink = temporary.open("wb")
        self._table: pa_csv.CSVWriter | None = None  # opened with the columns of the first records

    def write(self, records: Sequence[Record], *, split: str | None = None) -> None:
        """Writes records. If `split` is given, each has the name of its split."""
        before: Mapping[str, Any] = {} if split is None else {"split": split}
        with write_errors(self._path):
            if self._is_csv:
                self._write_table([{**before, **record} for record in records], [*before])
                return
            for record in records:
                line = json.dumps({**before, **record}, ensure_ascii=False)
                self._sink.write(f"{line}\n".encode())

    def _write_table(self, rows: Sequence[Record], before: Sequence[str]) -> None:
        columns: dict[str, list[Any]] = {
            name: [_cell(row[name]) for row in rows] for name in (*before, "id", "prediction")
        }
        for name in rows[0]["probabilities"] if self._probabilities else ():
            columns[f"probability:{name}"] = [row["probabilities"][name] for row in rows]
        table = pa.table(columns)
        writer = self._table or pa_csv.CSVWriter(self._sink, table.schema, write_options=CSV_STYLE)
        writer.write_table(table)
        self._table = writer

    def __enter__(self) -> "PredictionFile":
        return self

    def __exit__(self, *raised: object) -> None:
        with write_errors(self._path), self._sink:
            if self._table is not None:
                self._table.close()


def _cell(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else str(value)
