"""Files of a bucket to this machine's disk: in parallel, checked, resumed where it stopped."""

import concurrent.futures
import functools
import hashlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import fsspec.core
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import disk_errors
from bert_jax.files.read import sha256_of_files
from bert_jax.files.remote import is_remote
from bert_jax.files.scratch import scratch_directory
from bert_jax.narration import doing

_PART: Final = ".part"

# Files at a time, and of each a piece whose parts come over several connections.
_FILES: Final = 8
_PIECE_BYTES: Final = 32 << 20
_CONNECTIONS: Final = 4

_BETWEEN_LINES_SECONDS: Final = 10.0


class RemoteFile(NamedTuple):
    """A file to copy."""

    path: str
    bytes: int
    sha256: str | None  # hexadecimal; None: unknown

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]


def find_files(directory: epath.Path) -> list[RemoteFile]:
    """Returns the files in a remote directory, not those in directories below it."""
    system, root = fsspec.core.url_to_fs(str(directory))
    scheme = str(directory).partition("://")[0]
    return [
        RemoteFile(f"{scheme}://{entry['name']}", entry["size"], None)
        for entry in system.ls(root, detail=True)
        if entry["type"] == "file" and not entry["name"].endswith("/")
    ]


def download(files: Sequence[RemoteFile], target: Path, *, say: Callable[[str], None]) -> None:
    """Copies files into a directory. What lies there whole is left, what is begun is gone on with.

    One process at a time writes to the target. `say` gets a line at the beginning and one every ten
    seconds. Raises UserError if a file is damaged, or the disk is full.
    """
    missing = [file for file in files if not (target / file.name).exists()]
    total = sum(file.bytes for file in missing)
    progress = _Progress(total, say)
    say(f"copying {total / 1e9:.3g} GB in {len(missing)} files to {target}")
    threads = concurrent.futures.ThreadPoolExecutor(_FILES)
    try:
        futures = [threads.submit(_fetch, file, target, progress) for file in missing]
        for future in concurrent.futures.as_completed(futures):
            future.result()
    finally:
        progress.stopped = True
        threads.shutdown(cancel_futures=True)


class _Progress:
    """Counts bytes of all files, and says how many every ten seconds."""

    def __init__(self, total: int, say: Callable[[str], None]) -> None:
        self.stopped = False  # another file failed
        self._total, self._say = total, say
        self._done = self._fetched = 0
        self._began = self._said = time.monotonic()
        self._lock = threading.Lock()

    def add(self, count: int, *, fetched: bool = True) -> None:
        """Counts bytes, fetched or found here from before."""
        with self._lock:
            self._done += count
            self._fetched += count * fetched
            now = time.monotonic()
            if now - self._said < _BETWEEN_LINES_SECONDS:
                return
            self._said = now
            rate = self._fetched / (now - self._began)
            left = (self._total - self._done) / max(rate, 1.0)
            self._say(
                f"{self._done / 1e9:.3g} of {self._total / 1e9:.3g} GB, {rate / 1e6:.3g} MB/s, "
                f"{left // 60:.0f} min {left % 60:.0f} s left"
            )


def _fetch(file: RemoteFile, target: Path, progress: _Progress) -> None:
    """Copies one file, from the beginning where what is there from before turns out damaged."""
    part = target / (file.name + _PART)
    resumed = part.exists()
    with disk_errors(target):
        found = _append(file, part, progress)
        if resumed and file.sha256 not in (None, found):
            part.unlink()
            found = _append(file, part, progress)
        if file.sha256 not in (None, found):
            part.unlink()
            raise UserError(
                f"{file.path}: damaged: SHA-256 is {found}, expected {file.sha256}; copy or make "
                "it again"
            )
        part.replace(target / file.name)


def _append(file: RemoteFile, part: Path, progress: _Progress) -> str:
    """Completes a file and returns its SHA-256."""
    system, path = fsspec.core.url_to_fs(file.path)
    digest = hashlib.sha256()
    with part.open("a+b") as out:
        out.seek(0)
        while kept := out.read(1 << 20):
            digest.update(kept)
        begin = out.tell()
        progress.add(begin, fetched=False)
        for start in range(begin, file.bytes, _PIECE_BYTES):
            end = min(start + _PIECE_BYTES, file.bytes)
            piece = system.cat_file(path, start=start, end=end, concurrency=_CONNECTIONS)
            if progress.stopped:
                raise concurrent.futures.CancelledError
            if len(piece) != end - start:
                raise UserError(f"{file.path}: changed while it was copied; run again")
            out.write(piece)
            digest.update(piece)
            progress.add(len(piece))
    return digest.hexdigest()


CHECKED: Final = "sha256-"
"""Before a hash, in the name of a directory: what lies in it has the hash that `sha256_of_files`
returns."""

_home = functools.cache(scratch_directory)
_HASH: Final = re.compile(rf"/{CHECKED}([0-9a-f]{{64}})/")


def local_copy(path: str) -> Path:
    """Returns a local path of the same content.

    ``"data/train.csv" -> Path("data/train.csv")``,
    ``"gs://b/data/train.csv" -> Path("/tmp/…/b/data/train.csv")``

    The path is of a file or a directory of files; a remote one is copied once in the life of this
    process, and the copy goes with it. Raises UserError if there is no such file, it is not what
    its directory's name says, or the disk is full; RunStopped if the bucket does not answer.
    """
    return _copied(path) if is_remote(path) else Path(path)


@functools.cache
def _copied(path: str) -> Path:
    try:
        files = find_files(epath.Path(path))
    except FileNotFoundError:
        files = []
    if not files:
        raise UserError(f"{path}: no such file")
    target = Path(_home(), path.partition("://")[2])
    into = target.parent if [file.path for file in files] == [path] else target
    into.mkdir(parents=True, exist_ok=True)
    with doing(f"copying {path}"):
        download(files, into, say=lambda line: None)
    wanted = _HASH.search(path)
    if wanted and sha256_of_files({file.name: into / file.name for file in files}) != wanted[1]:
        raise UserError(f"{path}: damaged: not of the SHA-256 in its name; copy it again")
    return target
