"""Reads Parquet files: a document per row, one row group at a time, only the named columns."""

from collections.abc import Iterator
from typing import Final

from bert_jax.errors import UserError
from bert_jax.files.parquet import open_parquet, parquet_rows
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.documents import Document
from bert_jax.pipelines.sources.files import FilePart
from bert_jax.pipelines.sources.readers.records import PartReading, check_fields, named_fields

_ROWS_AT_A_TIME: Final = 256


def cut(path: str, name: str, section: SourcesSection, part_bytes: int) -> list[FilePart]:
    """Returns a part per row group.

    Raises UserError if the file is damaged, a named column is missing, or `text_field` is not a
    column of strings.
    """
    import pyarrow as pa  # imported only where needed: it takes 60 MB in every worker

    del part_bytes
    with open_parquet(path) as file:
        schema, field = file.schema_arrow, section.text_field
        check_fields(path, section, allowed=schema.names, kind="column")
        kind = schema.field(field).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            raise UserError(
                "parquet.column_type",
                f'column "{field}" (text_field) has the type {kind}, allowed: string',
                place=path,
            )
        metadata = file.metadata
        # A nested column has several leaf columns, so the leaf's index differs from the schema's.
        columns = [metadata.schema.column(i).path for i in range(metadata.num_columns)]
        leaf = columns.index(field)
        groups = range(metadata.num_row_groups)
        sizes = [metadata.row_group(g).column(leaf).total_compressed_size for g in groups]
    return [
        FilePart(path, name, group, group + 1, bytes=size)
        for group, size in zip(groups, sizes, strict=True)
    ]


def read(reading: PartReading) -> Iterator[Document]:
    """Yields the documents of a row group. Raises UserError if the file is damaged."""
    part = reading.part
    with open_parquet(part.path, pre_buffer=False, buffer_size=1 << 20) as file:
        before = sum(file.metadata.row_group(g).num_rows for g in range(part.start))
        rows = parquet_rows(
            part.path,
            file,
            first=before + 1,
            batch_size=_ROWS_AT_A_TIME,
            row_groups=[part.start],
            columns=list(named_fields(reading.section).values()),
        )
        yield from reading.numbered_documents(
            rows, first=before, place=lambda number: f"row {number + 1}"
        )
