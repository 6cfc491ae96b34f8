"""Parquet: a document per row; row groups are read one by one, and of each the named columns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from etils import epath

from bert_jax.errors import UserError, did_you_mean, first_line
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.documents import Document
from bert_jax.pipelines.sources.files import Part
from bert_jax.pipelines.sources.problems import Problems
from bert_jax.pipelines.sources.readers.records import check_lengths, record_document

if TYPE_CHECKING:  # 60 MB of library in every worker, so only where it is needed
    import pyarrow as pa
    import pyarrow.parquet as pq

_ROWS_AT_A_TIME: Final = 256


def cut(path: str, name: str, section: SourcesSection) -> list[Part]:
    """Returns a part per row group.

    Raises:
        UserError: the file is damaged, or a column that the settings name is missing or no text.
    """
    with _open(path) as file:
        _check_columns(path, file.schema_arrow, section)
        metadata = file.metadata
        # Not its place in the schema: nested columns before it have several leaves.
        leaf = next(
            i
            for i in range(metadata.num_columns)
            if metadata.schema.column(i).path == section.text_field
        )
        groups = range(metadata.num_row_groups)
        sizes = [metadata.row_group(g).column(leaf).total_compressed_size for g in groups]
    return [
        Part(path, name, group, group + 1, format="parquet", bytes=size)
        for group, size in zip(groups, sizes, strict=True)
    ]


def read(part: Part, section: SourcesSection, *, problems: Problems) -> Iterator[Document]:
    """Yields the documents of a row group; a row that is none goes to ``problems``.

    Raises:
        UserError: the file is damaged.
    """
    columns = [section.text_field, *([section.id_field] if section.id_field else [])]
    with _open(part.path, pre_buffer=False, buffer_size=1 << 20) as file:
        row = sum(file.metadata.row_group(g).num_rows for g in range(part.start))
        for batch in file.iter_batches(
            batch_size=_ROWS_AT_A_TIME, row_groups=[part.start], columns=columns
        ):
            for record in batch.to_pylist():
                try:
                    found = record_document(
                        record,
                        place=row,
                        text_field=section.text_field,
                        id_field=section.id_field,
                    )
                    if found is not None:
                        check_lengths(found, section)
                        yield found
                except UserError as error:
                    problems.add(UserError(f"{part.path}: row {row + 1}: {error}"))
                row += 1


def _check_columns(path: str, schema: pa.Schema, section: SourcesSection) -> None:
    import pyarrow as pa

    for setting in ("text_field", "id_field"):
        column = getattr(section, setting)
        if column is not None and column not in schema.names:
            raise UserError(
                f'{path}: found no column "{column}" ({setting}), allowed: '
                f"{', '.join(schema.names)}{did_you_mean(column, schema.names)}"
            )
    kind = schema.field(section.text_field).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise UserError(
            f'{path}: column "{section.text_field}" holds {kind}, allowed: string (text_field)'
        )


@contextlib.contextmanager
def _open(path: str, **options: Any) -> Iterator[pq.ParquetFile]:
    """Opens a file, and says what Arrow finds wrong with it in one line."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with epath.Path(path).open("rb") as raw:
            yield pq.ParquetFile(raw, **options)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read as Parquet ({first_line(error)})") from error
