"""This machine as a cloud: hosts are processes on loopback, and everything else is as elsewhere."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psutil
from etils import epath

from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object
from bert_jax.launch import machine
from bert_jax.launch.bundle import startup_script
from bert_jax.launch.job import JOB_LABEL, Attempt
from bert_jax.launch.launcher import Existing, NotOurs, Observation, Owner, Request, State

_RECORD = "machine.json"


GRACE_SECONDS: Final = 90.0
"""From SIGTERM to SIGKILL. A Cloud TPU that is deleted gives its processes about as long."""

_KILLED_SECONDS: Final = 30.0

# Writes its process id, then becomes the script; $0 is the first argument.
_START: Final = 'echo $$ > "$0" && exec bash "$1"'


class LocalMachine:
    """The host processes that have one directory, known to whoever looks at it.

    Each host is `startup.sh` with its descendants. It holds a lock on a file of its own for as long
    as it lives, which it inherits from the process that starts it: so there is no moment at which
    it exists and cannot be seen, and no second one can be started in its place.
    """

    def __init__(self, directory: Path) -> None:
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


class LocalLauncher:
    """`Launcher` of `on: local`. Its record of what exists is a directory of this machine.

    Hosts run with the Python and the working directory that the job was submitted with.
    """

    def __init__(
        self, directory: Path | None = None, *, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        """The record is the user's own without a directory; hosts that are deleted may save."""
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        self._directory = directory or Path(state) / "bert-jax" / "machines"
        self._grace_seconds = grace_seconds

    def render(self, attempt: Attempt) -> list[Request]:
        """Returns the hosts that would be started."""
        script = self._of(attempt) / "startup.sh"
        return [
            Request(
                what=f"host {worker} of {attempt.hosts}, a process of this machine",
                body=json.dumps(_told(attempt, worker, port=0), indent=1),
                command=f"bash {script}",
            )
            for worker in range(attempt.hosts)
        ]

    def create(self, attempt: Attempt) -> None:
        """Starts the hosts that do not live. Raises NotOurs if the name is another job's."""
        directory = self._of(attempt)
        record = directory / _RECORD
        if record.exists():
            found = _read(directory)
            if not _is_ours(found, Owner.of(attempt)):
                raise NotOurs(
                    f"{attempt.resource}: is a machine of {found['directory']}; allowed: another "
                    "--name"
                )
        else:
            with socket.create_server(("127.0.0.1", 0)) as asked:  # a free one
                port = asked.getsockname()[1]
            found = {
                "job": attempt.job.name,
                "directory": str(attempt.job.directory),
                "hosts": attempt.hosts,
                "port": port,
            }
            directory.mkdir(parents=True, exist_ok=True)
            write_whole(directory / "startup.sh", startup_script())
            write_whole(record, json.dumps(found))
        hosts = LocalMachine(directory)
        for worker in range(attempt.hosts):
            told = _told(attempt, worker, port=found["port"])
            told[machine.HOME] = str(directory / "home")
            hosts.start(
                worker,
                directory / "startup.sh",
                os.environ | told,
                cwd=attempt.job.working_directory,
            )

    def observe(self, attempt: Attempt) -> Observation:
        """Returns whether hosts live. Those of which none does have failed, or are done."""
        return self._observe(self._of(attempt), Owner.of(attempt))

    def delete(self, attempt: Attempt) -> None:
        """Ends the hosts, which may save first."""
        self._delete(self._of(attempt), Owner.of(attempt))

    def remove(self, existing: Existing) -> None:
        """Ends the hosts of something that exists, whoever made it."""
        self._delete(self._directory / existing.resource, existing.owner)

    def existing(self) -> list[Existing]:
        """Returns all machines of this user's jobs; those whose processes live count as billing."""
        found = []
        for record in sorted(self._directory.glob(f"*/{_RECORD}")):
            values = _read(record.parent)
            state = self._observe(record.parent, Owner(values["job"], values["directory"])).state
            found.append(
                Existing(
                    job=values["job"],
                    resource=record.parent.name,
                    zone="local",
                    state=state,
                    bills=state is State.ACTIVE,
                    directory=values["directory"],
                )
            )
        return found

    def _of(self, attempt: Attempt) -> Path:
        return self._directory / attempt.resource

    def _observe(self, directory: Path, owner: Owner) -> Observation:
        if not (directory / _RECORD).exists():
            return Observation(State.ABSENT)
        found = _read(directory)
        if not _is_ours(found, owner):
            return Observation(State.ABSENT)
        hosts = LocalMachine(directory)
        if any(hosts.alive(worker) for worker in range(found["hosts"])):
            return Observation(State.ACTIVE)
        return Observation(State.FAILED, "no process of it lives")

    def _delete(self, directory: Path, owner: Owner) -> None:
        if (directory / _RECORD).exists():  # else a creation was cut off before its first host
            found = _read(directory)
            if not _is_ours(found, owner):
                return
            hosts = range(found["hosts"])
            LocalMachine(directory).kill(hosts, grace_seconds=self._grace_seconds)
        shutil.rmtree(directory, ignore_errors=True)


def _told(attempt: Attempt, worker: int, *, port: int) -> dict[str, str]:
    told = machine.environment(attempt)
    told |= {machine.WORKER: str(worker), machine.PYTHON: sys.executable}
    if attempt.hosts > 1:
        told[machine.COORDINATOR] = f"127.0.0.1:{port}"
    return told


def _is_ours(found: Mapping[str, Any], owner: Owner) -> bool:
    return owner.has({JOB_LABEL: found["job"]}, found["directory"])


def _read(directory: Path) -> dict[str, Any]:
    return read_json_object(epath.Path(directory / _RECORD))
