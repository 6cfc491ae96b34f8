"""The whole path on this machine: hosts are killed in mid-run, and the job comes to its end.

submit → bundle → hosts → startup script → agent → pretrain, in processes as a user starts them.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.launch.find import find_job
from bert_jax.launch.local import LocalLauncher
from bert_jax.launch.local_machine import LocalMachine
from bert_jax.launch.supervisor_state import read_state
from bert_jax.runs.directory import open_run
from bert_jax.runs.parameters import load_params
from tests.processes.conftest import server  # noqa: F401
from tests.processes.hosts import ForkServer
from tests.project import ROOT, environment, project_config, write_config

TIMEOUT = 600.0  # nothing measured: a machine that does ten other things
STEPS = 24
HOSTS = 2


@pytest.fixture
def values(project: Path) -> dict[str, Any]:
    """One phase, saved often."""
    values = project_config(project)
    values["mesh"] = {"platform": "cpu", "simulated_devices": 1}
    values["train"] |= {
        "phases": [values["train"]["phases"][0] | {"steps": STEPS}],
        "log_every": 4,
        "evaluation": None,
        "checkpoint": {"every": 4},
    }
    values["submit"] = {"poll_seconds": 0.2}
    return values


def params_of(run_dir: Path) -> Any:
    return jax.device_get(load_params(open_run(run_dir), checkpoint="last").params)


@contextlib.contextmanager
def submitted(*arguments: object, state: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the command line; what it started is gone at the end, whatever happens."""
    launcher = LocalLauncher(state / "bert-jax" / "machines", grace_seconds=0)
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "bert_jax.cli", *map(str, arguments)],
            cwd=ROOT,
            env=environment() | {"XDG_STATE_HOME": str(state)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()
            for existing in launcher.existing():
                launcher.remove(existing)


def wait_until(condition: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.02)


@pytest.mark.chaos
def test_hosts_killed_in_mid_run_are_made_again_and_end_as_if_nothing_had_been(
    server: ForkServer,  # noqa: F811
    values: dict[str, Any],
    tmp_path: Path,
) -> None:
    config, undisturbed = write_config(tmp_path / "run.yaml", values), tmp_path / "undisturbed"
    with server.start(
        "pretrain", config, f"run_dir={undisturbed}", count=HOSTS, directory=tmp_path
    ) as job:
        assert job.wait() == [0] * HOSTS, job.said()

    bucket, state, log = tmp_path / "bucket", tmp_path / "state", tmp_path / "submit.log"
    run_dir = tmp_path / "runs" / "Taken"
    launcher = LocalLauncher(state / "bert-jax" / "machines")
    options = ("--on", "local", "--hosts", HOSTS, "--bucket", bucket, "--yes", "--watch")
    with submitted(
        "submit", config, f"run_dir={run_dir}", *options, state=state, log=log
    ) as process:
        saved = run_dir / "checkpoints"
        wait_until(lambda: any((saved / str(step)).exists() for step in range(4, STEPS)), log)
        files = find_job("taken", bucket=str(bucket))
        machines = LocalMachine(state / "bert-jax" / "machines" / "taken-1")
        machines.kill(range(HOSTS), grace_seconds=0)  # as the kernel does that is out of memory
        assert process.wait(TIMEOUT) == 0, log.read_text()
        assert launcher.existing() == []

    found = read_state(files)
    assert [record.end for record in found.attempts] == ["broken", "over"], log.read_text()
    assert found.outcome == "done"
    assert "resuming at step" in files.log(2, 0).read_text()
    jax.tree.map(np.testing.assert_array_equal, params_of(run_dir), params_of(undisturbed))
    assert not _processes_of(state)


def _processes_of(state: Path) -> list[str]:
    """Command lines and environments that name a directory: whatever a job has left running."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(state).encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text())
    return found
