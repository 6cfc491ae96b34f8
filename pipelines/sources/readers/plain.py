"""Plain text: a sentence or paragraph per line."""

from collections.abc import Iterator

from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.documents import FORMATS, Document
from bert_jax.pipelines.sources.files import Cutting, FilePart, cut_file, read_part
from bert_jax.pipelines.sources.readers.records import PartReading


def cut(path: str, name: str, section: SourcesSection, cutting: Cutting) -> list[FilePart]:
    """Cuts a file between its documents."""
    del section
    is_gap = FORMATS[cutting.documents].is_gap
    parts = cut_file(path, name, part_bytes=cutting.part_bytes, is_gap=is_gap)
    return [part._replace(variant=cutting.documents) for part in parts]


def read(reading: PartReading) -> Iterator[Document]:
    """Yields the documents of a part.

    No problem is skipped: bad bytes leave unclear where the next document begins.
    """
    lines = read_part(reading.part, max_line_length=reading.section.max_line_length)
    return FORMATS[reading.part.variant].read(lines)
