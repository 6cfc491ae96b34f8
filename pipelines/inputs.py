"""Sources of any format: which they are, their parts, and their documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from etils import epath

from bert_jax.errors import UserError
from pipelines.documents import Document
from pipelines.problems import Problems
from pipelines.readers import jsonl, parquet, plain, tfds_dataset, wikiextractor, wikipedia_xml
from pipelines.settings import SourcesSection
from pipelines.sources import Part, find_files, read_lines, relative_names
from pipelines.unpack import bare_suffix, open_text

_BY_SUFFIX: Final = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".xml": "wikipedia_xml",
}
# What a file begins with, of those whose suffix does not say it.
_BY_START: Final = (
    (b'<doc id="', "wikiextractor"),
    (b"<mediawiki", "wikipedia_xml"),
    (b"PAR1", "parquet"),
)
_BY_START_OF_JSON: Final = ((b'{"id": ', "wikiextractor"), (b"{", "jsonl"))


class Source(NamedTuple):
    """One file, or one split of a TFDS dataset."""

    path: str
    name: str
    """Its name below the input root; in ids."""
    format: str
    bytes: int
    modified: float
    """Seconds since 1970."""


def find_sources(section: SourcesSection, *, root: str | None, problems: Problems) -> list[Source]:
    """Returns what ``section.input`` names, in the order of the documents' ids.

    Args:
        section: the settings.
        root: see :func:`pipelines.sources.relative_names`.
        problems: gets the files that cannot be read.

    Raises:
        UserError: a file or dataset that is not there, a glob without files, a wrong name of a
            split or feature.
    """
    datasets = [name for name in section.input if _is_tfds(name, section)]
    patterns = [name for name in section.input if name not in datasets]
    paths = find_files(patterns) if patterns or not datasets else []
    found = []
    for path, name in zip(paths, relative_names(paths, root=root), strict=True):
        try:
            stat = epath.Path(path).stat()
            found.append(Source(path, name, _format(path, section), stat.length, stat.mtime))
        except OSError as error:
            problems.add(UserError(f"{path}: cannot be read ({error.strerror or error})"))
        except UserError as error:
            problems.add(error)
    for directory in sorted({tfds_dataset.find_dataset(name) for name in datasets}):
        name, size = tfds_dataset.describe(directory, section)
        modified = tfds_dataset.modified(directory)
        found.append(Source(directory, name, "tfds", size, modified))
    return found


def cut_sources(
    sources: Sequence[Source],
    section: SourcesSection,
    *,
    documents: str,
    part_bytes: int,
    problems: Problems,
) -> list[Part]:
    """Cuts sources into parts that workers read.

    Args:
        sources: from :func:`find_sources`.
        section: the settings.
        documents: what separates documents in plain text.
        part_bytes: size to aim at, where a format can be cut.
        problems: gets the files that cannot be read.
    """
    parts: list[Part] = []
    for source in sources:
        path, name = source.path, source.name
        try:
            match source.format:
                case "text":
                    parts += plain.cut(path, name, part_bytes=part_bytes, documents=documents)
                case "jsonl":
                    parts += jsonl.cut(path, name, part_bytes=part_bytes)
                case "parquet":
                    parts += parquet.cut(path, name, section)
                case "wikiextractor":
                    parts += wikiextractor.cut(path, name, part_bytes=part_bytes)
                case "wikipedia_xml":
                    parts += wikipedia_xml.cut(path, name)
                case "tfds":
                    parts += tfds_dataset.cut(path, name, section, part_bytes=part_bytes)
        except UserError as error:
            problems.add(error)
    return parts


def read_documents(
    part: Part, section: SourcesSection, *, documents: str, problems: Problems
) -> Iterator[Document]:
    """Yields the documents of a part, one in memory at a time.

    Args:
        part: from :func:`cut_sources`.
        section: the settings.
        documents: what separates documents in plain text.
        problems: gets records that are no documents and, when it takes it, what ends the part
            before its end; the documents before that stay.

    Raises:
        UserError: bad input that ``problems`` does not take.
    """
    try:
        match part.format:
            case "text":
                yield from plain.read(part, section, documents=documents, problems=problems)
            case "jsonl":
                yield from jsonl.read(part, section, problems=problems)
            case "parquet":
                yield from parquet.read(part, section, problems=problems)
            case "wikiextractor":
                yield from wikiextractor.read(part, section, problems=problems)
            case "wikiextractor_json":
                yield from wikiextractor.read_json(part, section, problems=problems)
            case "wikipedia_xml":
                yield from wikipedia_xml.read(part, section, problems=problems)
            case "tfds":
                yield from tfds_dataset.read(part, section, problems=problems)
    except UserError as error:
        problems.add(error)


def iter_text(section: SourcesSection, *, part_bytes: int = 64 << 20) -> Iterator[str]:
    """Yields every line of the text of all sources, with one document in memory at a time.

    Files of plain text are read line by line, blank lines included.

    Args:
        section: the settings.
        part_bytes: has no influence on the lines.

    Raises:
        UserError: bad input, where the settings do not skip it.
    """
    problems = Problems(section.on_error)
    for source in find_sources(section, root=None, problems=problems):
        if source.format == "text":
            try:
                for line in read_lines(source.path, max_line_length=section.max_line_length):
                    yield line.text
            except UserError as error:
                problems.add(error)
            continue
        parts = cut_sources(
            [source], section, documents="blank_line", part_bytes=part_bytes, problems=problems
        )
        for part in parts:
            for document in read_documents(
                part, section, documents="blank_line", problems=problems
            ):
                yield from document.lines


def _is_tfds(name: str, section: SourcesSection) -> bool:
    return section.format == "tfds" or (section.format == "auto" and tfds_dataset.is_dataset(name))


def _format(path: str, section: SourcesSection) -> str:
    if section.format != "auto":
        return section.format
    suffix = bare_suffix(path)
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    with open_text(path) as file:
        start = file.read(16)
    signs = _BY_START if suffix == ".txt" else (*_BY_START, *_BY_START_OF_JSON)
    return next((name for sign, name in signs if start.startswith(sign)), "text")
