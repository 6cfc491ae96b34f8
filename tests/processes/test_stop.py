"""Signals to one or all processes of a job."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes.hosts import ForkServer, Job
from tests.project import ROOT, environment

ENDLESS = (
    "train.phases.0.steps=100000",
    "train.evaluation=null",
    "train.checkpoint.every=100000",
)


def steps_saved(run_dir: Path) -> set[str]:
    return {path.name for path in (run_dir / "checkpoints").iterdir()}


def until_it_trains(job: Job, run_dir: Path) -> None:
    metrics = run_dir / "metrics.jsonl"
    job.wait_until(lambda: metrics.exists() and metrics.read_text().count("\n") > 3)


@pytest.mark.parametrize(("number", "to"), [(signal.SIGTERM, [1]), (signal.SIGINT, [0, 1])])
def test_a_signal_to_any_process_saves_one_step_everywhere(
    server: ForkServer, config: Path, tmp_path: Path, number: signal.Signals, to: list[int]
) -> None:
    run = tmp_path / "run"
    with server.start(
        "pretrain", config, f"run_dir={run}", *ENDLESS, count=2, directory=tmp_path
    ) as job:
        until_it_trains(job, run)
        for index in to:
            job[index].send(number)
        time.sleep(0.02)
        job[to[0]].send(number)  # as a launcher passes on what its process group got
        assert job.wait() == [3, 3], job.said()
    stopped = re.search(r"stopped at step (\d+), saved", job[0].out)
    assert stopped, job.said()
    assert steps_saved(run) == {stopped[1]}


def test_a_signal_before_the_first_step_ends_all_with_nothing_to_save(
    server: ForkServer, config: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with server.start("pretrain", config, f"run_dir={run}", count=2, directory=tmp_path) as job:
        job.wait_until(lambda: all("Gloo" in host.out for host in job))  # they have joined
        job[1].send(signal.SIGTERM)
        assert job.wait() == [3, 3], job.said()
    for host in job:
        assert "bert-jax: stopped by SIGTERM before the first step: nothing had to be saved" in (
            host.err
        )


def test_a_signal_in_the_first_second_ends_with_one_line(config: Path, tmp_path: Path) -> None:
    """Of the program as a user starts it, while it still imports."""
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
    assert said == ["bert-jax: stopped by SIGTERM before the first step: nothing had to be saved\n"]
    assert not (tmp_path / "run").exists()
    process.stderr.close()
