"""Copies files from a bucket to the local disk in parallel, and checks their SHA-256."""

import concurrent.futures
import functools
import hashlib
import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import fsspec.core
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import disk_errors
from bert_jax.files.read import no_such_file, sha256_of_files
from bert_jax.files.remote import is_remote
from bert_jax.files.scratch import scratch_directory
from bert_jax.narration import doing

_FILES: Final = 8  # maximum number of concurrent copies
_PIECE_BYTES: Final = 16 << 20


class RemoteFile(NamedTuple):
    """A file to copy."""

    path: str
    bytes: int
    sha256: str | None  # hexadecimal, or None if unknown

    @property
    def name(self) -> str:
        """Name of the file without its directory."""
        return self.path.rpartition("/")[2]


def find_files(directory: epath.Path) -> list[RemoteFile]:
    """Returns the files in a remote directory, without its subdirectories."""
    system, root = fsspec.core.url_to_fs(str(directory))
    scheme = str(directory).partition("://")[0]
    return [
        RemoteFile(f"{scheme}://{entry['name']}", entry["size"], None)
        for entry in system.ls(root, detail=True)
        if entry["type"] == "file" and not entry["name"].endswith("/")
    ]


def download(files: Sequence[RemoteFile], target: Path) -> None:
    """Copies files into a directory. Skips files that exist already.

    The caller must be the only process that writes to the target. Raises UserError if a file is
    damaged or the disk is full.
    """
    missing = [file for file in files if not (target / file.name).exists()]
    total, done = sum(file.bytes for file in missing), dict.fromkeys(missing, 0)
    threads, stopped = concurrent.futures.ThreadPoolExecutor(_FILES), threading.Event()
    with doing(lambda: f"copying: {sum(done.values()) / 1e9:.3g} of {total / 1e9:.3g} GB"):
        try:
            list(threads.map(lambda file: _fetch(file, target, done, stopped), missing))
        finally:
            stopped.set()
            threads.shutdown(cancel_futures=True)


def _fetch(
    file: RemoteFile, target: Path, done: dict[RemoteFile, int], stopped: threading.Event
) -> None:
    part, digest = target / f"{file.name}.part", hashlib.sha256()
    system, path = fsspec.core.url_to_fs(file.path)
    with disk_errors(target), part.open("wb") as local:
        for start in range(0, file.bytes, _PIECE_BYTES):
            end = min(start + _PIECE_BYTES, file.bytes)
            piece = system.cat_file(path, start=start, end=end)
            if len(piece) != end - start:
                raise UserError(
                    "file.changed_in_copy", "changed during the copy. Repeat it.", place=file.path
                )
            if stopped.is_set():
                raise concurrent.futures.CancelledError
            local.write(piece)
            digest.update(piece)
            done[file] = end
    if file.sha256 not in (None, found := digest.hexdigest()):
        part.unlink()
        raise wrong_hash(file.path, found=found, expected=file.sha256)
    part.replace(target / file.name)


def wrong_hash(path: epath.PathLike, *, found: str, expected: str) -> UserError:
    """Returns the error for a file whose SHA-256 differs from the recorded one."""
    return UserError(
        "file.damaged",
        f"damaged: its SHA-256 is {found}, expected: {expected}. Copy or make it again.",
        place=path,
    )


CHECKED: Final = "sha256-"
"""Prefix of a directory name ``sha256-HASH``. HASH is the `sha256_of_files` of its files."""

_home = functools.cache(scratch_directory)
_HASH: Final = re.compile(rf"/{CHECKED}([0-9a-f]{{64}})/")


def local_copy(path: str) -> Path:
    """Returns a local copy of a file or directory: ``gs://b/a.csv -> Path("/tmp/…/b/a.csv")``.

    Copies a remote path once per process. Returns a local path unchanged. Raises UserError if the
    file does not exist, differs from the hash in the name of its directory, or the disk is full.
    Raises RunStopped if the bucket does not answer.
    """
    return _copied(path) if is_remote(path) else Path(path)


@functools.cache
def _copied(path: str) -> Path:
    try:
        files = find_files(epath.Path(path))
    except FileNotFoundError:
        files = []
    if not files:
        raise no_such_file(path)
    target = Path(_home(), path.partition("://")[2])
    into = target.parent if [file.path for file in files] == [path] else target
    into.mkdir(parents=True, exist_ok=True)
    with doing(f"copying {path}"):
        download(files, into)
    if wanted := _HASH.search(path):
        found = sha256_of_files({file.name: into / file.name for file in files})
        if found != wanted[1]:
            raise wrong_hash(path, found=found, expected=wanted[1])
    return target
