"""Signals to one or all processes of a job."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes.hosts import Job, start
from tests.project import ROOT, environment

ENDLESS = (
    "train.phases.0.steps=100000",
    "train.evaluation=null",
    "train.checkpoint.every=100000",
)
STOPPED_AT_ONCE = "bert-jax: stopped by SIGTERM before the first step. Nothing to save."


def steps_saved(run_dir: Path) -> set[str]:
    return {path.name for path in (run_dir / "checkpoints").iterdir()}


def until_it_trains(job: Job, run_dir: Path) -> None:
    metrics = run_dir / "metrics.jsonl"
    job.wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 3)


def children(pid: int) -> list[int]:
    """The child processes of a process: loader workers and their fork server."""
    listed = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in listed for child in path.read_text().split()]


@pytest.mark.parametrize(
    ("number", "to"),
    [(signal.SIGTERM, [1]), pytest.param(signal.SIGINT, [0, 1], marks=pytest.mark.chaos)],
)
def test_a_signal_to_any_process_saves_one_step_everywhere(
    config: Path, tmp_path: Path, number: signal.Signals, to: list[int]
) -> None:
    run = tmp_path / "run"
    with start("pretrain", config, f"run_dir={run}", *ENDLESS, count=2, directory=tmp_path) as job:
        until_it_trains(job, run)
        for index in to:
            job[index].send(number)
        time.sleep(0.02)
        job[to[0]].send(number)  # as when a launcher forwards its signal
        assert job.wait() == [3, 3], job.said()
    stopped = re.search(r"stopped at step (\d+), saved", job[0].out)
    assert stopped, job.said()
    assert steps_saved(run) == {stopped[1]}


def test_the_same_command_resumes_a_run_that_began_with_a_model(
    config: Path, alone: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    command = ("pretrain", config, f"run_dir={run}", *ENDLESS, "--init-from", alone)
    with start(*command, count=2, directory=tmp_path) as job:
        until_it_trains(job, run)
        job[1].send(signal.SIGTERM)
        assert job.wait() == [3, 3], job.said()
    (step,) = steps_saved(run)
    more = (f"train.phases.0.steps={int(step) + 2}", "train.checkpoint.keep_last=1")
    with start(*command, *more, count=2, directory=tmp_path) as job:
        assert job.wait() == [0, 0], job.said()
    assert f"resuming at step {step} of {int(step) + 2}" in job[0].out
    other = ("pretrain", config, f"run_dir={run}", "--init-from", run)
    with start(*other, count=2, directory=tmp_path) as job:
        assert job.wait() == [2, 2], job.said()
    assert all("[init_from.other_start]" in host.err for host in job)


def test_a_signal_before_the_first_step_ends_all_without_saving(
    config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with start("pretrain", config, f"run_dir={run}", count=2, directory=tmp_path) as job:
        job.wait_until(lambda: (run / ".lock").exists())  # the processes have joined
        job[1].send(signal.SIGTERM)
        assert job.wait() == [3, 3], job.said()
    for host in job:
        assert STOPPED_AT_ONCE in host.err


def test_a_signal_before_the_meeting_ends_all(config: Path, tmp_path: Path) -> None:
    with start(
        *("pretrain", config, f"run_dir={tmp_path / 'run'}"),
        program=("-m", "tests.processes.signalled_early", 1),
        count=3,
        directory=tmp_path,
    ) as job:
        assert job.wait(timeout=60) == [3, 3, 3], job.said()
    for host in job:
        assert host.err.splitlines()[-1] == STOPPED_AT_ONCE
    assert not (tmp_path / "run").exists()


def test_a_signal_to_the_group_stops_a_run_with_workers(config: Path, tmp_path: Path) -> None:
    """As with Ctrl-C in a terminal, the loader's workers get the signal too."""
    run = tmp_path / "run"
    with start(
        "pretrain",
        config,
        f"run_dir={run}",
        *ENDLESS,
        "loader.workers=1",
        count=1,
        directory=tmp_path,
    ) as job:
        until_it_trains(job, run)
        assert children(job[0].pid)
        os.killpg(job[0].pid, signal.SIGINT)
        assert job.wait() == [3], job.said()
    assert "Traceback" not in job[0].err
    stopped = re.search(r"stopped at step (\d+), saved", job[0].out)
    assert stopped, job.said()
    assert steps_saved(run) == {stopped[1]}


def test_a_signal_ends_a_run_during_compilation(config: Path, tmp_path: Path) -> None:
    """Compilation takes long, because 8 layers are unrolled."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "bert_jax.cli", "pretrain", str(config)),
            *(f"run_dir={tmp_path / 'run'}", "mesh.simulated_devices=1"),
            *("model.architecture.num_hidden_layers=8", "model.execution.unroll=8"),
        ],
        cwd=ROOT,
        env=environment() | {"JAX_LOG_COMPILES": "1", "JAX_ENABLE_COMPILATION_CACHE": "false"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if re.search(r"Finished jaxpr to MLIR module conversion \S*step", line):
            break
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    said = process.stderr.read()
    assert process.wait() == 3
    assert not re.search(r"Finished XLA compilation of \S*step", said)
    assert STOPPED_AT_ONCE in said
    process.stderr.close()


def test_a_signal_in_the_first_second_ends_with_one_line(config: Path, tmp_path: Path) -> None:
    """The process starts as a user starts it. The signal comes during its imports."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-X", "importtime", "-m", "bert_jax.cli", "pretrain"),
            *(str(config), f"run_dir={tmp_path / 'run'}"),
        ],
        cwd=ROOT,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "bert_jax.verbs" in line or "numpy" in line:
            break
    process.send_signal(signal.SIGTERM)
    said = [line for line in process.stderr if line.startswith("bert-jax: ")]
    assert process.wait() == 3
    assert said == [f"{STOPPED_AT_ONCE}\n"]
    assert not (tmp_path / "run").exists()
    process.stderr.close()
