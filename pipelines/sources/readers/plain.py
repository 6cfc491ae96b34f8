"""Plain text: a sentence or paragraph per line."""

from __future__ import annotations

from collections.abc import Iterator

from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.documents import FORMATS, Document
from bert_jax.pipelines.sources.files import Part, cut_file, read_part
from bert_jax.pipelines.sources.problems import Problems


def cut(path: str, name: str, *, part_bytes: int, documents: str) -> list[Part]:
    """Cuts a file between its documents."""
    return cut_file(path, name, part_bytes=part_bytes, is_gap=FORMATS[documents].is_gap)


def read(
    part: Part, section: SourcesSection, *, documents: str, problems: Problems
) -> Iterator[Document]:
    """Yields the documents of a part.

    ``problems`` gets nothing: bad bytes leave unclear where the next document begins.
    """
    del problems
    return FORMATS[documents].read(read_part(part, max_line_length=section.max_line_length))
