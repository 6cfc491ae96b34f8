"""If a save fails on one process, it fails on all processes at once."""

import re
import resource
import signal
import time
from pathlib import Path

import pytest

from bert_jax.train.metrics_writer import read_metrics
from tests.processes.hosts import Host, Job, start
from tests.project import keyed

MANY = (
    "train.phases.0.steps=100000",
    "train.evaluation=null",
    "train.log_every=1000",
    "train.checkpoint.every=10",
)
# File size limit in bytes: below a process's shard of the moments, above its output.
FULL = 12_000
# In seconds; well below Orbax's timeouts of 300 s and 1200 s.
SOON = 120.0


def saved(run: Path) -> int:
    names = [path.name for path in (run / "checkpoints").glob("*")]
    return max((int(name) for name in names if name.isdecimal()), default=0)


def has_room(host: Host, *, limit: int | None) -> None:
    """Limits the file size of a process, as on a full disk; None removes the limit."""
    _, most = resource.prlimit(host.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(host.pid, resource.RLIMIT_FSIZE, (most if limit is None else limit, most))


def goes_on(job: Job, run: Path) -> None:
    """Waits for a new complete checkpoint."""
    last = saved(run)
    job.wait_until(lambda: saved(run) > last, timeout=SOON)


def test_training_continues_everywhere_if_one_cannot_save(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    more = (f"run_dir={run}", *MANY, "train.checkpoint.on_error=warn")
    with start("pretrain", config, *more, count=2, directory=tmp_path) as job:
        job.wait_until(lambda: saved(run) > 0)
        # These links make process 0 fail when it creates the directories of checkpoints.
        for step in range(10, 5000, 10):
            (run / "checkpoints" / f"{step}.orbax-checkpoint-tmp").symlink_to("nowhere")
        job.wait_until(lambda: "NOT SAVED (process 0 (" in job[0].err, timeout=SOON)
        goes_on(job, run)
        has_room(job[1], limit=FULL)
        job.wait_until(lambda: "NOT SAVED (process 1 (" in job[0].err, timeout=SOON)
        has_room(job[1], limit=None)
        goes_on(job, run)
        job[0].send(signal.SIGTERM)
        assert job.wait() == [3, 3], job.said()
    assert re.search(
        r"checkpoint \d+ was NOT SAVED \(process 1 \(\S+, pid \d+\): File too large\)\. "
        r"Last checkpoint: \d+\. Training continues\.\n",
        job[0].err,
    ), job.said()
    steps = [line["step"] for line in read_metrics(run, kind="train")]
    assert steps == sorted(set(steps))


@pytest.mark.chaos
def test_all_processes_stop_if_one_cannot_save(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with start("pretrain", config, f"run_dir={run}", *MANY, count=2, directory=tmp_path) as job:
        job.wait_until(lambda: saved(run) > 0)
        has_room(job[1], limit=FULL)
        began = time.monotonic()
        assert job.wait(timeout=SOON) == [1, 1], job.said()
        assert time.monotonic() - began < SOON
    for host in job:
        (line,) = (line for line in host.err.splitlines() if line.startswith("bert-jax: "))
        assert keyed(line).key == "checkpoint.not_saved"
        assert re.search(r"process 1 \(.*\): File too large\)", line)
