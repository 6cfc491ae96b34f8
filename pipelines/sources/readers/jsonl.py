"""JSON lines: an object per line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bert_jax.files.read import parse_json_object
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.documents import Document
from bert_jax.pipelines.sources.files import Cutting, FilePart, cut_file, read_part
from bert_jax.pipelines.sources.problems import Problems
from bert_jax.pipelines.sources.readers.records import line_place, read_records, record_document


def cut(path: str, name: str, section: SourcesSection, cutting: Cutting) -> list[FilePart]:
    """Cuts a file between any two lines."""
    del section
    parts = cut_file(path, name, part_bytes=cutting.part_bytes, is_gap=lambda raw: True)
    return [part._replace(format="jsonl") for part in parts]


def read(part: FilePart, section: SourcesSection, problems: Problems) -> Iterator[Document]:
    """Yields the documents of a part."""

    def document(record: dict[str, Any], offset: int) -> Document | None:
        return record_document(
            record, place=offset, text_field=section.text_field, id_field=section.id_field
        )

    return read_objects(part, section, document, problems)


def read_objects(
    part: FilePart,
    section: SourcesSection,
    document: Callable[[dict[str, Any], int], Document | None],
    problems: Problems,
) -> Iterator[Document]:
    """Yields what ``document`` makes of each line's object and its byte offset.

    Raises:
        UserError: a line too long or not in UTF-8.
    """
    lines = read_part(
        part, max_line_length=section.max_document_length, setting="max_document_length"
    )
    return read_records(
        (line for line in lines if line.text.strip()),
        lambda line: document(
            parse_json_object(line.text, allowed="a JSON object per line"), line.offset
        ),
        place=lambda line: line_place(part, line, problems),
        part=part,
        section=section,
        problems=problems,
    )
