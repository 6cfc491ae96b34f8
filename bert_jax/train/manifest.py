"""The manifest of a checkpoint: every file that belongs to it, with its size and checksum.

The manifest is written last: a checkpoint that has one was whole once, and any difference is
damage. CRC32C, which buckets compute, would detect nothing here: a file of TensorStore ends with
its own CRC32C, so that the CRC32C of the whole file never changes.
"""

import concurrent.futures
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pydantic
from etils import epath

from bert_jax.errors import UserError, differing
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object, sha256_of
from bert_jax.files.seal import is_intact, sealed

# The items of a checkpoint. The optimizer's also holds step and random key.
PARAMS: Final = "params"
OPTIMIZER: Final = "optimizer"
PROGRESS: Final = "progress"

MANIFEST: Final = "manifest.json"
COMMITTED: Final = "commit_success.txt"  # Orbax writes it after the manifest
_THREADS: Final = 8  # hashing and reading release the GIL


class SelectionScore(NamedTuple):
    """The rank of a checkpoint within one comparison."""

    value: float  # smaller is better
    comparison: str  # phase, metric and validation data


class FileRecord(NamedTuple):
    """A file as it was saved."""

    size: int  # bytes
    sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The files and the score of a checkpoint."""

    step: int
    files: Mapping[str, FileRecord]  # path below the checkpoint, with /
    score: SelectionScore | None

    @property
    def parts(self) -> list[str]:
        """The items of the checkpoint: `params`, `optimizer`, `progress`."""
        return sorted({name.partition("/")[0] for name in self.files})


_PLAIN: Final[Any] = pydantic.TypeAdapter(Manifest)


class Damage(Exception):
    """A checkpoint is not what was saved; the message names the file and the difference."""


def write_manifest(directory: epath.Path, *, step: int, score: SelectionScore | None) -> None:
    """Hashes every file of a checkpoint, all of them final, and writes the manifest."""
    found = dict(sorted(_files(directory).items()))
    files = dict(zip(found, _records(found.values()), strict=True))
    replace_manifest(directory, Manifest(step, files, score))


def replace_manifest(directory: epath.Path, manifest: Manifest) -> None:
    """Writes a manifest atomically, over an older one if there is one."""
    content = sealed(_PLAIN.dump_python(manifest, mode="json"))
    write_whole(directory / MANIFEST, json.dumps(content, indent=1))


def read_manifest(directory: epath.Path, *, step: int) -> Manifest:
    """Returns a checkpoint's manifest; Damage: it is unreadable, changed or of another step."""
    try:
        content = read_json_object(directory / MANIFEST)
        if not is_intact(content):
            raise Damage(f"{MANIFEST} differs from its own checksum")
        manifest = _PLAIN.validate_python(content)
    except UserError as error:
        raise Damage(_below(directory, error)) from None
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise Damage(f"{MANIFEST} has another form ({place}: {first['msg']})") from None
    if manifest.step != step:
        raise Damage(f"{MANIFEST} belongs to step {manifest.step}")
    return manifest


def damage(directory: epath.Path, *, step: int, part: str) -> str | None:
    """Returns how an item of a checkpoint differs from the manifest; None: it does not.

    Files that the manifest does not list are ignored: nothing reads them.
    """
    try:
        files = read_manifest(directory, step=step).files
        wanted = [name for name in files if name.partition("/")[0] == part]
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
    except Damage as error:
        return str(error)
    except UserError as error:
        return _below(directory, error)
    except OSError as error:
        return f"cannot be read ({error.strerror or error})"
    return None


def _below(directory: epath.Path, error: UserError) -> str:
    """Returns an error's message with its place relative to the directory."""
    place = str(error.values.get("place", "")).removeprefix(f"{directory}/")
    return str(error.followed_by("", place=place))


def foreign_files(directory: epath.Path, manifest: Manifest) -> list[str]:
    """Returns the files in a checkpoint's directory that its manifest does not list."""
    return sorted(_files(directory).keys() - manifest.files.keys())


def _files(directory: epath.Path, prefix: str = "") -> dict[str, epath.Path]:
    """Returns every file below, except the manifest and Orbax's mark."""
    found: dict[str, epath.Path] = {}
    for path in directory.iterdir():
        if path.is_dir():
            found |= _files(path, f"{prefix}{path.name}/")
        elif (name := f"{prefix}{path.name}") not in (MANIFEST, COMMITTED):
            found[name] = path
    return found


def _records(paths: Iterable[epath.Path]) -> Iterator[FileRecord]:
    with concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="sha256") as threads:
        yield from threads.map(lambda p: FileRecord(p.stat().length, sha256_of(p)), paths)
