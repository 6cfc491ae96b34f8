"""The whole path on this machine: hosts are killed in mid-run, and the job comes to its end.

submit → bundle → hosts → startup script → agent → pretrain, in processes as a user starts them.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_jax.launch.job import find_job
from bert_jax.launch.local import LocalLauncher, LocalMachine
from tests.launch.interrupted import (
    STEPS,
    TIMEOUT,
    assert_done_as_undisturbed,
    processes_told,
    run_undisturbed,
    saved_often,
    wait_until,
)
from tests.project import ROOT, environment, write_config

HOSTS = 2


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


@pytest.mark.chaos
def test_hosts_killed_in_mid_run_are_made_again_and_end_as_if_nothing_had_been(
    project: Path,
    tmp_path: Path,
) -> None:
    values = saved_often(project)
    undisturbed = run_undisturbed(values, tmp_path, hosts=HOSTS)
    config = write_config(tmp_path / "run.yaml", values | {"submit": {"poll_seconds": 0.2}})

    bucket, state, log = tmp_path / "bucket", tmp_path / "state", tmp_path / "submit.log"
    run_dir = tmp_path / "runs" / "Taken"
    launcher = LocalLauncher(state / "bert-jax" / "machines")
    options = ("--on", "local", "--hosts", HOSTS, "--bucket", bucket, "--yes", "--watch")
    with submitted(
        "submit", config, f"run_dir={run_dir}", *options, state=state, log=log
    ) as process:
        saved = run_dir / "checkpoints"
        wait_until(
            lambda: any((saved / str(step)).exists() for step in range(4, STEPS)), log.read_text
        )
        files = find_job("taken", bucket=str(bucket))
        machines = LocalMachine(state / "bert-jax" / "machines" / "taken-1")
        machines.kill(range(HOSTS), grace_seconds=0)  # as the kernel does that is out of memory
        assert process.wait(TIMEOUT) == 0, log.read_text()
        assert launcher.existing() == []

    said = log.read_text()
    assert_done_as_undisturbed(files, ["broken", "over"], run_dir, undisturbed, said=said)
    assert "resuming at step" in files.log(2, 0).read_text()
    assert not processes_told(str(state))
