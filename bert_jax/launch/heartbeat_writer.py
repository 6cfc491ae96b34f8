"""Reports of a host in the job's directory: its status, and the log of the run."""

import functools
import itertools
import sys
import threading
import time
from pathlib import Path
from typing import Final, Self

from bert_jax.errors import RunStopped, UserError, first_line
from bert_jax.files.atomic import write_whole
from bert_jax.launch.assignment import HostEnvironment
from bert_jax.launch.heartbeat_reader import read_host
from bert_jax.launch.job import Ending, HostStatus
from bert_jax.launch.run_process import read_heartbeat

_MAX_ENDINGS: Final = 20

PART_BYTES: Final = 1 << 20
"""Size of a full log part. Objects in a bucket cannot grow: uploads rewrite the last part."""


class HeartbeatWriter:
    """Uploads a host's status and log every minute, at each change, and at the end.

    Leaving the context waits for the last upload. If the bucket does not answer, the run continues
    without uploads.

    Attributes:
        status: the host's status. Initial value: the last report before a reboot, if any.
    """

    def __init__(self, host: HostEnvironment, heartbeat: Path) -> None:
        """Starts a new log part after a reboot. Parts are numbered from 0."""
        self._path = host.files.host(host.attempt, host.worker)
        self.status = read_host(self._path) or HostStatus(state="staging", at=time.time())
        self._log_of = functools.partial(host.files.log, host.attempt, host.worker)
        self._part = next(part for part in itertools.count() if not self._log_of(part).exists())
        self._lines, self._uploaded = bytearray(), 0  # lines of this part, and bytes uploaded
        self._lock = threading.Lock()
        self._heartbeat, self._seconds = heartbeat, host.beat_seconds
        self._wake, self._closed = threading.Event(), False
        self._last_error = ""
        self._thread = threading.Thread(target=self._run, daemon=True, name="reports")

    def update(self, ending: Ending | None = None, **changes: object) -> None:
        """Changes fields of the status, appends `ending` if given, and starts an upload."""
        if ending is not None:
            endings = (*self.status.endings, ending)[-_MAX_ENDINGS:]
            changes |= {"endings": endings, "exit_code": ending.exit_code}
        self.status = self.status.model_copy(update=changes)
        self._wake.set()

    def log(self, line: bytes) -> None:
        """Prints a line and adds it to the log."""
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        with self._lock:
            self._lines += line

    def say(self, line: str) -> None:
        """Logs a line of the agent with a time stamp."""
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
            closed = self._closed  # read before the upload, so that the last upload is complete
            self._upload()

    def _upload(self) -> None:
        """Writes the log before the status: if the status is ``done``, the log is complete."""
        figures = read_heartbeat(self._heartbeat)
        fields = {name: figures[name] for name in ("step", "loss", "goodput") if figures.get(name)}
        status = self.status.model_copy(update=fields | {"at": time.time()})
        try:
            self._upload_log()
            write_whole(self._path, status.model_dump_json(indent=1))
        except (UserError, RunStopped, OSError) as error:
            if (line := first_line(error)) != self._last_error:
                sys.stderr.write(f"bert-jax: cannot write the heartbeat: {line}\n")
                self._last_error = line

    def _upload_log(self) -> None:
        """Writes the last log part if it has new lines. After an error, the next call retries."""
        with self._lock:
            content = bytes(self._lines)
        if len(content) == self._uploaded:
            return
        write_whole(self._log_of(self._part), content)
        self._uploaded = len(content)
        if len(content) >= PART_BYTES:
            with self._lock:
                del self._lines[: len(content)]
            self._part, self._uploaded = self._part + 1, 0
