"""Starts N real processes of one command line, and reports how each ends.

with start("pretrain", config, f"run_dir={run}", count=2, directory=tmp_path) as job:
    job[1].send(signal.SIGTERM)
    assert job.wait() == [3, 3], job.said()
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.project import environment as everything
from tests.warm import start_warm

# In seconds; long enough for a busy machine.
TIMEOUT = 300.0


class Host:
    """One process of a job: the command line on one host."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], *, index: int, files: Path
    ) -> None:
        """Starts Python; its output goes to ``<files>.out`` and ``.err``."""
        self.index = index
        self._out, self._err = (files.with_name(f"{files.name}.{kind}") for kind in ("out", "err"))
        self.ended = threading.Event()
        self.code: int | None = None
        self.ended_at: float | None = None  # of time.monotonic()
        self._process = start_warm(arguments, environment, output=self._out, errors=self._err)
        assert self._process.pid is not None
        self.pid = self._process.pid
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        self._process.join()
        self.code, self.ended_at = self._process.exitcode, time.monotonic()
        self.ended.set()

    @property
    def out(self) -> str:
        """Standard output so far."""
        return self._out.read_text(errors="replace") if self._out.exists() else ""

    @property
    def err(self) -> str:
        """Standard error so far."""
        return self._err.read_text(errors="replace") if self._err.exists() else ""

    def send(self, number: signal.Signals) -> None:
        """Sends the process a signal if it is still running."""
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            if not self.ended.is_set():
                os.kill(self.pid, number)

    def wait(self, timeout: float = TIMEOUT) -> int:
        """Returns the exit code, or minus the number of the signal that killed the process."""
        assert self.ended.wait(timeout), f"process {self.index} still runs\n{self.out}\n{self.err}"
        assert self.code is not None
        return self.code


class Job(Sequence[Host]):
    """The processes of one job. Leaving the context kills processes that still run."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts

    def __getitem__(self, index: Any) -> Any:
        return self._hosts[index]

    def __len__(self) -> int:
        return len(self._hosts)

    def __iter__(self) -> Iterator[Host]:
        return iter(self._hosts)

    def wait(self, timeout: float = TIMEOUT) -> list[int]:
        """Returns the exit code of each process."""
        deadline = time.monotonic() + timeout
        return [host.wait(max(0.0, deadline - time.monotonic())) for host in self._hosts]

    def wait_until(self, condition: Callable[[], bool], timeout: float = TIMEOUT) -> None:
        """Waits for a condition. Fails if all processes end first."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert not all(host.ended.is_set() for host in self._hosts), self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.01)

    def said(self) -> str:
        """The output of all processes, for a failed assertion."""
        return "\n".join(
            f"--- process {host.index} (exit code {host.code})\n{host.out}{host.err}"
            for host in self._hosts
        )

    def kill(self) -> None:
        """Sends SIGKILL to all running processes, even stopped ones."""
        for host in self._hosts:
            host.send(signal.SIGKILL)
        for host in self._hosts:
            host.ended.wait(TIMEOUT)

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *raised: object) -> None:
        self.kill()


_NUMBERS = itertools.count()
COMMAND_LINE = ("-m", "bert_jax.cli")


def start(
    *arguments: object,
    count: int,
    directory: Path,
    devices: int = 1,
    each: Sequence[Sequence[str]] | None = None,
    environment: Mapping[str, str | None] | None = None,
    program: Sequence[object] = COMMAND_LINE,
) -> Job:
    """Starts `count` processes of a command line that find each other on loopback.

    `each` has the extra arguments of each process. None in `environment` removes a variable.
    """
    port, run = free_port(), next(_NUMBERS)
    return Job(
        [
            start_one(
                *arguments,
                *joining(index, count=count, port=port, devices=devices),
                *(each[index] if each else ()),
                index=index,
                directory=directory / f"job{run}",
                environment=environment,
                program=program,
            )
            for index in range(count)
        ]
    )


def start_one(
    *arguments: object,
    index: int = 0,
    directory: Path,
    environment: Mapping[str, str | None] | None = None,
    program: Sequence[object] = COMMAND_LINE,
) -> Host:
    """Starts one process with exactly these arguments."""
    directory.mkdir(parents=True, exist_ok=True)
    number = next(_NUMBERS)
    changed = {**everything(), **(environment or {})}
    return Host(
        [str(argument) for argument in (*program, *arguments)],
        {name: value for name, value in changed.items() if value is not None},
        index=index,
        files=directory / f"{number}.{index}",
    )


def joining(index: int, *, count: int, port: int, devices: int = 1) -> list[str]:
    """Returns the overrides by which a process finds the others."""
    simulated = [f"mesh.simulated_devices={devices}"]
    if count == 1:
        return simulated
    return [
        *simulated,
        "mesh.distributed.enabled=true",
        f"mesh.distributed.coordinator_address=127.0.0.1:{port}",
        f"mesh.distributed.process_count={count}",
        f"mesh.distributed.process_index={index}",
    ]


def free_port() -> int:
    """Returns a free TCP port on loopback."""
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]
