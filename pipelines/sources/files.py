"""Input files: finding, decompressing and reading them, and cutting them into parts for workers."""

import bz2
import contextlib
import glob
import gzip
import io
import itertools
import lzma
import os
import pathlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Final, NamedTuple, cast

from etils import epath

from bert_jax.errors import UserError, did_you_mean
from bert_jax.files.read import require_file
from bert_jax.files.remote import is_remote
from bert_jax.pipelines.section import MAX_LINE_LENGTH

_GLOB_CHARACTERS: Final = frozenset("*?[")
_MAX_UTF8_BYTES: Final = 4
_PIECE_BYTES: Final = 1 << 20
# Longer than any line that a reader accepts. Such a line and the rest of the file become one part,
# and reading this part fails.
_MAX_UNENDED_BYTES: Final = 128 << 20


def _unpack_zstd(raw: BinaryIO) -> Any:
    import pyarrow as pa  # imported only where needed: it takes 50 MB in every worker

    # Before 3.14 Python has no Zstandard decompressor.
    stream: Any = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")
    return io.BufferedReader(stream, buffer_size=1 << 16)


# By suffix: name of the packing in messages, and its decompressor.
_PACKINGS: Final[dict[str, tuple[str, Callable[[BinaryIO], Any]]]] = {
    ".gz": ("gzip", lambda raw: gzip.GzipFile(fileobj=raw)),
    ".bz2": ("bzip2", bz2.BZ2File),
    ".xz": ("xz", lzma.LZMAFile),
    ".zst": ("Zstandard", _unpack_zstd),
}


class TextLine(NamedTuple):
    """One line without its line end, and its byte offset in the unpacked file."""

    offset: int
    text: str


class FilePart(NamedTuple):
    """Range of one file, read by one worker."""

    path: str
    name: str  # name of the file below the input root
    start: int
    stop: int
    """End of the range: byte offset, index of a row group (Parquet) or of a record (TFDS). A packed
    file is never cut, and its `stop` is the packed size."""
    format: str = "text"  # key of the reader in `sources.READERS`
    bytes: int | None = None  # size on disk if `start` and `stop` are not byte offsets

    @property
    def size(self) -> int:
        """Size on disk, in bytes."""
        return self.stop - self.start if self.bytes is None else self.bytes


def is_packed(path: str) -> bool:
    """Returns whether a file is packed, by its suffix: ``"a.txt.gz" -> True``."""
    return pathlib.PurePath(path).suffix.lower() in _PACKINGS


def bare_suffix(path: str) -> str:
    """Returns the suffix of the unpacked file in lower case: ``"dump.XML.bz2" -> ".xml"``."""
    pure = pathlib.PurePath(path)
    return (pure.with_suffix("") if is_packed(path) else pure).suffix.lower()


@contextlib.contextmanager
def open_text(path: str) -> Iterator[BinaryIO]:
    """Opens a file and unpacks it by its suffix (``.gz``, ``.bz2``, ``.xz``, ``.zst``).

    Raises UserError if the file cannot be read, is damaged or is truncated.
    """
    require_file(path)
    packing, unpack = _PACKINGS.get(pathlib.PurePath(path).suffix.lower(), (None, None))
    try:
        with epath.Path(path).open("rb") as raw:
            if unpack is None:
                # A file in a bucket has no limit of a line.
                yield io.BufferedReader(cast(Any, raw)) if is_remote(path) else cast(BinaryIO, raw)
            else:
                with unpack(cast(BinaryIO, raw)) as unpacked:
                    yield unpacked
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        # An error without `errno` is about the content of the file.
        number = getattr(error, "errno", None)
        if packing is not None and number is None:
            raise UserError(
                "text.damaged", f"damaged {packing} file ({error})", place=path
            ) from error
        if not isinstance(error, OSError):
            raise
        raise unreadable(path, error) from error


def unreadable(path: str, error: OSError) -> UserError:
    """Returns the error for a file that the system cannot read."""
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    return UserError("file.unreadable", f"cannot be read ({reason})", place=path)


def find_files(patterns: Sequence[str], *, key: str = "input") -> list[str]:
    """Returns the files that match patterns: ``["data/*.txt"] -> ["data/a.txt", "data/b.txt"]``.

    Patterns are file names and globs (``*``, ``?``, ``[…]``, ``**`` for directories at any depth),
    local or ``gs://``. The files are sorted by name and distinct.

    Raises UserError if a file is missing, a glob matches no file, a pattern is a directory, or
    there is no pattern. ``key`` is the setting that the error names.
    """
    if not patterns:
        raise UserError.wrong("input.empty", "no file", "files and globs, also packed", place=key)
    return sorted({path for pattern in patterns for path in _expand(pattern, key)})


def _expand(pattern: str, key: str) -> list[str]:
    if is_remote(pattern) and "**" in pattern:  # epath refuses to list a whole bucket
        raise UserError(
            "input.remote_glob",
            f"found {pattern}, but ** works only for local files. Use * for each directory.",
            place=key,
        )
    path = epath.Path(pattern).expanduser()
    if path.is_dir():
        raise UserError(
            "input.directory",
            f"found the directory {path}. Name its files, such as {path}/*.txt.",
            place=key,
        )
    if path.exists():  # before globbing: a file name may contain a bracket
        return [str(path)]
    if _GLOB_CHARACTERS.isdisjoint(pattern):
        if not path.parent.is_dir():
            raise UserError(
                "input.no_directory", f"found no directory {path.parent} for {pattern}", place=key
            )
        hint = did_you_mean(path.name, (each.name for each in path.parent.iterdir()))
        raise UserError("input.no_file", f"found no file {pattern}{hint}", place=key)
    matches = [name for name in _glob(str(path)) if epath.Path(name).is_file()]
    if not matches:
        raise UserError("input.no_match", f"found no file that matches {pattern}", place=key)
    return matches


def _glob(pattern: str) -> list[str]:
    if not is_remote(pattern):
        return glob.glob(pattern, recursive=True)
    parts = epath.Path(pattern).parts
    first = next(i for i, part in enumerate(parts) if not _GLOB_CHARACTERS.isdisjoint(part))
    return [str(path) for path in epath.Path(*parts[:first]).glob("/".join(parts[first:]))]


def read_lines(
    path: str,
    *,
    start: int = 0,
    stop: int | None = None,
    max_line_length: int = MAX_LINE_LENGTH,
    setting: str = "max_line_length",
) -> Iterator[TextLine]:
    """Yields the lines of a UTF-8 file that start in the byte range ``[start, stop)``.

    ``start`` must be the start of a line. If ``stop`` is None, the range ends with the file.

    Raises UserError if the bytes are not UTF-8, or if a line has ``max_line_length`` characters or
    more. Only the start of such a line is read. The message calls the limit ``setting``.
    """
    with open_text(path) as file:
        if start:
            file.seek(start)
        offset = start
        # Maximum bytes of `max_line_length` characters with their line end.
        limit = max_line_length * _MAX_UTF8_BYTES + 2
        while (stop is None or offset < stop) and (raw := file.readline(limit)):
            try:
                text = raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as error:
                if len(raw) == limit:  # the limit may fall within a character
                    raise _too_long(path, offset, max_line_length, setting) from error
                raise UserError(
                    "text.not_utf8",
                    f"found 0x{raw[error.start]:02x} at byte {offset + error.start}, not UTF-8",
                    place=path,
                ) from error
            if len(text) >= max_line_length:
                raise _too_long(path, offset, max_line_length, setting)
            yield TextLine(offset, text)
            offset += len(raw)


def read_part(
    part: FilePart, *, max_line_length: int = MAX_LINE_LENGTH, setting: str = "max_line_length"
) -> Iterator[TextLine]:
    """Yields the lines of a part; see :func:`read_lines`."""
    return read_lines(
        part.path,
        start=part.start,
        # The `stop` of a packed file is its packed size.
        stop=None if is_packed(part.path) else part.stop,
        max_line_length=max_line_length,
        setting=setting,
    )


def line_number(path: str, offset: int) -> int:
    """Returns the 1-based line number at a byte offset of the unpacked file."""
    with open_text(path) as file:
        number, left = 1, offset
        while left and (block := file.read(min(left, _PIECE_BYTES))):
            number += block.count(b"\n")
            left -= len(block)
    return number


def _too_long(path: str, offset: int, limit: int, setting: str) -> UserError:
    return UserError(
        "text.line_too_long",
        f"found {limit:,} characters or more ({setting}). Is it one paragraph?",
        place=f"{path}: line {line_number(path, offset)}",
    )


def relative_names(paths: Sequence[str], *, root: str | None) -> list[str]:
    """Returns the names of files below a root: ``["/d/a/x", "/d/b/x"] -> ["a/x", "b/x"]``.

    The default root is the deepest directory that contains all files. Raises UserError if a file is
    not below ``root``.
    """
    split = [epath.Path(path).parts for path in paths]
    if root is None:
        columns = zip(*(parts[:-1] for parts in split), strict=False)
        alike = itertools.takewhile(lambda column: len(set(column)) == 1, columns)
        shared = tuple(column[0] for column in alike)
    else:
        shared = epath.Path(root).expanduser().parts
    for path, parts in zip(paths, split, strict=True):
        if parts[: len(shared)] != shared:
            raise UserError(
                "input.outside_root",
                f"found {root}, but {path} is not below it",
                place="input_root",
            )
    return ["/".join(parts[len(shared) :]) for parts in split]


def cut_file(
    path: str, name: str, *, part_bytes: int, is_gap: Callable[[bytes], bool] | None
) -> list[FilePart]:
    """Cuts a file into parts of about ``part_bytes`` bytes.

    Every part except the first begins after a gap: a line for which ``is_gap`` returns True. If
    ``is_gap`` is None, or the file is packed, returns a single part.
    """
    size = epath.Path(path).stat().length
    if is_gap is None or is_packed(path) or size <= part_bytes:
        return [FilePart(path, name, 0, size)]
    cuts = [0]
    with open_text(path) as file:
        while cuts[-1] + part_bytes < size:
            file.seek(cuts[-1] + part_bytes)
            whole, unended = False, 0  # the first line may have begun before this position
            while (raw := file.readline(_PIECE_BYTES)) and unended < _MAX_UNENDED_BYTES:
                if whole and raw.endswith(b"\n") and is_gap(raw):
                    break
                whole = raw.endswith(b"\n")
                unended = 0 if whole else unended + len(raw)
            if file.tell() >= size or unended >= _MAX_UNENDED_BYTES:
                break
            cuts.append(file.tell())
    return [FilePart(path, name, start, stop) for start, stop in itertools.pairwise([*cuts, size])]
