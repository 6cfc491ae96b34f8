"""Files of lines: plain text, and JSON lines with an object per line."""

from collections.abc import Callable, Iterator
from typing import Any

from bert_jax.files.read import parse_json_object
from bert_jax.pipelines.section import ExamplesSection, SourcesSection
from bert_jax.pipelines.sources.documents import Document, blank_line_documents, file_documents
from bert_jax.pipelines.sources.files import FilePart, TextLine, cut_file, read_part
from bert_jax.pipelines.sources.readers.records import PartReading


def cut_text(path: str, name: str, section: SourcesSection, part_bytes: int) -> list[FilePart]:
    """Cuts a file of plain text between its documents."""
    is_gap = None if _is_document(section) else lambda raw: not raw.strip()
    return cut_file(path, name, part_bytes=part_bytes, is_gap=is_gap)


def read_text(reading: PartReading) -> Iterator[Document]:
    """Yields the documents of a part of plain text.

    No problem is skipped: after bad bytes the start of the next document is unknown.
    """
    lines = read_part(reading.part, max_line_length=reading.section.max_line_length)
    return (file_documents if _is_document(reading.section) else blank_line_documents)(lines)


def _is_document(section: SourcesSection) -> bool:
    """Whether each file of plain text is one document."""
    return isinstance(section, ExamplesSection) and section.documents == "file"


def cut_json(path: str, name: str, section: SourcesSection, part_bytes: int) -> list[FilePart]:
    """Cuts a file of JSON lines between any two lines."""
    del section
    return cut_file(path, name, part_bytes=part_bytes, is_gap=lambda raw: True)


def read_json(reading: PartReading) -> Iterator[Document]:
    """Yields the documents of a part of JSON lines."""
    return read_objects(reading, reading.document)


def read_objects(
    reading: PartReading, document: Callable[[dict[str, Any], int], Document | None]
) -> Iterator[Document]:
    """Yields ``document(object, byte offset)`` of each line.

    Raises UserError: a line is too long or not in UTF-8.
    """
    limit = reading.section.max_document_length
    lines = read_part(reading.part, max_line_length=limit, setting="max_document_length")

    def parse(line: TextLine) -> Document | None:
        found = parse_json_object(line.text, allowed="a JSON object per line")
        return document(found, line.offset)

    held = (line for line in lines if line.text.strip())
    return reading.documents(held, parse, place=reading.line_place)
