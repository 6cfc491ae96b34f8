"""What a host reports of itself: a heartbeat and its log, uploaded by a thread."""

import sys
import threading
import time
from collections.abc import Callable
from itertools import count
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
"""An object cannot be appended to, so each upload repeats one part of the log, of this size."""


class HostLog:
    """Takes lines in one thread and uploads them in another."""

    def __init__(self, path_of: Callable[[int], epath.Path]) -> None:
        """Starts a part after those of an earlier boot; parts count from 0."""
        self._path_of = path_of
        self._lock = threading.Lock()
        self._part = next(part for part in count() if not path_of(part).exists())
        self._content, self._uploaded = bytearray(), 0  # of the part

    def write(self, line: bytes) -> None:
        """Adds a line."""
        with self._lock:
            self._content += line

    def upload(self) -> None:
        """Writes the last part, if it has new lines. If that fails, the next call writes them."""
        with self._lock:
            content = bytes(self._content)
        if len(content) == self._uploaded:
            return
        write_whole(self._path_of(self._part), content)
        self._uploaded = len(content)
        if len(content) >= PART_BYTES:
            with self._lock:
                del self._content[: len(content)]
            self._part, self._uploaded = self._part + 1, 0


class Reports:
    """Uploads status and log every minute, at each change, and at the end; a context manager.

    A bucket that does not answer delays uploads, not the run. The end of the block waits for the
    last upload.
    """

    def __init__(self, host: HostEnvironment, heartbeat: Path) -> None:
        """Reads the status that this host reported before a reboot."""
        self._path = host.files.host(host.attempt, host.worker)
        self._log = HostLog(lambda part: host.files.log(host.attempt, host.worker, part))
        self._heartbeat, self._seconds = heartbeat, host.beat_seconds
        self._status = read_host(self._path) or HostStatus(state="staging", at=time.time())
        self._wake, self._closed = threading.Event(), False
        self._complaint = ""
        self._thread = threading.Thread(target=self._run, daemon=True, name="reports")

    @property
    def status(self) -> HostStatus:
        """The last status of the host."""
        return self._status

    def update(self, ending: Ending | None = None, **changes: object) -> None:
        """Changes fields of the status, adds an ending of the run's process, and uploads it now."""
        if ending is not None:
            endings = (*self._status.endings, ending)[-_MOST_ENDINGS:]
            changes |= {"endings": endings, "exit_code": ending.exit_code}
        self._status = self._status.model_copy(update=changes)
        self._wake.set()

    def log(self, line: bytes) -> None:
        """Prints a line and adds it to the log."""
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        self._log.write(line)

    def say(self, line: str) -> None:
        """Logs a line of the agent with the time."""
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
            closed = self._closed  # before the upload, which then has everything
            self._upload()

    def _upload(self) -> None:
        """Writes the log, then the status: a reader who sees the end finds all of the log."""
        figures = read_heartbeat(self._heartbeat)
        told = {name: figures[name] for name in ("step", "loss", "goodput") if figures.get(name)}
        status = self._status.model_copy(update=told | {"at": time.time()})
        try:
            self._log.upload()
            write_whole(self._path, status.model_dump_json(indent=1))
        except (UserError, RunStopped, OSError) as error:
            if (line := first_line(error)) != self._complaint:
                sys.stderr.write(f"bert-jax: no heartbeat could be written: {line}\n")
                self._complaint = line
