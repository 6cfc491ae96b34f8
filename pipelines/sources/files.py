"""Input files: which they are, their lines, and how they are cut into parts for workers."""

import glob
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from etils import epath

from bert_jax.errors import UserError, did_you_mean
from bert_jax.files.remote import is_remote
from bert_jax.pipelines.sources.decompress import is_packed, open_text

MAX_LINE_LENGTH: Final = 1_000_000
"""A line of this many characters is refused: it is not prose, and splitting or encoding it would
take disproportionate memory and time."""

_GLOB_CHARACTERS = frozenset("*?[")
_MAX_UTF8_BYTES = 4
_PIECE_BYTES = 1 << 20
# More than any line that a reader takes: the rest stays one part, in which the reader will say so.
_MAX_UNENDED_BYTES = 128 << 20


class TextLine(NamedTuple):
    """One line without its line end, and the byte offset of its start (in the unpacked file)."""

    offset: int
    text: str


class Cutting(NamedTuple):
    """How files are cut."""

    part_bytes: int  # size to aim at, where a format can be cut
    documents: str = "blank_line"
    """What separates documents in plain text: a key of ``documents.FORMATS``."""


class FilePart(NamedTuple):
    """A range of one file, read by one worker."""

    path: str
    name: str  # the file's name below the input root
    start: int
    stop: int
    """Byte offset of its end; of a packed file, which is never cut, the packed size. Formats that
    are not cut by bytes count row groups or records here."""
    format: str = "text"  # key of its reader in `bert_jax.pipelines.sources.sources.READERS`
    variant: str = ""  # what the reader has found out of the file when it cut it
    bytes: int | None = None  # bytes on disk, where `start` and `stop` do not count bytes

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self.stop - self.start if self.bytes is None else self.bytes


def find_files(patterns: Sequence[str]) -> list[str]:
    """Returns the files that patterns name: ``["data/*.txt"] -> ["data/a.txt", "data/b.txt"]``.

    Patterns are file names and globs (``*``, ``?``, ``[…]``, ``**`` for directories at any depth),
    local or ``gs://``. The files are sorted by name, each once, however many patterns name it.
    Raises UserError: a missing file, a glob that matches no file, a directory, no pattern at all.
    """
    if not patterns:
        raise UserError("input: no file given; allowed: files and globs, also packed")
    found: set[str] = set()
    for pattern in patterns:
        found.update(_expand(pattern))
    return sorted(found)


def _expand(pattern: str) -> list[str]:
    if is_remote(pattern) and "**" in pattern:  # epath refuses it: it would list a whole bucket
        raise UserError(f"input: {pattern}: ** is for local files; use * for each directory")
    path = epath.Path(pattern).expanduser()
    if path.is_dir():
        raise UserError(f"input: {pattern} is a directory; name its files: {path}/*.txt")
    if path.exists():  # also a file that has a bracket in its name
        return [str(path)]
    if _GLOB_CHARACTERS.isdisjoint(pattern):
        raise UserError(f"input: no file {pattern}{_nearest_name(path)}")
    matches = [name for name in _glob(str(path)) if epath.Path(name).is_file()]
    if not matches:
        raise UserError(f"input: {pattern} matches no file")
    return matches


def _glob(pattern: str) -> list[str]:
    if not is_remote(pattern):
        return glob.glob(pattern, recursive=True)
    parts = epath.Path(pattern).parts
    first = next(i for i, part in enumerate(parts) if not _GLOB_CHARACTERS.isdisjoint(part))
    return [str(path) for path in epath.Path(*parts[:first]).glob("/".join(parts[first:]))]


def _nearest_name(path: epath.Path) -> str:
    if not path.parent.is_dir():
        return f" (there is no directory {path.parent})"
    return did_you_mean(path.name, (p.name for p in path.parent.iterdir()))


def read_lines(
    path: str,
    *,
    start: int = 0,
    stop: int | None = None,
    max_line_length: int = MAX_LINE_LENGTH,
    setting: str = "max_line_length",
) -> Iterator[TextLine]:
    """Yields the lines of a file that start in the byte range ``[start, stop)``.

    The file is UTF-8 text, packed if its name says so; ``start`` is where a line starts, ``stop``
    ``None`` the end. Longer lines than ``max_line_length``, which messages name as ``setting``, are
    refused before they are read completely. Raises UserError: bytes that are not UTF-8 (file and
    byte offset), or a line too long (file and number).
    """
    with open_text(path) as file:
        if start:
            file.seek(start)
        offset = start
        # One byte more than the longest lawful line, its line end included, can have.
        limit = max_line_length * _MAX_UTF8_BYTES + 2
        while (stop is None or offset < stop) and (raw := file.readline(limit)):
            try:
                text = raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                if len(raw) == limit:  # cut in the middle of a character
                    raise _too_long(path, offset, max_line_length, setting) from error
                raise UserError(
                    f"{path}: byte {offset + error.start} is not UTF-8 "
                    f"(0x{raw[error.start]:02x}: {error.reason}); convert the file to UTF-8"
                ) from error
            if len(text) >= max_line_length:
                raise _too_long(path, offset, max_line_length, setting)
            yield TextLine(offset, text)
            offset += len(raw)


def read_part(
    part: FilePart, *, max_line_length: int = MAX_LINE_LENGTH, setting: str = "max_line_length"
) -> Iterator[TextLine]:
    """Yields the lines of a part: see :func:`read_lines`."""
    return read_lines(
        part.path,
        start=part.start,
        stop=None if is_packed(part.path) else part.stop,  # ``stop`` is in unpacked bytes
        max_line_length=max_line_length,
        setting=setting,
    )


def line_number(path: str, offset: int) -> int:
    """Returns the number, from 1, of the line that starts at a byte offset (in the unpacked file).

    Counted on demand: a part in the middle of a file does not know its line numbers.
    """
    with open_text(path) as file:
        number = 1
        left = offset
        while left and (block := file.read(min(left, _PIECE_BYTES))):
            number += block.count(b"\n")
            left -= len(block)
    return number


def _too_long(path: str, offset: int, limit: int, setting: str) -> UserError:
    return UserError(
        f"{path}: line {line_number(path, offset)} has {limit:,} characters or more "
        f"({setting}); is it text with a sentence or paragraph per line?"
    )


def relative_names(paths: Sequence[str], *, root: str | None) -> list[str]:
    """Returns the names of files below a root: ``["/d/a/x", "/d/b/x"] -> ["a/x", "b/x"]``.

    Without a root, below the deepest directory that holds all of them. Raises UserError: a file
    does not lie below ``root``.
    """
    split = [epath.Path(path).parts for path in paths]
    if root is None:
        shared = _common_start([parts[:-1] for parts in split])
    else:
        shared = epath.Path(root).expanduser().parts
    for path, parts in zip(paths, split, strict=True):
        if parts[: len(shared)] != tuple(shared):
            raise UserError(f"input_root: {path} does not lie below {root}")
    return ["/".join(parts[len(shared) :]) for parts in split]


def _common_start(lists: Sequence[Sequence[str]]) -> tuple[str, ...]:
    columns = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*lists, strict=False))
    return tuple(column[0] for column in columns)


def cut_file(
    path: str, name: str, *, part_bytes: int, is_gap: Callable[[bytes], bool] | None
) -> list[FilePart]:
    """Cuts a file into parts of about ``part_bytes``, each beginning after a gap between documents.

    Without ``is_gap``, which is True for a line after which a cut may be made, the file stays
    whole, and so does a packed one.
    """
    size = epath.Path(path).stat().length
    if is_gap is None or is_packed(path) or size <= part_bytes:
        return [FilePart(path, name, 0, size)]
    cuts = [0]
    with open_text(path) as file:
        while cuts[-1] + part_bytes < size:
            file.seek(cuts[-1] + part_bytes)
            whole = False  # the first line read may have begun before
            unended = 0
            while (raw := file.readline(_PIECE_BYTES)) and unended < _MAX_UNENDED_BYTES:
                if whole and raw.endswith(b"\n") and is_gap(raw):
                    break
                whole = raw.endswith(b"\n")
                unended = 0 if whole else unended + len(raw)
            if file.tell() >= size or unended >= _MAX_UNENDED_BYTES:
                break
            cuts.append(file.tell())
    stops = [*cuts[1:], size]
    return [FilePart(path, name, start, stop) for start, stop in zip(cuts, stops, strict=True)]
