"""Sources of any format: which they are, their parts, and their documents."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from etils import epath

from bert_jax.errors import UserError
from bert_jax.pipelines.section import SourcesSection
from bert_jax.pipelines.sources.decompress import bare_suffix, open_text
from bert_jax.pipelines.sources.documents import Document, Problems
from bert_jax.pipelines.sources.files import (
    Cutting,
    FilePart,
    find_files,
    read_lines,
    relative_names,
)
from bert_jax.pipelines.sources.readers import (
    jsonl,
    parquet,
    plain,
    tfds_dataset,
    wikiextractor,
    wikipedia_xml,
)
from bert_jax.pipelines.sources.readers.records import PartReading
from bert_jax.text.sentences import check_language


class Reader(Protocol):
    """What the module of a format offers."""

    def cut(
        self, path: str, name: str, section: SourcesSection, cutting: Cutting
    ) -> list[FilePart]:
        """Cuts a file into parts that workers read."""
        ...

    def read(self, reading: PartReading) -> Iterator[Document]:
        """Yields the documents of a part; bad records go to its ``problems``."""
        ...


READERS: Final[dict[str, Reader]] = {
    "text": plain,
    "jsonl": jsonl,
    "parquet": parquet,
    "wikiextractor": wikiextractor,
    "wikipedia_xml": wikipedia_xml,
    "tfds": tfds_dataset,
}

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


_PART_BYTES: Final = 64 << 20  # of text that is read by one process


class Source(NamedTuple):
    """One file, or one split of a TFDS dataset."""

    path: str
    name: str  # its name below the input root; in ids
    format: str
    bytes: int
    modified: float  # seconds since 1970
    language: str | None = None  # `None`: the settings name no languages


def find_sources(section: SourcesSection, *, root: str | None, problems: Problems) -> list[Source]:
    """Returns what ``section.input`` names, in the order of the documents' ids.

    With several languages, in the order of their codes. Unreadable files go to ``problems``. Raises
    UserError: a missing file or dataset, a glob without files, an unknown split or feature or
    language code, a language without files, a file of two languages.
    """
    files: list[tuple[str, str | None]] = []
    datasets: list[tuple[str, str | None]] = []
    for language, names in section.by_language.items():
        _check_language(language, names)
        held = [name for name in names if _is_tfds(name, section)]
        patterns = [name for name in names if name not in held]
        paths = find_files(patterns) if patterns or not held else []
        files += [(path, language) for path in paths]
        found_datasets = sorted({tfds_dataset.find_dataset(name) for name in held})
        datasets += [(directory, language) for directory in found_datasets]
    _check_apart([*files, *datasets])
    found = []
    relative = relative_names([path for path, _ in files], root=root)
    for (path, language), name in zip(files, relative, strict=True):
        try:
            stat = epath.Path(path).stat()
            form = _format(path, section)
            found.append(Source(path, name, form, stat.length, stat.mtime, language))
        except OSError as error:
            problems.add(UserError(f"{path}: cannot be read ({error.strerror or error})"))
        except UserError as error:
            problems.add(error)
    for directory, language in datasets:
        name, size, modified = tfds_dataset.describe(directory, section)
        found.append(Source(directory, name, "tfds", size, modified, language))
    return found


def cut_sources(
    sources: Sequence[Source], section: SourcesSection, cutting: Cutting, problems: Problems
) -> list[FilePart]:
    """Cuts sources into parts that workers read."""
    parts: list[FilePart] = []
    for source in sources:
        try:
            cut = READERS[source.format].cut(source.path, source.name, section, cutting)
            parts += [part._replace(format=source.format) for part in cut]
        except UserError as error:
            problems.add(error)
    return parts


def read_documents(
    part: FilePart, section: SourcesSection, problems: Problems
) -> Iterator[Document]:
    """Yields the documents of a part, one in memory at a time.

    Raises UserError: bad input that ``problems`` does not take.
    """
    try:
        yield from READERS[part.format].read(PartReading(part, section, problems))
    except UserError as error:
        problems.add(error)


def iter_text(section: SourcesSection, *, language: str | None = None) -> Iterator[str]:
    """Yields every line of the text of all sources, with one document in memory at a time.

    Files of plain text are read line by line, blank lines included. Raises UserError: bad input,
    where the settings do not skip it.
    """
    problems = Problems(section.on_error)
    for source in find_sources(section, root=None, problems=problems):
        if language is not None and source.language != language:
            continue
        if source.format == "text":
            try:
                for line in read_lines(source.path, max_line_length=section.max_line_length):
                    yield line.text
            except UserError as error:
                problems.add(error)
            continue
        for part in cut_sources([source], section, Cutting(_PART_BYTES), problems):
            for document in read_documents(part, section, problems):
                yield from document.lines


def _check_language(language: str | None, names: Sequence[str]) -> None:
    if language == "false":
        raise UserError('input: YAML takes a bare no for false; for Norwegian write "no"')
    if language is not None:
        check_language(language, key="input")
        if not names:
            raise UserError(f"input: {language} has no file, allowed: files and globs")


def _check_apart(found: Sequence[tuple[str, str | None]]) -> None:
    seen: dict[str, str | None] = {}
    for path, language in found:
        if path in seen:
            raise UserError(
                f"input: {path} is given for {seen[path]} and for {language}, allowed: one language"
            )
        seen[path] = language


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
