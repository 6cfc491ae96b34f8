"""Reads Parquet files as rows of plain values. Errors name the file and the row."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from etils import epath

from bert_jax.errors import UserError, first_line
from bert_jax.files.read import not_utf8, require_file

if TYPE_CHECKING:  # pyarrow takes 60 MB of memory in every worker
    import pyarrow.parquet as pq


@contextlib.contextmanager
def open_parquet(path: epath.PathLike, **options: Any) -> Iterator[pq.ParquetFile]:
    """Opens a Parquet file, local or ``gs://``. Passes `options` to `pq.ParquetFile`.

    Raises UserError if the file is missing, Arrow cannot read it, or column names repeat.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    require_file(path)
    try:
        with epath.Path(path).open("rb") as raw:
            # Verifies checksums if the file has them. Most writers add none.
            file = pq.ParquetFile(raw, page_checksum_verification=True, **options)
            names = file.schema_arrow.names
            if twice := [name for name in names if names.count(name) > 1]:
                raise UserError.wrong(
                    "parquet.column_twice", f'the column "{twice[0]}" twice', "once", place=path
                )
            yield file
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            "parquet.unreadable", f"cannot be read as Parquet ({first_line(error)})", place=path
        ) from error


def parquet_rows(
    path: epath.PathLike, file: pq.ParquetFile, *, first: int = 1, **options: Any
) -> Iterator[dict[str, Any]]:
    """Yields the rows of an open file as dicts. Passes `options` to `iter_batches`.

    `first` is the number of the first row in messages. Raises UserError if text is not UTF-8, or
    Python has no type for a value.
    """
    for batch in file.iter_batches(**options):
        try:
            rows = batch.to_pylist()
        except (ValueError, OverflowError):
            for row in range(batch.num_rows):
                try:
                    batch.slice(row, 1).to_pylist()
                except UnicodeDecodeError as error:
                    raise not_utf8(f"{path}: row {first + row}", error) from None
                except (ValueError, OverflowError) as error:
                    raise UserError(
                        "parquet.value",
                        f"found a value that cannot be read ({first_line(error)})",
                        place=f"{path}: row {first + row}",
                    ) from None
            raise
        yield from rows
        first += batch.num_rows
