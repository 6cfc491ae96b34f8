"""What a host tells of itself: a heartbeat and its log, from a thread of their own."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Final

from bert_jax.errors import RunStopped, UserError, first_line
from bert_jax.files.atomic import write_whole
from bert_jax.launch.assignment import Told
from bert_jax.launch.heartbeats import read_host
from bert_jax.launch.host_log import HostLog
from bert_jax.launch.job import Ending, HostStatus
from bert_jax.launch.run_process import read_heartbeat

_MOST_ENDINGS: Final = 20


class Reports:
    """Uploads status and log every minute, at each change, and at the end; a context manager.

    A bucket that does not answer delays uploads and nothing else: the run goes on meanwhile. The
    end of the block waits for the last upload.
    """

    def __init__(self, told: Told, heartbeat: Path) -> None:
        """Reads what this host said before it was rebooted, if it was."""
        self._path = told.files.host(told.attempt, told.worker)
        self._log = HostLog(lambda part: told.files.log(told.attempt, told.worker, part))
        self._heartbeat, self._seconds = heartbeat, told.beat_seconds
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

    def __enter__(self) -> Reports:
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
