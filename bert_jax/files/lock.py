"""A lock for one process at a time: a locked file, or an object in a bucket."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeAlias

import filelock
import fsspec
from etils import epath

from bert_jax.errors import RunStopped, UserError
from bert_jax.files.remote import is_remote
from bert_jax.files.storage_retries import no_such_bucket

LOCK: Final = ".lock"

_HEARTBEAT_SECONDS: Final = 15.0
_MISSED_HEARTBEATS: Final = 3
# A clock that advances while the machine sleeps. CLOCK_MONOTONIC does so on macOS, not on Linux.
_SLEEPLESS: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class LockLost(RunStopped):
    """Another process has taken the lock of this process."""


def _clocks() -> tuple[float, float]:
    """Returns two clocks in seconds. Only the second advances while a virtual machine is paused."""
    return time.clock_gettime(_SLEEPLESS), time.time()


def _age(then: tuple[float, float]) -> float:
    """Returns the seconds since `then` on the clock that advanced more."""
    return max(now - before for now, before in zip(_clocks(), then, strict=True))


def lock_at(path: epath.PathLike, *, say: Callable[[str], None]) -> Lock:
    """Returns the lock at a path without acquiring it. Its file or object exists while it is held.

    `say` prints a line before `take` waits for another process.
    """
    if is_remote(path):
        return ObjectLock(CloudObject(os.fspath(path)), say=say)
    return LocalLock(pathlib.Path(path))


class LocalLock:
    """A locked file, local or on NFS. The system releases the lock when the process ends."""

    def __init__(self, path: pathlib.Path) -> None:
        self.holder = ""  # after `take` fails: host and process id of the holder, if known
        self._path = path
        self._lock = filelock.FileLock(path, timeout=0, thread_local=False)

    def take(self) -> bool:
        """Acquires the lock. Returns whether that succeeded.

        Raises OSError if the file cannot be created.
        """
        try:
            self._lock.acquire()
        except filelock.Timeout:
            if not self._path.exists():
                # If the file cannot be created, as in /proc, filelock also raises Timeout, but
                # `touch` raises OSError.
                self._path.touch()
                return self.take()  # the holder has just released the lock
            with contextlib.suppress(OSError):
                self.holder = self._path.read_text(errors="replace").strip()
            return False
        self._path.write_text(f"{_identity()}\n")
        return True

    def check(self) -> None:
        """Does nothing: a file lock cannot be lost."""

    def give_back(self) -> None:
        """Removes the file and releases the lock, if this process holds it."""
        if self._lock.is_locked:
            self._path.unlink(missing_ok=True)
            self._lock.release(force=True)


class ObjectVersion(NamedTuple):
    """One version of an object in a bucket."""

    generation: int  # changes with each write
    raw: bytes


class CloudObject:
    """An object ``gs://bucket/name`` that is replaced only if it has the expected generation.

    Raises the errors of `bert_jax.files.bucket`, which sends the requests.
    """

    def __init__(self, path: str) -> None:
        """Does not open a connection."""
        self._path = path
        self._bucket, _, self._name = path.partition("://")[2].partition("/")

    def write(self, raw: bytes, *, replaces: int) -> int | None:
        """Writes the object if its generation is `replaces`. Returns the new generation, or None.

        `replaces` is 0 if the object must not exist. Each writer must write different content, so
        that a retry recognises its own write.
        """
        system = self._system()
        asked = {"uploadType": "multipart", "ifGenerationMatch": replaces, "name": self._name}
        url = f"{system.upload_base}b/{self._bucket}/o?{urllib.parse.urlencode(asked)}"
        mark = uuid.uuid4().hex
        before = f"--{mark}\r\nContent-Type: application/json\r\n\r\n{{}}\r\n--{mark}\r\n\r\n"
        body = before.encode() + raw + f"\r\n--{mark}--".encode()
        headers = {"Content-Type": f"multipart/related; boundary={mark}"}
        try:
            _, found = system.call("POST", url, data=body, headers=headers)
        except FileExistsError:
            # An earlier attempt may have written the object although its response was lost.
            now = self.read()
            return now.generation if now is not None and now.raw == raw else None
        return int(json.loads(found)["generation"])

    def read(self) -> ObjectVersion | None:
        """Returns the current version, or None if the object does not exist."""
        try:
            headers, raw = self._call("GET", alt="media")
        except FileNotFoundError:
            return None
        return ObjectVersion(int(headers["x-goog-generation"]), raw)

    def delete(self, *, generation: int) -> None:
        """Deletes the object if it exists with this generation."""
        try:
            self._call("DELETE", ifGenerationMatch=generation)
        except (FileNotFoundError, FileExistsError):
            return

    def location(self) -> str | None:
        """Returns the location of the bucket, such as ``US-WEST4``, or None without permission."""
        try:
            return self._system().call("GET", "b/{}", self._bucket, json_out=True)["location"]
        except FileNotFoundError as error:
            raise no_such_bucket(f"gs://{self._bucket}") from error
        except OSError as error:
            if str(error).startswith("Forbidden"):
                return None
            raise

    def _call(self, method: str, **asked: Any) -> Any:
        return self._system().call(method, "b/{}/o/{}", self._bucket, self._name, **asked)

    def _system(self) -> Any:
        """Returns the client. Its time-outs are shorter than the time-out of a lock."""
        return fsspec.filesystem("gcs", hasty=True)


class ObjectLock:
    """An object in a bucket, which the holder of the lock rewrites every 15 seconds.

    Another process that finds the object watches it for 45 seconds. If the object does not change
    in that time, the holder counts as dead. Each write specifies the generation that it replaces,
    so if two processes write concurrently, one write fails.
    """

    def __init__(
        self,
        held: CloudObject,
        *,
        say: Callable[[str], None],
        heartbeat_seconds: float = _HEARTBEAT_SECONDS,
    ) -> None:
        """Does not acquire the lock. `say` prints a line before `take` waits."""
        self.holder = ""  # as in LocalLock
        self._object = held
        self._say = say
        self._heartbeat_seconds = heartbeat_seconds
        self._timeout_seconds = _MISSED_HEARTBEATS * heartbeat_seconds
        self._raw = f"{_identity()} {uuid.uuid4().hex}\n".encode()
        self._generation: int | None = None
        self._written = _clocks()  # time of the last write; the lock expires a time-out later
        self._renewing = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lock", daemon=True)

    def take(self) -> bool:
        """Acquires the lock. Returns whether that succeeded."""
        self._written = _clocks()
        self._generation = self._object.write(self._raw, replaces=0) or self._replace_dead()
        if self._generation is None:
            return False
        self._thread.start()
        return True

    def check(self) -> None:
        """Verifies that this process holds the lock. Renews the lock if a time-out has passed.

        Raises LockLost if another process has taken the lock, and UserError or RunStopped if the
        bucket fails.
        """
        if self._generation is not None and _age(self._written) >= self._timeout_seconds:
            self._renew()
        if self._generation is None:
            raise LockLost(
                "lock.lost",
                f"another process took the lock, not renewed for {self._timeout_seconds:.0f} s",
            )

    def give_back(self) -> None:
        """Deletes the object if this process holds the lock."""
        if self._thread.is_alive():
            self._stop.set()
            self._thread.join()
        if self._generation is not None:
            self._object.delete(generation=self._generation)
            self._generation = None

    def _replace_dead(self) -> int | None:
        """Replaces a dead holder's object. Returns its generation, or None if the holder lives."""
        held = self._object.read()
        if held is not None:
            self.holder = held.raw.decode().strip()
            self._say(
                f"locked by {self.holder}: waiting {self._timeout_seconds:.0f} s to see whether "
                "that process is alive"
            )
            self._stop.wait(self._timeout_seconds)
            seen = self._object.read()
            if seen is not None and seen.generation != held.generation:
                return None
            held = seen
        self._written = _clocks()
        return self._object.write(self._raw, replaces=0 if held is None else held.generation)

    def _beat(self) -> None:
        while self._generation is not None and not self._stop.wait(self._heartbeat_seconds):
            # A failed heartbeat is harmless: the next may succeed, and `check` verifies the lock.
            with contextlib.suppress(Exception):
                self._renew()

    def _renew(self) -> None:
        """Rewrites the object. Marks the lock as lost if another process has taken it.

        The heartbeat thread may write concurrently. Then one of the two writes fails, but the
        object still has the content of this process.
        """
        began, generation = _clocks(), self._generation
        if generation is None:
            return
        generation = self._object.write(self._raw, replaces=generation)
        if generation is None:
            held = self._object.read()
            generation = held.generation if held and held.raw == self._raw else None
        with self._renewing:
            if generation is None or self._generation is None:
                self._generation = None
            elif began >= self._written:
                self._generation, self._written = generation, began


Lock: TypeAlias = LocalLock | ObjectLock


def lock_beside(output: epath.PathLike) -> epath.Path:
    """Returns the path of the lock of an output: ``out/tokenizer`` → ``out/.tokenizer.lock``.

    The lock is not in the output, because the output may not exist yet or may be replaced.
    """
    # The path ``.`` has no name, and a bucket has no parent.
    path = epath.Path(output if is_remote(output) else os.path.abspath(output))
    if is_remote(path) and os.fspath(path).rstrip("/").count("/") == 2:
        return path / LOCK
    return path.parent / f".{path.name}{LOCK}"


def take_or_refuse(lock: Lock, path: epath.Path, *, what: str) -> None:
    """Creates the directory of a lock and acquires the lock.

    `what` names the locked output in messages. Raises UserError if another process holds the lock
    or the lock cannot be written.
    """
    try:
        if not is_remote(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        taken = lock.take()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError("lock.unusable", f"cannot be locked ({reason})", place=what) from error
    if not taken:
        raise UserError(
            "lock.held",
            f"another process ({lock.holder or 'unknown'}) is writing there",
            place=what,
        )


@contextlib.contextmanager
def hold_alone(output: epath.PathLike, *, say: Callable[[str], None]) -> Iterator[Lock]:
    """Holds the lock of an output during the block. It is for verbs that do not load JAX.

    Raises UserError if another process holds the lock.
    """
    path, what = lock_beside(output), os.fspath(output)
    lock = lock_at(path, say=lambda line: say(f"{what}: {line}"))
    take_or_refuse(lock, path, what=what)
    try:
        yield lock
    finally:
        lock.give_back()


def _identity() -> str:
    return f"{os.uname().nodename} {os.getpid()}"
