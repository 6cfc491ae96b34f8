"""Plain text: a sentence or paragraph per line."""

from __future__ import annotations

from collections.abc import Iterator

from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.documents import FORMATS, Document
from bert_jax.pipelines.sources.files import Cutting, FilePart, cut_file, read_part
from bert_jax.pipelines.sources.problems import Problems


def cut(path: str, name: str, section: SourcesSection, cutting: Cutting) -> list[FilePart]:
    """Cuts a file between its documents."""
    del section
    is_gap = FORMATS[cutting.documents].is_gap
    parts = cut_file(path, name, part_bytes=cutting.part_bytes, is_gap=is_gap)
    return [part._replace(variant=cutting.documents) for part in parts]


def read(part: FilePart, section: SourcesSection, problems: Problems) -> Iterator[Document]:
    """Yields the documents of a part.

    ``problems`` gets nothing: bad bytes leave unclear where the next document begins.
    """
    del problems
    lines = read_part(part, max_line_length=section.max_line_length)
    return FORMATS[part.variant].read(lines)
