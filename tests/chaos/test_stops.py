"""After SIGTERM to one of four hosts, all save the same step, exit with 3 and lose no data."""

import dataclasses
import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any, Final

import pytest

from bert_jax.runs.open_checkpoints import open_checkpoints
from bert_jax.train.metrics_writer import METRICS, read_metrics
from tests.processes.hosts import Job, start
from tests.project import DROPOUT, project_config, write_config

STOPPED: Final = (
    r"(?:stopped at step (\d+), saved|SIGTERM at step (\d+), saved|before the first step\.)"
)


@dataclasses.dataclass(frozen=True)
class Stop:
    """Effect of a signal to one process."""

    host: int  # index of the host that got the signal
    seconds: float  # seconds until all processes ended
    step: int  # saved step


def stop_at_random(config: Path, run_dir: Path, *, count: int, random_: random.Random) -> Stop:
    """Starts or resumes a run, and sends SIGTERM to one process.

    The signal comes up to five seconds after the first new entry in metrics.jsonl, so in a step, an
    evaluation or a save.
    """
    before = _last_step(run_dir)
    directory = run_dir.parent / f"{run_dir.name}.out"
    with start("pretrain", config, f"run_dir={run_dir}", count=count, directory=directory) as job:
        job.wait_until(lambda: _last_step(run_dir) > before, timeout=900)
        time.sleep(random_.uniform(0, 5))
        host = random_.randrange(count)
        sent = time.monotonic()
        job[host].send(signal.SIGTERM)
        codes = job.wait(timeout=900)
        assert codes == [3] * count, job.said()
        seconds = max(each.ended_at or 0.0 for each in job) - sent
        return Stop(host, seconds, _saved(job, run_dir))


def _saved(job: Job, run_dir: Path) -> int:
    """Returns the step of the newest checkpoint. Asserts that process 0 printed this step."""
    said = re.search(STOPPED, job[0].out + job[0].err)
    assert said, job.said()
    with open_checkpoints(run_dir) as checkpoints:
        step = checkpoints.on_disk.steps()[-1]
        assert step == int(said[1] or said[2] or step), job.said()
        assert checkpoints.on_disk.problem(step) is None
    return step


def _last_step(run_dir: Path) -> int:
    """Returns the last step in metrics.jsonl, or 0."""
    if not (run_dir / METRICS).exists():
        return 0
    return max((line["step"] for line in read_metrics(run_dir, kind="train")), default=0)


IN_TIME = 15.0  # seconds


@pytest.mark.chaos
def test_signal_to_one_host_stops_all_four(
    project: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """CHAOS_STOPS, CHAOS_SEED and CHAOS_STOP_SECONDS set stops, seed and time limit."""
    values: dict[str, Any] = project_config(project)
    values["model"]["architecture"] |= DROPOUT
    values["mesh"] = {"platform": "cpu"}
    values["train"] |= {
        "phases": [values["train"]["phases"][0] | {"steps": 1_000_000}],
        "log_every": 1,
        "evaluation": {"every": 50, "batch_size": 4},  # takes a third of the time
        "checkpoint": {"every": 40, "keep_last": 3},
    }
    config = write_config(tmp_path / "run.yaml", values)
    random_ = random.Random(os.environ.get("CHAOS_SEED", "0"))
    run_dir, stops = tmp_path / "run", list[Stop]()
    for _ in range(int(os.environ.get("CHAOS_STOPS", "20"))):
        stops.append(stop_at_random(config, run_dir, count=4, random_=random_))
        with capsys.disabled():
            print(f"\n{stops[-1]}")
    last = stops[-1].step
    reported = [line["step"] for line in read_metrics(run_dir, kind="train")]
    assert reported == list(range(1, last + 1))
    evaluated = [line["step"] for line in read_metrics(run_dir, kind="validation")]
    due = list(range(50, last + 1, 50))
    assert evaluated in (due, [step for step in due if step < last])  # or made up later
    limit = float(os.environ.get("CHAOS_STOP_SECONDS", IN_TIME))
    assert max(stop.seconds for stop in stops) < limit
