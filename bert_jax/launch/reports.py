"""What a host tells of itself: a heartbeat and its log, from a thread of their own."""

import collections
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from etils import epath

from bert_jax.errors import RunStopped, UserError, first_line
from bert_jax.files.atomic import write_whole
from bert_jax.launch.assignment import HostEnvironment
from bert_jax.launch.heartbeats import read_host
from bert_jax.launch.job import Ending, HostStatus
from bert_jax.launch.run_process import read_heartbeat

_MOST_ENDINGS: Final = 20


PART_BYTES: Final = 1 << 20
"""An object cannot be appended to: what is uploaded again with each heartbeat is one part."""

_MOST_PARTS: Final = 64  # kept while the bucket does not answer; then the oldest go


class HostLog:
    """Takes lines in one thread and uploads them in another."""

    def __init__(self, path_of: Callable[[int], epath.Path]) -> None:
        """Goes on after the parts that are there, from before a reboot; they count from 0."""
        self._path_of = path_of
        self._lock = threading.Lock()
        self._first = 0  # the number of the first part that is kept
        while path_of(self._first).exists():
            self._first += 1
        self._parts = collections.deque([bytearray()])
        self._dirty = False

    def write(self, line: bytes) -> None:
        """Adds a line."""
        with self._lock:
            if len(self._parts[-1]) >= PART_BYTES:
                self._parts.append(bytearray())
            if len(self._parts) > _MOST_PARTS:
                self._parts.popleft()
                self._first += 1
            self._parts[-1] += line
            self._dirty = True

    def upload(self) -> None:
        """Writes what is new; after a UserError, RunStopped or OSError the next call writes it."""
        with self._lock:
            if not self._dirty:
                return
            parts = [(self._first + at, bytes(part)) for at, part in enumerate(self._parts)]
            self._dirty = False
        try:
            for number, content in parts:
                write_whole(self._path_of(number), content)
        except BaseException:
            self._dirty = True
            raise
        with self._lock:  # whole parts are done with
            while self._first < parts[-1][0]:
                self._parts.popleft()
                self._first += 1


class Reports:
    """Uploads status and log every minute, at each change, and at the end; a context manager.

    A bucket that does not answer delays uploads and nothing else: the run goes on meanwhile. The
    end of the block waits for the last upload.
    """

    def __init__(self, host: HostEnvironment, heartbeat: Path) -> None:
        """Reads what this host said before it was rebooted, if it was."""
        self._path = host.files.host(host.attempt, host.worker)
        self._log = HostLog(lambda part: host.files.log(host.attempt, host.worker, part))
        self._heartbeat, self._seconds = heartbeat, host.beat_seconds
        self._status = read_host(self._path) or HostStatus(state="staging", at=time.time())
        self._wake, self._closed = threading.Event(), False
        self._complaint = ""
        self._thread = threading.Thread(target=self._run, daemon=True, name="reports")

    @property
    def status(self) -> HostStatus:
        """What the host last said."""
        return self._status

    def update(self, ending: Ending | None = None, **changes: object) -> None:
        """Changes fields of the status, adds an ending of the run's process, and uploads it now."""
        if ending is not None:
            endings = (*self._status.endings, ending)[-_MOST_ENDINGS:]
            changes |= {"endings": endings, "exit_code": ending.exit_code}
        self._status = self._status.model_copy(update=changes)
        self._wake.set()

    def log(self, line: bytes) -> None:
        """Takes a line of output: on to our own, and into the log."""
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        self._log.write(line)

    def say(self, line: str) -> None:
        """Adds a line of the agent's own."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.log(f"{now} {line}\n".encode())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._closed = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        closed = False
        while not closed:
            self._wake.wait(self._seconds)
            self._wake.clear()
            closed = self._closed  # before the upload, which has all that came before that
            self._upload()

    def _upload(self) -> None:
        """Writes the log, then the status: who reads that a run is done finds all of its log."""
        try:
            self._log.upload()
            write_whole(self._path, self._with_heartbeat(self._status).model_dump_json(indent=1))
        except (UserError, RunStopped, OSError) as error:
            self._complain(first_line(error))

    def _with_heartbeat(self, status: HostStatus) -> HostStatus:
        """Adds how far the run's process is; nothing where it has not reported yet."""
        figures = read_heartbeat(self._heartbeat)
        told = {name: figures[name] for name in ("step", "loss", "goodput") if figures.get(name)}
        return status.model_copy(update=told | {"at": time.time()})

    def _complain(self, line: str) -> None:
        if line != self._complaint:
            sys.stderr.write(f"bert-jax: no heartbeat could be written: {line}\n")
            self._complaint = line
