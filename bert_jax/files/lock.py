"""A lock that one process at a time holds: on a file system, or in a bucket."""

from __future__ import annotations

import contextlib
import os
import pathlib
import threading
import uuid
from collections.abc import Callable
from typing import Final, TypeAlias

import filelock
from etils import epath

from bert_jax.errors import RunStopped
from bert_jax.files.cloud_object import CloudObject
from bert_jax.files.remote import is_remote

_HEARTBEAT_SECONDS: Final = 15.0
_MISSED_HEARTBEATS: Final = 3


def lock_at(path: epath.PathLike, *, say: Callable[[str], None]) -> Lock:
    """Returns the lock at a path, not yet taken.

    The file or object exists while the lock is held. `say` gets a line when taking it will take a
    while.
    """
    if is_remote(path):
        return ObjectLock(CloudObject(os.fspath(path)), say=say)
    return LocalLock(pathlib.Path(path))


class LocalLock:
    """A locked file, local or on NFS: the system releases it when the process ends."""

    def __init__(self, path: pathlib.Path) -> None:
        self.holder = ""  # after a refused `take`, host and process id of the holder, if known
        self._path = path
        self._lock = filelock.FileLock(path, timeout=0, thread_local=False)

    def take(self) -> bool:
        """Returns whether the lock is ours now; False: another process holds it."""
        try:
            self._lock.acquire()
        except filelock.Timeout:
            with contextlib.suppress(OSError):
                self.holder = self._path.read_text(errors="replace").strip()
            return False
        self._path.write_text(f"{_identity()}\n")
        return True

    def check(self) -> None:
        """Does nothing: the system gives the lock to nobody else while we live."""

    def give_back(self) -> None:
        """Removes the file and releases the lock if we hold it."""
        if self._lock.is_locked:
            self._path.unlink(missing_ok=True)
            self._lock.release(force=True)


class ObjectLock:
    """An object in a bucket that its holder rewrites every 15 seconds.

    A bucket has no lock that ends with its holder, so another process that finds the object watches
    it for 45 seconds: without a write in that time the holder is dead. Each write names the
    generation that it replaces, so of two processes that write at once one is refused.
    """

    def __init__(
        self,
        held: CloudObject,
        *,
        say: Callable[[str], None],
        heartbeat_seconds: float = _HEARTBEAT_SECONDS,
    ) -> None:
        """Takes nothing yet; `say` gets a line before the watching."""
        self.holder = ""  # as above
        self._object = held
        self._say = say
        self._heartbeat_seconds = heartbeat_seconds
        self._timeout_seconds = _MISSED_HEARTBEATS * heartbeat_seconds
        self._raw = f"{_identity()} {uuid.uuid4().hex}\n".encode()
        self._generation: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lock", daemon=True)

    def take(self) -> bool:
        """Returns whether the lock is ours now; False: another process holds it."""
        self._generation = self._object.write(self._raw, replaces=0) or self._replace_dead()
        if self._generation is None:
            return False
        self._thread.start()
        return True

    def check(self) -> None:
        """Raises ``RunStopped`` if another process took the lock, after heartbeats that failed."""
        if self._generation is None:
            raise RunStopped(
                "another process has taken the lock, which was not written for "
                f"{self._timeout_seconds:.0f} s"
            )

    def give_back(self) -> None:
        """Removes the object if it is ours."""
        if self._thread.is_alive():
            self._stop.set()
            self._thread.join()
        if self._generation is not None:
            self._object.delete(generation=self._generation)
            self._generation = None

    def _replace_dead(self) -> int | None:
        """Returns our generation in place of a dead holder's; ``None``: the holder is alive."""
        held = self._object.read()
        if held is not None:
            self.holder = held.raw.decode().strip()
            self._say(
                f"locked by {self.holder}: waiting {self._timeout_seconds:.0f} s to see whether it "
                "is alive"
            )
            self._stop.wait(self._timeout_seconds)
            seen = self._object.read()
            if seen is not None and seen.generation != held.generation:
                return None
            held = seen
        return self._object.write(self._raw, replaces=0 if held is None else held.generation)

    def _beat(self) -> None:
        while self._generation is not None and not self._stop.wait(self._heartbeat_seconds):
            # The network may fail for a while; so may the answer to a write that was done.
            with contextlib.suppress(Exception):
                generation = self._object.write(self._raw, replaces=self._generation)
                if generation is None:
                    held = self._object.read()
                    generation = held.generation if held and held.raw == self._raw else None
                self._generation = generation


Lock: TypeAlias = LocalLock | ObjectLock


def _identity() -> str:
    return f"{os.uname().nodename} {os.getpid()}"
