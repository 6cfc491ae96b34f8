"""Signals to one or all processes of a job."""

from __future__ import annotations

import re
import signal
import time
from pathlib import Path

import pytest

from tests.processes.hosts import ForkServer, Job

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
