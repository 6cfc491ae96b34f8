"""Finds the sources that the settings name, cuts them into parts, and reads their documents."""

import importlib.util
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final, NamedTuple

from etils import epath

from bert_jax.errors import SettingError, UserError, all_of, not_installed, one_of
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
from bert_jax.pipelines.sources.other_formats import START_BYTES, refuse_other_formats
from bert_jax.pipelines.sources.readers import (
    parquet,
    records,
    tfds_dataset,
    wikiextractor,
    wikipedia_xml,
)
from bert_jax.pipelines.tally import Tally
from bert_jax.section import refuse_ignored
from bert_jax.text.sentences import check_language


class Reader(NamedTuple):
    """Functions that read one format."""

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
# Formats by the first bytes of a file. Used if its suffix is not in `_BY_SUFFIX`.
_BY_START: Final = (
    (b'<doc id="', "wikiextractor"),
    (b"<mediawiki", "wikipedia_xml"),
    (b"PAR1", "parquet"),
)
_BY_START_OF_JSON: Final = ((b'{"id": ', "wikiextractor"), (b"{", "jsonl"))

# Libraries of the extra `data`, which only the preparation of text needs.
_LIBRARIES: Final = ("tensorflow-datasets", "mwparserfromhell", "sentencex", "rensa")
_FIELDS: Final = ("jsonl", "parquet", "tfds")
_READERS_OF: Final = {"text_field": _FIELDS, "id_field": _FIELDS, "tfds_split": ("tfds",)}
_PART_BYTES: Final = 64 << 20  # part size of `iter_text`


class Source(NamedTuple):
    """One file, or one split of a TFDS dataset."""

    path: str
    name: str  # name below the input root, part of document ids
    format: str
    bytes: int
    modified: float  # seconds since 1970
    language: str | None = None  # None if the settings name no languages


def need_data_libraries(verb: str) -> None:
    """Raises UserError if libraries for reading text are not installed."""
    missing = [n for n in _LIBRARIES if not importlib.util.find_spec(n.replace("-", "_"))]
    if missing:
        raise not_installed(", ".join(missing), verb, extra="data")


def find_sources(section: SourcesSection, *, root: str | None, tally: Tally) -> list[Source]:
    """Returns the sources of ``section.input``: files, then TFDS datasets.

    Both groups are sorted by language code, then by name. If ``on_error`` is ``skip``, ``tally``
    lists unreadable files.

    Raises UserError if a file or dataset is missing, a glob matches no file, a split, feature or
    language code is unknown, a language has no files, or a file has two languages.
    """
    files: dict[str, str | None] = {}  # language of each path
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
                    f"found no file for {language}, allowed: files and globs",
                    place="input",
                )
        of_tfds = [
            name
            for name in names
            if section.format == "tfds"
            or (section.format == "auto" and tfds_dataset.is_dataset(name))
        ]
        patterns = [name for name in names if name not in of_tfds]
        if patterns or not of_tfds:
            _add(files, find_files(patterns), language)
        _add(datasets, sorted({*map(tfds_dataset.find_dataset, of_tfds)}), language)
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
    _refuse_unread(section, {source.format for source in found})
    return found


def _refuse_unread(section: SourcesSection, formats: Collection[str]) -> None:
    """Raises UserError for a setting that none of the formats reads."""
    for name, readers in _READERS_OF.items():
        if formats and not {*readers} & {*formats}:
            try:
                refuse_ignored(section, name, allowed=f"format {one_of(readers)}")
            except SettingError as error:
                raise error.at(error.place) from None


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

    Raises UserError if the input is bad and ``on_error`` is ``fail``.
    """
    try:
        yield from READERS[part.format].read(records.PartReading(part, section, tally))
    except UserError as error:
        tally.skip(error, on_error=section.on_error)


def iter_text(section: SourcesSection, *, language: str | None = None) -> Iterator[str]:
    """Yields every line of all sources, with one document in memory at a time.

    If ``language`` is given, only sources in that language are read. Lines of plain text files
    include blank lines. Raises UserError if the input is bad and ``on_error`` is ``fail``.
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
                f"found {path} for {all_of([seen[path], language])}, allowed: one language",
                place="input",
            )
        seen[path] = language


def _format(path: str, section: SourcesSection) -> str:
    if section.format != "auto":
        return section.format
    suffix = bare_suffix(path)
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    is_sound = True
    try:
        with open_text(path) as file:
            start = file.read(START_BYTES)
    except UserError:  # damaged after its start: the reader raises or skips it
        is_sound = False
        with open_text(path) as file:
            start = file.read(16)
    signs = _BY_START if suffix == ".txt" else (*_BY_START, *_BY_START_OF_JSON)
    found = next((name for sign, name in signs if start.startswith(sign)), "text")
    if is_sound and found in ("text", "jsonl"):
        refuse_other_formats(path, suffix, start, expected=found)
    return found
