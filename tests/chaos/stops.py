"""Stops real `pretrain` runs by signals at random instants, and starts them again."""

import dataclasses
import random
import re
import signal
import time
from pathlib import Path
from typing import Final

from bert_jax.runs.checkpoints import open_checkpoints
from bert_jax.train.writer import METRICS, read_metrics
from tests.processes.hosts import Job, start

STOPPED: Final = (
    r"(?:stopped at step (\d+), saved|at step (\d+): its checkpoint stands|before the first step: )"
)


@dataclasses.dataclass(frozen=True)
class Stop:
    """What a signal to one process led to."""

    host: int  # that got it
    seconds: float  # until all had ended
    step: int  # saved


def stop_at_random(config: Path, run_dir: Path, *, count: int, random_: random.Random) -> Stop:
    """Starts a run, or goes on with it, and sends SIGTERM to one process.

    The instant lies up to five seconds after the first report of this start: in a step, in an
    evaluation or in a save.
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
    """The newest step there is, which is whole, and the one saved if process 0 names one."""
    said = re.search(STOPPED, job[0].out + job[0].err)
    assert said, job.said()
    with open_checkpoints(run_dir) as checkpoints:
        step = checkpoints.on_disk.steps()[-1]
        assert step == int(said[1] or said[2] or step), job.said()
        assert checkpoints.on_disk.problem(step) is None
    return step


def _last_step(run_dir: Path) -> int:
    """The last step that metrics.jsonl tells of."""
    if not (run_dir / METRICS).exists():
        return 0
    return max((line["step"] for line in read_metrics(run_dir, kind="train")), default=0)
