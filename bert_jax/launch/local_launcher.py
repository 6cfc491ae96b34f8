"""Launcher for this machine: hosts are processes that connect over loopback."""

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
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil
from etils import epath

from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object
from bert_jax.launch import launcher
from bert_jax.launch.assignment import host_variables, variables
from bert_jax.launch.bundle import startup_script
from bert_jax.launch.job import Attempt

_RECORD: Final = "machine.json"
_TPU_LIBRARY: Final = "TPU_LIBRARY_PATH"  # JAX sets it in its own process

# Time from SIGTERM to SIGKILL, about as long as Cloud TPU gives a VM that it deletes.
_GRACE_SECONDS: Final = 90.0
_KILLED_SECONDS: Final = 30.0

# The shell writes its process id to the file $0, then runs the script $1 in its place.
_START: Final = 'echo $$ > "$0" && exec bash "$1"'


class LocalMachine:
    """The host processes of one directory, visible to every process of this machine.

    A host is `startup.sh` with its descendants. It inherits the lock on its file ``worker-N.pid``
    from the process that starts it, and holds the lock until its end. The lock makes the host
    visible from its start, and prevents a second start.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def start(
        self, worker: int, script: Path, environment: Mapping[str, str], *, cwd: str | None
    ) -> None:
        """Starts a host that runs `script` with bash, unless the host is alive."""
        with self._lock_of(worker) as lock:
            if lock is None:
                return
            with (self._directory / f"worker-{worker}.log").open("ab") as log:
                started = subprocess.Popen(
                    ["sh", "-c", _START, str(self._file(worker)), str(script)],
                    env=dict(environment),
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(lock,),
                )
        threading.Thread(target=started.wait, daemon=True).start()  # leaves no zombie

    def alive(self, worker: int) -> bool:
        """Returns whether a host is alive."""
        with self._lock_of(worker) as lock:
            return lock is None

    def kill(self, workers: Iterable[int]) -> None:
        """Sends SIGTERM to hosts and waits, then sends SIGKILL to hosts and descendants."""
        hosts = [host for worker in workers if (host := self._process(worker)) is not None]
        family = _with_descendants(hosts)
        _signal(hosts, signal.SIGTERM, seconds=_GRACE_SECONDS)
        _signal([*family, *_with_descendants(hosts)], signal.SIGKILL, seconds=_KILLED_SECONDS)

    def _process(self, worker: int) -> psutil.Process | None:
        while self.alive(worker):
            with contextlib.suppress(OSError, ValueError, psutil.NoSuchProcess):
                return psutil.Process(int(self._file(worker).read_text()))
            time.sleep(0.01)  # the host has not written its id yet
        return None

    def _file(self, worker: int) -> Path:
        return self._directory / f"worker-{worker}.pid"

    @contextlib.contextmanager
    def _lock_of(self, worker: int) -> Iterator[int | None]:
        """Yields the lock of a host, or None if the live host holds it."""
        with self._file(worker).open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                lock = file.fileno()
            except BlockingIOError:
                lock = None
            yield lock


def _with_descendants(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    found = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [process, *process.children(recursive=True)]
    return found


def _signal(processes: Iterable[psutil.Process], number: signal.Signals, *, seconds: float) -> None:
    """Sends a signal and waits until all processes have ended or are zombies."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
    end = time.monotonic() + seconds
    while any(map(_is_alive, processes)) and time.monotonic() < end:
        time.sleep(0.02)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class LocalLauncher:
    """`Launcher` for `on: local`. Records machines in the user's state directory.

    Hosts run in the submitter's working directory, with its Python unless `submit.lock` is set.
    """

    def __init__(self) -> None:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        self._directory = Path(state) / "bert-jax" / "machines"

    def render(self, attempt: Attempt) -> list[launcher.Request]:
        """Returns the hosts that would be started."""
        script = self._directory / attempt.resource / "startup.sh"
        return [
            launcher.Request(
                what=f"host {worker} of {attempt.hosts}, a process of this machine",
                body=json.dumps(_process_variables(attempt, worker, port=0), indent=1),
                command=f"bash {script}",
            )
            for worker in range(attempt.hosts)
        ]

    def create(self, attempt: Attempt) -> None:
        """Starts the hosts that are not alive. Raises NotOurs if another job has the name."""
        directory = self._directory / attempt.resource
        script, owner = directory / "startup.sh", launcher.Owner.of(attempt)
        found = _read(directory)
        if found is None:
            with socket.create_server(("127.0.0.1", 0)) as server:
                port = server.getsockname()[1]  # a free port
            found = {**owner._asdict(), "hosts": attempt.hosts, "port": port}
            directory.mkdir(parents=True, exist_ok=True)
            write_whole(script, startup_script())
            write_whole(directory / _RECORD, json.dumps(found))
        else:
            launcher.require_ours(attempt, _owner(found), attempt.resource, where="this machine")
        hosts = LocalMachine(directory)
        for worker in range(attempt.hosts):
            values = os.environ | _process_variables(attempt, worker, port=found["port"])
            if attempt.job.submit.lock is None:
                values |= variables(home=directory / "home")
            else:  # attempts share the installed environment, with its own libtpu
                values.pop(_TPU_LIBRARY, None)
            hosts.start(worker, script, values, cwd=attempt.job.working_directory)

    def observe(self, attempt: Attempt) -> launcher.Observation:
        """Returns ACTIVE while a host is alive, otherwise FAILED, even after success."""
        return self._observe(attempt.resource, launcher.Owner.of(attempt))

    def delete(self, attempt: Attempt) -> None:
        """Ends the hosts; gives the run time to save."""
        self._delete(attempt.resource, launcher.Owner.of(attempt))

    def remove(self, existing: launcher.Existing) -> None:
        """Ends the hosts of machines that `existing()` returned."""
        self._delete(existing.resource, existing.owner)

    def existing(self) -> list[launcher.Existing]:
        """Returns all machines of this user's jobs; live processes count as billing."""
        found = []
        for directory in sorted(path.parent for path in self._directory.glob(f"*/{_RECORD}")):
            if (record := _read(directory)) is not None:
                state = self._observe(directory.name, _owner(record)).state
                bills = state is launcher.State.ACTIVE
                found.append(
                    launcher.Existing(_owner(record), directory.name, "local", state, bills)
                )
        return found

    def _observe(self, resource: str, owner: launcher.Owner) -> launcher.Observation:
        directory = self._directory / resource
        found = _read(directory)
        if found is None or not _owner(found).is_job(owner):
            return launcher.Observation(launcher.State.ABSENT)
        hosts = LocalMachine(directory)
        if any(hosts.alive(worker) for worker in range(found["hosts"])):
            return launcher.Observation(launcher.State.ACTIVE)
        return launcher.Observation(launcher.State.FAILED, "no process is running")

    def _delete(self, resource: str, owner: launcher.Owner) -> None:
        directory = self._directory / resource
        found = _read(directory)
        if found is not None:  # without a record, `create` has started no host
            if not _owner(found).is_job(owner):
                return
            LocalMachine(directory).kill(range(found["hosts"]))
        shutil.rmtree(directory, ignore_errors=True)


def _process_variables(attempt: Attempt, worker: int, *, port: int) -> dict[str, str]:
    # Without a Python, `startup.sh` installs the lock.
    python = "" if attempt.job.submit.lock else sys.executable
    values = host_variables(attempt) | variables(worker=worker, python=python)
    if attempt.hosts > 1:
        values |= variables(coordinator=f"127.0.0.1:{port}")
    return values


def _owner(found: Mapping[str, Any]) -> launcher.Owner:
    return launcher.Owner(found["job"], found["directory"])


def _read(directory: Path) -> dict[str, Any] | None:
    """Returns the record of a machine, or None if it does not exist."""
    record = epath.Path(directory / _RECORD)
    return read_json_object(record) if record.exists() else None
