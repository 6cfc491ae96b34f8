"""Sources of any format: which they are, their parts, and their documents."""

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from etils import epath

from bert_jax.errors import UserError, not_installed
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.documents import Document
from bert_jax.pipelines.sources.files import (
    FilePart,
    bare_suffix,
    find_files,
    open_text,
    read_lines,
    relative_names,
    unreadable,
)
from bert_jax.pipelines.sources.readers import (
    parquet,
    records,
    tfds_dataset,
    wikiextractor,
    wikipedia_xml,
)
from bert_jax.pipelines.tally import Tally
from bert_jax.text.sentences import check_language


class Reader(NamedTuple):
    """How a format is read."""

    cut: Callable[[str, str, SourcesSection, int], list[FilePart]]
    """Cuts a file (path, name, settings, bytes of a part) into parts for workers."""
    read: Callable[[records.PartReading], Iterator[Document]]
    """Yields the documents of a part."""


READERS: Final = {
    "text": Reader(records.cut_text, records.read_text),
    "jsonl": Reader(records.cut_json, records.read_json),
    "parquet": Reader(parquet.cut, parquet.read),
    "wikiextractor": Reader(wikiextractor.cut, wikiextractor.read),
    "wikipedia_xml": Reader(wikipedia_xml.cut, wikipedia_xml.read),
    "tfds": Reader(tfds_dataset.cut, tfds_dataset.read),
}

_BY_SUFFIX: Final = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
    ".xml": "wikipedia_xml",
}
# Formats by the first bytes of a file, for other suffixes.
_BY_START: Final = (
    (b'<doc id="', "wikiextractor"),
    (b"<mediawiki", "wikipedia_xml"),
    (b"PAR1", "parquet"),
)
_BY_START_OF_JSON: Final = ((b'{"id": ', "wikiextractor"), (b"{", "jsonl"))

# Libraries of the extra `data`; only the preparation of text needs them.
_LIBRARIES: Final = ("tensorflow-datasets", "mwparserfromhell", "sentencex", "rensa")
_PART_BYTES: Final = 64 << 20  # part size in a process that reads all parts


class Source(NamedTuple):
    """One file, or one split of a TFDS dataset."""

    path: str
    name: str  # its name below the input root; in ids
    format: str
    bytes: int
    modified: float  # seconds since 1970
    language: str | None = None  # `None`: the settings name no languages


def need_data_libraries(verb: str) -> None:
    """Raises UserError, before any text is read, that names the libraries not installed."""
    missing = [n for n in _LIBRARIES if not importlib.util.find_spec(n.replace("-", "_"))]
    if missing:
        raise not_installed(", ".join(missing), verb, extra="data")


def find_sources(section: SourcesSection, *, root: str | None, tally: Tally) -> list[Source]:
    """Returns the sources of ``section.input``, in the order of the documents' ids.

    Several languages come in the order of their codes. The tally lists unreadable files. Raises
    UserError: a missing file or dataset, a glob without files, an unknown split or feature or
    language code, a language without files, a file of two languages.
    """
    files: dict[str, str | None] = {}  # languages by path
    datasets: dict[str, str | None] = {}
    for language, names in section.by_language.items():
        if language == "false":
            raise UserError(
                "input.norwegian",
                'found false, because YAML reads a bare no as false. Write "no" for Norwegian.',
                place="input",
            )
        if language is not None:
            check_language(language, key="input")
            if not names:
                raise UserError(
                    "input.language_empty",
                    "found no file for {language}, allowed: files and globs",
                    place="input",
                    language=language,
                )
        held = [
            name
            for name in names
            if section.format == "tfds"
            or (section.format == "auto" and tfds_dataset.is_dataset(name))
        ]
        patterns = [name for name in names if name not in held]
        if patterns or not held:
            _add(files, find_files(patterns), language)
        _add(datasets, sorted({*map(tfds_dataset.find_dataset, held)}), language)
    found = []
    relative = relative_names(list(files), root=root)
    for (path, language), name in zip(files.items(), relative, strict=True):
        try:
            stat = epath.Path(path).stat()
            form = _format(path, section)
            found.append(Source(path, name, form, stat.length, stat.mtime, language))
        except OSError as error:
            tally.skip(unreadable(path, error), on_error=section.on_error)
        except UserError as error:
            tally.skip(error, on_error=section.on_error)
    for path, language in datasets.items():
        name, size, modified = tfds_dataset.describe(path, section)
        found.append(Source(path, name, "tfds", size, modified, language))
    return found


def cut_sources(
    sources: Sequence[Source], section: SourcesSection, part_bytes: int, tally: Tally
) -> list[FilePart]:
    """Cuts sources into parts for workers."""
    parts: list[FilePart] = []
    for source in sources:
        try:
            cut = READERS[source.format].cut(source.path, source.name, section, part_bytes)
            parts += [part._replace(format=source.format) for part in cut]
        except UserError as error:
            tally.skip(error, on_error=section.on_error)
    return parts


def read_documents(part: FilePart, section: SourcesSection, tally: Tally) -> Iterator[Document]:
    """Yields the documents of a part, one in memory at a time.

    Raises UserError: bad input with ``on_error: fail``.
    """
    try:
        yield from READERS[part.format].read(records.PartReading(part, section, tally))
    except UserError as error:
        tally.skip(error, on_error=section.on_error)


def iter_text(section: SourcesSection, *, language: str | None = None) -> Iterator[str]:
    """Yields every line of the text of all sources, with one document in memory at a time.

    Files of plain text are read line by line, blank lines included. Raises UserError: bad input
    with ``on_error: fail``.
    """
    tally = Tally()
    for source in find_sources(section, root=None, tally=tally):
        if language is not None and source.language != language:
            continue
        if source.format == "text":
            try:
                for line in read_lines(source.path, max_line_length=section.max_line_length):
                    yield line.text
            except UserError as error:
                tally.skip(error, on_error=section.on_error)
            continue
        for part in cut_sources([source], section, _PART_BYTES, tally):
            for document in read_documents(part, section, tally):
                yield from document.lines


def _add(seen: dict[str, str | None], paths: Sequence[str], language: str | None) -> None:
    for path in paths:
        if path in seen:
            raise UserError(
                "input.two_languages",
                "found {found} for {languages:and}, allowed: one language",
                place="input",
                found=path,
                languages=[seen[path], language],
            )
        seen[path] = language


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
