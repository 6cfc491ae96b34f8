"""Hosts of one attempt as processes of this machine, known to whoever looks at their directory.

Each host is `startup.sh` with its descendants. It holds a lock on a file of its own for as long as
it lives, which it inherits from the process that starts it: so there is no moment at which it
exists and cannot be seen, and no second one can be started in its place.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import psutil

GRACE_SECONDS: Final = 90.0
"""From SIGTERM to SIGKILL. A Cloud TPU that is deleted gives its processes about as long."""

_KILLED_SECONDS: Final = 30.0

# Writes its process id, then becomes the script; $0 is the first argument.
_START: Final = 'echo $$ > "$0" && exec bash "$1"'


class LocalMachine:
    """The host processes that have one directory."""

    def __init__(self, directory: Path) -> None:
        """Starts nothing."""
        self._directory = directory

    def start(
        self, worker: int, script: Path, environment: Mapping[str, str], *, cwd: str | None
    ) -> bool:
        """Starts one host, which runs a script with bash; returns False if it lives already."""
        with self._lock_of(worker) as lock:
            if lock is None:
                return False
            with (self._directory / f"worker-{worker}.log").open("ab") as log:
                started = subprocess.Popen(
                    ["sh", "-c", _START, str(self._pid_file(worker)), str(script)],
                    env=dict(environment),
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(lock,),
                )
        # Takes note of its end, which would else leave a zombie for as long as this process lives.
        threading.Thread(target=started.wait, daemon=True).start()
        return True

    def alive(self, worker: int) -> bool:
        """Says whether a host lives."""
        with self._lock_of(worker) as lock:
            return lock is None

    def kill(self, workers: Sequence[int], *, grace_seconds: float = GRACE_SECONDS) -> None:
        """Ends hosts with all their descendants: SIGTERM, and SIGKILL after a while."""
        hosts = [host for worker in workers if (host := self._process(worker)) is not None]
        family = [each for host in hosts for each in _with_descendants(host)]
        if grace_seconds:
            _send(hosts, signal.SIGTERM)
            _wait(hosts, seconds=grace_seconds)
            family += [each for host in hosts for each in _with_descendants(host)]
        _send(family, signal.SIGKILL)
        _wait(family, seconds=_KILLED_SECONDS)

    def _process(self, worker: int) -> psutil.Process | None:
        while self.alive(worker):
            with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
                return psutil.Process(int(self._pid_file(worker).read_text()))
            time.sleep(0.01)  # it has the lock and has yet to write its id
        return None

    def _pid_file(self, worker: int) -> Path:
        return self._directory / f"worker-{worker}.pid"

    @contextlib.contextmanager
    def _lock_of(self, worker: int) -> Iterator[int | None]:
        """Gives the lock of a host that does not live, None if it does."""
        lock = os.open(self._directory / f"worker-{worker}.lock", os.O_RDWR | os.O_CREAT)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
            else:
                yield lock
        finally:
            os.close(lock)


def _with_descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _wait(processes: Iterable[psutil.Process], *, seconds: float) -> None:
    """Waits until all have ended, whoever their parent is, and whether or not it has noticed."""
    end = time.monotonic() + seconds
    while any(map(_lives, processes)) and time.monotonic() < end:
        time.sleep(0.02)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
