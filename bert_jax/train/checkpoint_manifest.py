"""The manifest of a checkpoint: its files with sizes and checksums.

The manifest is written last. So a checkpoint with a manifest was complete once, and any difference
is damage. CRC32C, which buckets compute, would be useless: TensorStore's files end with their own
CRC32C, which makes the CRC32C of every such file the same constant.
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

# The items of a checkpoint. The item "optimizer" includes step and random key.
PARAMS: Final = "params"
OPTIMIZER: Final = "optimizer"
PROGRESS: Final = "progress"

MANIFEST: Final = "manifest.json"
COMMITTED: Final = "commit_success.txt"  # Orbax writes it after the manifest
_THREADS: Final = 8  # threads that read and hash, which release the GIL


class SelectionScore(NamedTuple):
    """A score by which checkpoints are ranked; only scores of one comparison are ranked."""

    value: float  # smaller is better
    comparison: str  # name of the comparison: phase, metric and validation data


class FileRecord(NamedTuple):
    """Size and hash of a file when it was saved."""

    size: int  # bytes
    sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The files and the score of a checkpoint."""

    step: int
    files: Mapping[str, FileRecord]  # records by path relative to the checkpoint
    score: SelectionScore | None

    @property
    def parts(self) -> list[str]:
        """The items of the checkpoint: `params`, `optimizer`, `progress`."""
        return sorted({name.partition("/")[0] for name in self.files})


_PLAIN: Final[Any] = pydantic.TypeAdapter(Manifest)


class Damage(Exception):
    """A checkpoint is damaged; the message names the file and the difference."""


def write_manifest(directory: epath.Path, *, step: int, score: SelectionScore | None) -> None:
    """Hashes all files of a complete checkpoint and writes the manifest."""
    found = dict(sorted(_files(directory).items()))
    files = dict(zip(found, _records(found.values()), strict=True))
    replace_manifest(directory, Manifest(step, files, score))


def replace_manifest(directory: epath.Path, manifest: Manifest) -> None:
    """Writes a manifest atomically; replaces an older one."""
    content = sealed(_PLAIN.dump_python(manifest, mode="json"))
    write_whole(directory / MANIFEST, json.dumps(content, indent=1))


def read_manifest(directory: epath.Path, *, step: int) -> Manifest:
    """Returns a checkpoint's manifest.

    Raises Damage if the manifest is unreadable, changed or belongs to another step.
    """
    try:
        content = read_json_object(directory / MANIFEST)
        if not is_intact(content):
            raise Damage(f"{MANIFEST} does not match its own checksum")
        manifest = _PLAIN.validate_python(content)
    except UserError as error:
        raise Damage(_below(directory, error)) from None
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise Damage(f"{MANIFEST} is invalid ({place}: {first['msg']})") from None
    if manifest.step != step:
        raise Damage(f"{MANIFEST} belongs to step {manifest.step}")
    return manifest


def damage(directory: epath.Path, *, step: int, part: str) -> str | None:
    """Returns how an item of a checkpoint differs from the manifest, or None if it does not.

    Files that the manifest does not list are ignored, because nothing reads them.
    """
    try:
        files = read_manifest(directory, step=step).files
        wanted = [name for name in files if name.partition("/")[0] == part]
        found = _files(directory)
        for name in wanted:
            if name not in found:
                return f"{name} is missing"
            if (size := found[name].stat().length) != files[name].size:
                return f"{name} has {size} bytes, expected {files[name].size}"
        for name, now in zip(wanted, _records(found[name] for name in wanted), strict=True):
            if now != files[name]:
                found_hash, saved = differing(now.sha256, files[name].sha256)
                return f"{name} has SHA-256 {found_hash}, expected {saved}"
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
    """Returns all files below a directory, except the manifest and Orbax's marker."""
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
