"""The manifest of a checkpoint: every file that belongs to it, with its size and checksum.

It is written last, so a checkpoint with a manifest was whole once, and what differs from its
manifest is damaged. CRC32C, which buckets know, would not do: a file of TensorStore's ends with
its own CRC32C, so that the CRC32C of the whole is the same whatever is in it.
"""

import concurrent.futures
import dataclasses
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pydantic
from etils import epath

from bert_jax.errors import UserError, differing
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object, sha256_of
from bert_jax.files.seal import is_intact, sealed

# The parts of a checkpoint; the optimizer's has step and random key.
PARAMS: Final = "params"
OPTIMIZER: Final = "optimizer"
PROGRESS: Final = "progress"

MANIFEST: Final = "manifest.json"
COMMITTED: Final = "commit_success.txt"  # Orbax writes it after the manifest
_THREADS: Final = 8  # hashing and reading let other threads run
_DEPTH: Final = 8


class SelectionScore(NamedTuple):
    """By what checkpoints are compared: scores of one comparison, the smaller the better."""

    value: float
    comparison: str  # phase, metric and validation data that it belongs to


class FileRecord(NamedTuple):
    """What a file was when the checkpoint was saved."""

    size: int  # bytes
    sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What belongs to a checkpoint."""

    step: int
    files: Mapping[str, FileRecord]  # path below the checkpoint, with /
    score: SelectionScore | None

    @property
    def parts(self) -> list[str]:
        """The items of the checkpoint: `params`, `optimizer`, `progress`."""
        return sorted({name.partition("/")[0] for name in self.files})


_PLAIN: Final[Any] = pydantic.TypeAdapter(Manifest)


class Damage(Exception):
    """A checkpoint is not what was saved; the message says which file, and how it differs."""


def write_manifest(directory: epath.Path, *, step: int, score: SelectionScore | None) -> None:
    """Reads every file of a checkpoint, all of them final, and writes what was found."""
    paths = _files(directory)
    files = dict(zip(paths, _records(paths.values()), strict=True))
    replace_manifest(directory, Manifest(step, files, score))


def replace_manifest(directory: epath.Path, manifest: Manifest) -> None:
    """Writes a manifest in one piece, in place of one that is there."""
    content = sealed(_PLAIN.dump_python(manifest, mode="json"))
    write_whole(directory / MANIFEST, json.dumps(content, indent=1))


def read_manifest(directory: epath.Path, *, step: int) -> Manifest:
    """Returns the manifest of a checkpoint that is found under a step.

    Raises Damage: it cannot be read, is not what was written, or belongs to another step.
    """
    try:
        content = read_json_object(directory / MANIFEST)
        if not is_intact(content):
            raise Damage(f"{MANIFEST} differs from its own checksum")
        manifest = _PLAIN.validate_python(content)
    except UserError as error:
        raise Damage(str(error).removeprefix(f"{directory}/")) from None
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise Damage(f"{MANIFEST} has another form ({place}: {first['msg']})") from None
    if manifest.step != step:
        raise Damage(f"{MANIFEST} belongs to step {manifest.step}")
    return manifest


def damage(directory: epath.Path, *, step: int, parts: Collection[str] | None) -> str | None:
    """Returns how a checkpoint, or some parts of it, differ from its manifest; None: they do not.

    A file is missing, cut short or changed. Files beside those of the manifest are no damage:
    nothing reads them.
    """
    try:
        files = read_manifest(directory, step=step).files
        wanted = [name for name in files if parts is None or name.partition("/")[0] in parts]
        found = _files(directory)
        for name in wanted:
            if name not in found:
                return f"{name} is missing"
            if (size := found[name].stat().length) != files[name].size:
                return f"{name} has {size} bytes, was saved with {files[name].size}"
        for name, now in zip(wanted, _records(found[name] for name in wanted), strict=True):
            if now != files[name]:
                found_hash, saved = differing(now.sha256, files[name].sha256)
                return f"{name} has SHA-256 {found_hash}, was saved with {saved}"
    except (Damage, UserError) as error:
        return str(error).removeprefix(f"{directory}/")
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return None


def foreign_files(directory: epath.Path, manifest: Manifest) -> list[str]:
    """Returns the files in a checkpoint that do not belong to it."""
    return sorted(_files(directory).keys() - manifest.files.keys())


def _files(directory: epath.Path) -> dict[str, epath.Path]:
    """Returns every file below, but the manifest and what is written after it."""
    found: dict[str, epath.Path] = {}
    folders = [(directory, "")]
    while folders:
        folder, prefix = folders.pop()
        for path in folder.iterdir():
            name = f"{prefix}{path.name}"
            if not path.is_dir():
                found[name] = path
            elif name.count("/") < _DEPTH:  # a link to a folder above has no end
                folders.append((path, f"{name}/"))
    return {name: found[name] for name in sorted(found) if name not in (MANIFEST, COMMITTED)}


def _records(paths: Iterable[epath.Path]) -> Iterator[FileRecord]:
    with concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="sha256") as threads:
        yield from threads.map(lambda p: FileRecord(p.stat().length, sha256_of(p)), paths)
