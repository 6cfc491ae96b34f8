"""JSON lines: an object per line."""

from collections.abc import Callable, Iterator
from typing import Any

from bert_jax.files.read import parse_json_object
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.documents import Document
from bert_jax.pipelines.sources.files import Cutting, FilePart, cut_file, read_part
from bert_jax.pipelines.sources.readers.records import PartReading


def cut(path: str, name: str, section: SourcesSection, cutting: Cutting) -> list[FilePart]:
    """Cuts a file between any two lines."""
    del section
    return cut_file(path, name, part_bytes=cutting.part_bytes, is_gap=lambda raw: True)


def read(reading: PartReading) -> Iterator[Document]:
    """Yields the documents of a part."""
    return read_objects(reading, reading.document)


def read_objects(
    reading: PartReading, document: Callable[[dict[str, Any], int], Document | None]
) -> Iterator[Document]:
    """Yields what ``document`` makes of each line's object and its byte offset.

    Raises UserError: a line too long or not in UTF-8.
    """
    limit = reading.section.max_document_length
    lines = read_part(reading.part, max_line_length=limit, setting="max_document_length")
    return reading.documents(
        (line for line in lines if line.text.strip()),
        lambda line: document(
            parse_json_object(line.text, allowed="a JSON object per line"), line.offset
        ),
        place=reading.line_place,
    )
