"""A lock that one process at a time holds."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import threading
import uuid
from collections.abc import Callable
from typing import Final, Protocol

from etils import epath

from bert_jax.errors import RunStopped
from bert_jax.files.cloud_object import CloudObject
from bert_jax.files.remote import is_remote

_BEAT_SECONDS: Final = 15.0
_BEATS: Final = 3


class Lock(Protocol):
    """What one process at a time can take."""

    def take(self) -> bool:
        """Returns whether the lock is ours now; another process may hold it."""
        ...

    def check(self) -> None:
        """Makes sure that the lock is still ours.

        Raises:
            RunStopped: another process has taken it.
        """
        ...

    def give_back(self) -> None:
        """Lets others take it, if we hold it."""
        ...


def lock_at(path: epath.PathLike, *, say: Callable[[str], None]) -> Lock:
    """Returns the lock that a path stands for, not yet taken.

    Args:
        path: of a file or an object, which is there as long as the lock is held.
        say: called with a line of text when taking it will take a while.
    """
    if is_remote(path):
        return ObjectLock(CloudObject(os.fspath(path)), say=say)
    return FileLock(pathlib.Path(path))


class FileLock:
    """A file that is locked, on this machine or over NFS: the system unlocks it when we end."""

    def __init__(self, path: pathlib.Path) -> None:
        self._path = path
        self._file: int | None = None

    def take(self) -> bool:
        """Returns whether the lock is ours now; another process may hold it."""
        while self._file is None:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(file)
                return False
            # Between the two calls its last holder may have removed the file.
            if self._path.exists() and os.path.samestat(os.fstat(file), os.stat(self._path)):
                self._file = file
            else:
                os.close(file)
        return True

    def check(self) -> None:
        """Does nothing: the system gives the lock to no other while we live."""

    def give_back(self) -> None:
        """Removes the file, and with it the lock, if we hold it."""
        if self._file is not None:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = None


class ObjectLock:
    """An object in a bucket that its holder writes anew every 15 seconds.

    A bucket has no lock that ends with its holder. So whoever finds the object watches it for 45
    seconds: if nobody writes it, its holder is dead. Each write names the generation that it
    replaces, so of two that come at once one is refused.
    """

    def __init__(
        self, held: CloudObject, *, say: Callable[[str], None], beat_seconds: float = _BEAT_SECONDS
    ) -> None:
        """Takes nothing yet.

        Args:
            held: the object.
            say: called with a line of text before the watching.
            beat_seconds: between two writes.
        """
        self._object = held
        self._say = say
        self._beat_seconds = beat_seconds
        self._raw = f"{os.uname().nodename} {os.getpid()} {uuid.uuid4().hex}\n".encode()
        self._generation: int | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lock", daemon=True)

    def take(self) -> bool:
        """Returns whether the lock is ours now; another process may hold it."""
        self._generation = self._object.write(self._raw, replaces=0) or self._replace_dead()
        if self._generation is None:
            return False
        self._thread.start()
        return True

    def check(self) -> None:
        """Makes sure that the lock is still ours.

        Raises:
            RunStopped: it was not written for so long that another process has taken it.
        """
        if self._generation is None:
            raise RunStopped(
                "another run makes this dataset now: it has taken the lock, which was not written "
                f"for {_BEATS * self._beat_seconds:.0f} s"
            )

    def give_back(self) -> None:
        """Removes the object, if it is ours."""
        if self._thread.is_alive():
            self._stop.set()
            self._thread.join()
        if self._generation is not None:
            self._object.delete(generation=self._generation)
            self._generation = None

    def _replace_dead(self) -> int | None:
        """Returns our generation in place of one that nobody writes; ``None``: somebody does."""
        seconds = _BEATS * self._beat_seconds
        held = self._object.read()
        if held is not None:
            holder = held.raw.decode().strip()
            self._say(f"locked by {holder}: waiting {seconds:.0f} s to see whether it lives")
            self._stop.wait(seconds)
            seen = self._object.read()
            if seen is not None and seen.generation != held.generation:
                return None
            held = seen
        return self._object.write(self._raw, replaces=0 if held is None else held.generation)

    def _beat(self) -> None:
        while self._generation is not None and not self._stop.wait(self._beat_seconds):
            # The network may fail for a while; so may the answer to a write that was done.
            with contextlib.suppress(Exception):
                generation = self._object.write(self._raw, replaces=self._generation)
                if generation is None:
                    held = self._object.read()
                    generation = held.generation if held and held.raw == self._raw else None
                self._generation = generation
