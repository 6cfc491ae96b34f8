"""Local copies of datasets in a bucket.

The loader reads examples of a few kilobytes at random offsets. From a bucket, every read would be a
request.
"""

import fcntl
import hashlib
import math
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Final

import filelock
import pydantic
from etils import epath

from bert_jax.data.dataset.provenance import (
    PROVENANCE_NAME,
    file_missing,
    read_provenance,
    wrong_size,
)
from bert_jax.data.dataset.schema import lengths_name
from bert_jax.errors import UserError
from bert_jax.files.download import RemoteFile, download, find_files
from bert_jax.files.read import read_bytes
from bert_jax.files.remote import is_remote
from bert_jax.files.scratch import user_cache
from bert_jax.section import LocalPathText, Section

_PARTIAL: Final = ".partial"
_USERS: Final = ".users"

# Open lock files of datasets in use. Until this process ends, they prevent other processes from
# deleting these datasets.
_held: Final[list[int]] = []


class CacheSection(Section):
    """Each machine's local copies of ``gs://`` datasets.

    Attributes:
        directory: directory of the copies. By default ``bert_jax/datasets`` in ``$XDG_CACHE_HOME``,
            or in ``~/.cache`` if that variable is not set.
        max_gb: maximum total size of all copies, in 10⁹ bytes. If a new copy does not fit, the
            least recently used copies that no process uses are deleted. By default, only the disk
            limits the size.
    """

    directory: LocalPathText | None = None
    max_gb: float | None = pydantic.Field(default=None, gt=0)

    @property
    def path(self) -> pathlib.Path:
        """Absolute path of the directory."""
        if self.directory is not None:
            return pathlib.Path(self.directory).expanduser().absolute()
        return user_cache("datasets")


class DatasetCache:
    """Copies of datasets, in directories named after the dataset and a hash of its provenance.

    ``DatasetCache(CacheSection(), say=print).local("gs://bucket/wiki")`` →
    ``/home/me/.cache/bert_jax/datasets/wiki-3f2a90c1d4e5b6f7``

    If several processes need a dataset, one copies it and the others wait. An interrupted copy
    resumes with the next file. A dataset that was rebuilt under its old name is copied again.
    """

    def __init__(self, section: CacheSection, *, say: Callable[[str], None]) -> None:
        self._root = section.path
        self._limit = math.inf if section.max_gb is None else section.max_gb * 1e9
        self._say = say
        self._opened: dict[str, str] = {}

    def local(self, directory: str) -> str:
        """Returns the local copy of a remote dataset. Returns a local directory unchanged.

        Raises UserError if the dataset is missing or damaged, or if the disk is full. Raises
        RunStopped if the bucket does not answer.
        """
        if not is_remote(directory):
            return directory
        if directory not in self._opened:
            self._opened[directory] = str(self._copy_of(epath.Path(directory)))
        return self._opened[directory]

    def _copy_of(self, source: epath.Path) -> pathlib.Path:
        files = _files(source)
        raw = read_bytes(source / PROVENANCE_NAME)
        target = self._root / f"{source.name}-{hashlib.sha256(raw).hexdigest()[:16]}"
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(_beside(target, ".lock"))
            with _waiting(
                lock, lambda: self._say(f"{source}: waiting for another process that is copying it")
            ):
                if not target.exists():
                    self._copy(source, files, target, raw)
                # No other process deletes a locked copy. `_unused` orders copies by modification
                # time.
                users = os.open(_beside(target, _USERS), os.O_RDWR | os.O_CREAT, 0o666)
                fcntl.flock(users, fcntl.LOCK_SH)
                _held.append(users)
                os.utime(target)
        except FileNotFoundError as error:  # an object was deleted meanwhile
            raise UserError(
                "file.changed_in_copy", "changed during the copy. Run it again.", place=source
            ) from error
        except OSError as error:
            raise UserError(
                "cache.directory",
                f"cannot write {self._root} ({error.strerror or error}). Use a local disk.",
                place="loader.cache.directory",
            ) from error
        return target

    def _copy(
        self, source: epath.Path, files: list[RemoteFile], target: pathlib.Path, provenance: bytes
    ) -> None:
        partial = _beside(target, _PARTIAL)
        partial.mkdir(exist_ok=True)
        size = sum(file.bytes for file in files)
        self._make_room(source, size - _size(partial), spare=partial)
        self._say(f"{source}: copying {size / 1e9:.3g} GB in {len(files)} files to {partial}")
        download(files, partial)
        (partial / PROVENANCE_NAME).write_bytes(provenance)
        partial.rename(target)
        self._say(f"{source}: copied to {target}")

    def _make_room(self, source: epath.Path, needed: int, *, spare: pathlib.Path) -> None:
        """Deletes unused copies, the least recently used first, until `needed` bytes are free."""
        unused = self._unused(spare)
        while True:
            used, free = _size(self._root), shutil.disk_usage(self._root).free
            if used + needed <= self._limit and needed <= free:
                return
            if (oldest := next(unused, None)) is None:
                break
            self._say(f"{oldest}: deleted to free space")
            shutil.rmtree(oldest)
        if free < needed:
            raise UserError(
                "cache.disk_full",
                f"{self._root} has {free / 1e9:.3g} GB, but {source} needs {needed / 1e9:.3g}",
                place="loader.cache.directory",
            )
        raise UserError(
            "cache.limit",
            f"found {self._limit / 1e9:g}, but {source} and others use {(needed + used) / 1e9:.3g}",
            place="loader.cache.max_gb",
        )

    def _unused(self, spare: pathlib.Path) -> Iterator[pathlib.Path]:
        """Yields the copies that no process uses, the least recently used first."""
        found = [path for path in self._root.iterdir() if path.is_dir() and path != spare]
        for path in sorted(found, key=lambda path: path.stat().st_mtime):
            whole = path.with_name(path.name.removesuffix(_PARTIAL))
            lock = filelock.FileLock(_beside(whole, ".lock"), blocking=False)
            try:
                with lock, _beside(whole, _USERS).open("a") as users:
                    fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    yield path
            except (filelock.Timeout, BlockingIOError):
                continue


def check_files(directory: epath.PathLike) -> int:
    """Checks that every file of a dataset exists and has the recorded size, without reading it.

    Returns the number of bytes of a local copy. Raises UserError if a file is missing or its size
    differs. Raises RunStopped if the bucket does not answer.
    """
    return sum(file.bytes for file in _files(epath.Path(directory)))


def _files(source: epath.Path) -> list[RemoteFile]:
    """Returns the files of a dataset except its provenance. Raises as `check_files` does."""
    splits = read_provenance(source).splits
    hashes = {lengths_name(name): split.lengths_sha256 for name, split in splits.items()}
    sizes: dict[str, int] = {}
    for split in splits.values():
        hashes |= {shard.name: shard.sha256 for shard in split.shards}
        sizes |= {shard.name: shard.bytes for shard in split.shards}
    found = {file.name: file for file in find_files(source) if file.name != PROVENANCE_NAME}
    for name in hashes:
        if name not in found:
            raise file_missing(source / name)
        if found[name].bytes != sizes.get(name, found[name].bytes):
            raise wrong_size(source / name, found[name].bytes, expected=sizes[name])
    return [file._replace(sha256=hashes.get(name)) for name, file in found.items()]


def _waiting(lock: filelock.BaseFileLock, say: Callable[[], None]) -> filelock.AcquireReturnProxy:
    """Acquires a lock. If another process has the lock, calls `say` first and then waits."""
    try:
        return lock.acquire(blocking=False)
    except filelock.Timeout:
        say()
        return lock.acquire()


def _beside(path: pathlib.Path, suffix: str) -> pathlib.Path:
    return path.with_name(path.name + suffix)


def _size(directory: pathlib.Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
