"""The manifest of a checkpoint: its files with sizes and checksums.

The manifest is written last, so a checkpoint with a manifest was complete. A file that differs from
the manifest is damaged. The CRC32C that buckets compute cannot tell files apart: TensorStore's
files end with their own CRC32C, so the CRC32C of every whole file is the same constant.
"""

import concurrent.futures
import dataclasses
import hashlib
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
EMA: Final = "ema"  # moving average of the parameters, with the same tensors
OPTIMIZER: Final = "optimizer"
PROGRESS: Final = "progress"
# Marks the progress of an imported checkpoint, which has a step but no data position.
IMPORTED: Final = "imported"

MANIFEST: Final = "manifest.json"
COMMITTED: Final = "commit_success.txt"  # Orbax writes it after the manifest
_THREADS: Final = 8  # threads for reading and hashing, which release the GIL


class SelectionScore(NamedTuple):
    """A score that ranks checkpoints with an equal `comparison`."""

    value: float  # smaller is better
    comparison: str  # phase, metric and validation data of the score


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
    # Hash of an imported model's parameters. Each host may import it, under other file names.
    params: str | None = None

    @property
    def parts(self) -> list[str]:
        """The items of the checkpoint: `params`, `optimizer`, `progress`, `ema`."""
        return sorted({name.partition("/")[0] for name in self.files})


_PLAIN: Final[Any] = pydantic.TypeAdapter(Manifest)


class Damage(Exception):
    """A checkpoint is damaged; the message names the file and the difference."""


def write_manifest(
    directory: epath.Path, *, step: int, score: SelectionScore | None, params: str | None
) -> None:
    """Hashes all files of a complete checkpoint and writes the manifest."""
    found = dict(sorted(_files(directory).items()))
    files = dict(zip(found, _records(found.values()), strict=True))
    replace_manifest(directory, Manifest(step, files, score, params))


def replace_manifest(directory: epath.Path, manifest: Manifest) -> None:
    """Writes a manifest atomically; replaces an existing manifest."""
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


def content_hash(manifest: Manifest, part: str) -> str:
    """Returns the hash of an imported model's parameters, or of the files of an item."""
    if part == PARAMS and manifest.params is not None:
        return manifest.params
    files = {n: found for n, found in manifest.files.items() if n.partition("/")[0] == part}
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def damage(directory: epath.Path, *, step: int, part: str) -> str | None:
    """Returns the first difference of a checkpoint's item from the manifest, or None.

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
    """Returns an error's message with the path relative to the directory."""
    return str(error.with_place(error.place.removeprefix(f"{directory}/")))


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
