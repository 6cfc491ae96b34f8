"""This machine as a cloud: hosts are processes on loopback, and everything else is as elsewhere."""

import json
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object
from bert_jax.launch import machine
from bert_jax.launch.bundle import startup_script
from bert_jax.launch.job import Attempt
from bert_jax.launch.launcher import Existing, Observation, Request, State
from bert_jax.launch.local_machine import GRACE_SECONDS, LocalMachine

_RECORD = "machine.json"


def machines_directory() -> Path:
    """Returns where this user's local machines are known."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "bert-jax" / "machines"


class LocalLauncher:
    """`Launcher` of `on: local`. Its record of what exists is a directory of this machine.

    Hosts run with the Python and the working directory that the job was submitted with.
    """

    def __init__(
        self, directory: Path | None = None, *, grace_seconds: float = GRACE_SECONDS
    ) -> None:
        """Makes nothing.

        Args:
            directory: of the record; None for the user's own.
            grace_seconds: that hosts have to save when they are deleted.
        """
        self._directory = directory or machines_directory()
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
        """Starts the hosts that do not live.

        Raises:
            UserError: the name is another job's.
        """
        directory = self._of(attempt)
        record = directory / _RECORD
        if record.exists():
            found = _read(directory)
            if found["directory"] != str(attempt.job.directory):
                raise UserError(
                    f"{attempt.resource}: is a machine of {found['directory']}; allowed: another "
                    "--name"
                )
        else:
            found = {
                "job": attempt.job.name,
                "directory": str(attempt.job.directory),
                "hosts": attempt.hosts,
                "port": _free_port(),
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
        return self._observe(self._of(attempt))

    def delete(self, attempt: Attempt) -> None:
        """Ends the hosts, which may save first."""
        self._delete(self._of(attempt))

    def remove(self, existing: Existing) -> None:
        """Ends the hosts of something that exists, whoever made it."""
        self._delete(self._directory / existing.resource)

    def existing(self) -> list[Existing]:
        """Returns all machines of this user's jobs; those whose processes live count as billing."""
        found = []
        for record in sorted(self._directory.glob(f"*/{_RECORD}")):
            values = _read(record.parent)
            state = self._observe(record.parent).state
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

    def _observe(self, directory: Path) -> Observation:
        if not (directory / _RECORD).exists():
            return Observation(State.ABSENT)
        hosts = LocalMachine(directory)
        if any(hosts.alive(worker) for worker in range(_read(directory)["hosts"])):
            return Observation(State.ACTIVE)
        return Observation(State.FAILED, "no process of it lives")

    def _delete(self, directory: Path) -> None:
        if (directory / _RECORD).exists():
            hosts = range(_read(directory)["hosts"])
            LocalMachine(directory).kill(hosts, grace_seconds=self._grace_seconds)
        shutil.rmtree(directory, ignore_errors=True)


def _told(attempt: Attempt, worker: int, *, port: int) -> dict[str, str]:
    """Returns what one host is told."""
    told = machine.environment(attempt)
    told |= {machine.WORKER: str(worker), machine.PYTHON: sys.executable}
    if attempt.hosts > 1:
        told[machine.COORDINATOR] = f"127.0.0.1:{port}"
    return told


def _read(directory: Path) -> dict[str, Any]:
    return read_json_object(epath.Path(directory / _RECORD))


def _free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]
