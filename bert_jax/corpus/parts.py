"""Finds the input files of a corpus, cuts them into parts, and names their outputs."""

import collections
import glob
import itertools
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple, NoReturn

import fsspec.core
from etils import epath

from bert_jax.data.dataset.provenance import PROVENANCE_NAME, read_provenance
from bert_jax.errors import UserError, commas
from bert_jax.files.hub import dataset_files, is_dataset_file
from bert_jax.files.parquet import open_parquet
from bert_jax.files.remote import FileState, absolute, each, file_state, is_remote
from bert_jax.pipelines.sources.files import (
    FilePart,
    bare_suffix,
    cut_file,
    find_files,
    is_packed,
    unreadable,
)

FORMATS: Final = {
    ".parquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".txt": "text",
    ".csv": "table",
    ".tsv": "table",
}
DATASET: Final = "dataset"
_KEY: Final = "score.input"
_HUB_PARTS: Final = 5  # of hf://datasets/OWNER/NAME
_PACKED_FORMATS: Final = ("jsonl", "text")


class InputPart(NamedTuple):
    """A range of an input file, and the name of its output."""

    file: FilePart
    size: int  # bytes of the whole file
    modified: int | None  # time of its last change, as in `FileState`
    stem: str  # name of the output below the output directory, without its suffix

    @property
    def input(self) -> dict[str, Any]:
        """The range as plain values."""
        file = self.file
        return {
            "path": file.path,
            "bytes": self.size,
            "modified": self.modified,
            "start": file.start,
            "stop": file.stop,
        }


def find_parts(patterns: Sequence[str], *, part_bytes: int) -> list[InputPart]:
    """Returns the parts of all files that match patterns, in order of their outputs' names.

    A pattern is a file, a glob or a directory, which stands for all its files of a known format at
    any depth, or a dataset of `bert-jax examples`. Names are relative to the deepest directory that
    contains all patterns.

    Raises UserError if a pattern matches no file, a format is unknown, or two files would have the
    same output.
    """
    if not patterns or not all(patterns):
        raise UserError.wrong("input.empty", "no file", "files, folders and globs", place=_KEY)
    local = [pattern for pattern in patterns if not is_dataset_file(pattern)]
    datasets = {
        absolute(path): path for path in map(str, map(_expanded, local)) if _is_dataset(path)
    }
    others = [pattern for pattern in patterns if absolute(pattern) not in datasets]
    # Two spellings of a path are one file.
    found = {absolute(path): (path, n) for each in others for path, n in _files_of(each).items()}
    files = dict(found.values())
    root = _root(patterns, files)
    parts = [part for path in datasets.values() for part in _cut_dataset(path, _below(path, root))]
    for path, file in files.items():
        parts += _cut(path, file, name=_below(path, root), part_bytes=part_bytes)
    twice = [stem for stem, n in collections.Counter(part.stem for part in parts).items() if n > 1]
    if twice:
        same = [part.file.path for part in parts if part.stem == twice[0]]
        raise UserError(
            "score.same_output",
            f"{commas(same)} have the same output. Score one of them with another score.output.",
            place=_KEY,
        )
    return sorted(parts, key=lambda part: part.stem)


def _expanded(pattern: str) -> epath.Path:
    return epath.Path(pattern).expanduser()


def _files_of(pattern: str) -> dict[str, FileState]:
    """Returns the files that match a pattern, by path.

    In a directory, these are the files with a known suffix. `_cut` refuses those that are packed
    but may not be.
    """
    if is_dataset_file(pattern):
        sizes = dataset_files(pattern)
        found = {path: FileState(n) for path, n in sizes.items() if bare_suffix(path) in FORMATS}
    elif _expanded(pattern).is_dir():
        directory = str(_expanded(pattern))
        found = _found([path for path in files_below(directory) if bare_suffix(path) in FORMATS])
    else:
        return _found(find_files([pattern], key=_KEY))
    if not found:
        raise UserError(
            "score.no_file",
            f"found no file in {pattern} that ends in {commas(FORMATS)}",
            place=_KEY,
        )
    return found


def _found(paths: Sequence[str]) -> dict[str, FileState]:
    def found(path: epath.Path) -> FileState:
        try:
            return file_state(path)
        except OSError as error:
            raise unreadable(str(path), error) from error

    return dict(zip(paths, each(found, list(map(epath.Path, paths))), strict=True))


def require_apart(patterns: Sequence[str], parts: Sequence[InputPart], output: str) -> None:
    """Raises UserError if results would overwrite the input, or become input of the next run."""
    own = f"{absolute(output).rstrip('/')}/"
    inside = [part.file.path for part in parts if absolute(part.file.path).startswith(own)]
    around = [each for each in patterns if own.startswith(f"{absolute(each).rstrip('/')}/")]
    if inside or around:
        raise UserError(
            "score.output_in_input",
            f"found {output}, which may not contain, or be in, the input {[*inside, *around][0]}",
            place="score.output",
        )


def files_below(directory: str) -> Iterator[str]:
    """Yields the files below a directory, without hidden ones."""
    if is_remote(directory):
        system, root = fsspec.core.url_to_fs(directory)
        scheme = directory.partition("://")[0]
        paths = [f"{scheme}://{name}" for name in system.find(root)]
    else:
        paths = [
            str(path)
            for path in _local_files(Path(directory))
            if path.is_file() or not path.exists()  # a broken link is an error
        ]
    for path in paths:
        below = path.removeprefix(directory).strip("/").split("/")
        if not any(part.startswith((".", "_")) for part in below):
            yield path


def _local_files(directory: Path) -> Iterator[Path]:
    """Yields all files below a directory. Follows links, but enters no directory twice."""

    def refuse(error: OSError) -> NoReturn:
        raise unreadable(error.filename, error) from None

    seen: set[str] = set()
    for root, folders, names in os.walk(directory, onerror=refuse, followlinks=True):
        real = os.path.realpath(root)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        yield from (Path(root, name) for name in names)


def format_of(path: str) -> str | None:
    """Returns the format of a file by its suffix, or None if it is unknown."""
    found = FORMATS.get(bare_suffix(path))
    return None if is_packed(path) and found not in _PACKED_FORMATS else found


def _is_dataset(path: epath.PathLike) -> bool:
    return all(
        (epath.Path(path) / name).exists() for name in (PROVENANCE_NAME, "dataset_info.json")
    )


def _cut_dataset(path: str, name: str) -> list[InputPart]:
    """Returns a part per shard of a dataset of `bert-jax examples`."""
    parts = []
    for split, record in read_provenance(epath.Path(path)).splits.items():
        start = 0
        for at, shard in enumerate(record.shards):
            stop = start + shard.examples
            label = "/".join(filter(None, (name, split)))
            file = FilePart(path, label, start, stop, format=DATASET, bytes=shard.bytes)
            parts.append(InputPart(file, shard.bytes, None, f"{label}-{at:05}"))
            start = stop
    return parts


def _cut(path: str, found: FileState, *, name: str, part_bytes: int) -> list[InputPart]:
    kind, size = format_of(path), found.bytes
    if kind is None:
        packed = "; .jsonl and .txt also packed" if is_packed(path) else ""
        raise UserError(
            "score.format",
            f"found {path}, allowed: files that end in {commas(FORMATS)}{packed}",
            place=_KEY,
        )
    files = [FilePart(path, name, 0, size)]
    if is_dataset_file(path):  # cutting would read it
        pass
    elif size > part_bytes and kind == "parquet":
        files = _cut_parquet(path, name, part_bytes)
    elif size > part_bytes and kind != "table":  # a quoted field of a table may contain line ends
        files = cut_file(path, name, part_bytes=part_bytes, is_gap=lambda line: True)
    stem = name.removesuffix(PurePosixPath(name).suffix) if is_packed(name) else name
    stem = stem.removesuffix(PurePosixPath(stem).suffix)
    several = [f"-{at:05}-of-{len(files):05}" for at in range(len(files))]
    ends = several if len(files) > 1 else [""]
    return [
        InputPart(file._replace(format=kind), size, found.modified, f"{stem}{end}")
        for file, end in zip(files, ends, strict=True)
    ]


def _cut_parquet(path: str, name: str, part_bytes: int) -> list[FilePart]:
    """Returns parts of whole row groups. A damaged file is one part: its reader raises."""
    try:
        with open_parquet(path) as file:
            sizes = [
                file.metadata.row_group(group).total_byte_size
                for group in range(file.metadata.num_row_groups)
            ]
    except UserError:
        return [FilePart(path, name, 0, 0)]
    parts, start, held = [], 0, 0
    for group, size in enumerate(sizes, start=1):
        held += size
        if held >= part_bytes or group == len(sizes):
            parts.append(FilePart(path, name, start, group, bytes=held))
            start, held = group, 0
    return parts or [FilePart(path, name, 0, 0)]


def _root(patterns: Sequence[str], found: Collection[str]) -> str:
    """Returns the deepest directory that contains all patterns, with a final slash or empty.

    `found` are the paths of the files, which have the commit of a dataset on a hub.
    """
    directories, files = [], set(map(absolute, found))
    for pattern in patterns:
        parts = absolute(pattern).rstrip("/").split("/")
        if is_dataset_file(pattern):
            parts = pattern.rstrip("/").split("/")
            name = next(path for path in found if is_dataset_file(path)).split("/")[:_HUB_PARTS]
            parts[:_HUB_PARTS] = name
        fixed = itertools.takewhile(lambda part: not glob.has_magic(part), parts)
        directory = [*fixed]
        if "/".join(directory) in files:
            directory = directory[:-1]
        directories.append(directory)
    alike = itertools.takewhile(lambda names: len({*names}) == 1, zip(*directories, strict=False))
    return "/".join([*(names[0] for names in alike), ""])


def _below(path: str, root: str) -> str:
    return f"{absolute(path)}/".removeprefix(root).strip("/")
