"""A job that is killed between two saves in the run directory goes on from its hosts' disks."""

import re
from pathlib import Path

import pytest

from bert_jax.train.example_log import read_example_log
from tests.processes.hosts import Job, start
from tests.processes.test_other_hosts import last_step

pytestmark = pytest.mark.chaos


def resumed_at(job: Job) -> int:
    found = re.search(r"resuming at step (\d+) of", job[0].out)
    assert found, job.said()
    return int(found[1])


def test_what_all_hosts_have_counts_and_a_host_without_a_whole_one_is_named(
    config: Path, tmp_path: Path
) -> None:
    run, local = tmp_path / "run", tmp_path / "local"
    more = (
        "train.phases.0.steps=400",
        "train.evaluation=null",
        "train.example_log=true",
        "train.checkpoint.every=20",
        f"train.checkpoint.local={{directory: {local}, every: 3}}",
    )

    def started() -> Job:
        directory = tmp_path / "out"
        return start("pretrain", config, f"run_dir={run}", *more, count=2, directory=directory)

    def in_the_run_directory() -> int:
        names = [path.name for path in (run / "checkpoints").iterdir()]
        return max(int(name) for name in names if name.isdecimal())

    with started() as job:
        job.wait_until(lambda: last_step(run) >= 36)
        job.kill()
    with started() as job:
        reached = last_step(run) + 6
        job.wait_until(lambda: last_step(run) >= reached and "resuming" in job[0].out)
        job.kill()
        first = resumed_at(job)
        assert first > 20
        assert first % 3 == 0 or first % 20 == 0
        assert "WARNING" not in job[0].err
    while in_the_run_directory() % 20 or last_step(run) < in_the_run_directory() + 8:
        with started() as job:  # the kill fell on a save there: a few steps on
            reached = in_the_run_directory() + 12
            job.wait_until(lambda reached=reached: last_step(run) >= reached)
            job.kill()
    (lost,) = local.glob("*/process_1")
    for pieces in lost.glob("*/pieces.npz"):
        pieces.write_bytes(b"")
    last = in_the_run_directory()
    with started() as job:
        assert job.wait() == [0, 0], job.said()
        assert resumed_at(job) == last
    assert f"{local}: no checkpoint newer than {last} that every host has whole" in job[0].err
    assert "process 1: none" in job[0].err
    assert f"{lost}: NOT WHOLE: checkpoint " in job[1].err  # it says so itself
    assert "NOT WHOLE" not in job[0].err
    assert sorted(read_example_log(run)) == list(range(1, 401))
