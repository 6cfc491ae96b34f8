"""A run that is killed many times gives the same results, bit for bit, as an undisturbed run."""

import dataclasses
import os
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from bert_jax.train.time_account import read_goodput
from tests.chaos.reference import Reference
from tests.processes import hosts
from tests.processes.hosts import Job
from tests.project import DROPOUT, project_config, write_config

EVERY: Final = 3  # steps between two checkpoints
KILLS_A_RUN: Final = 8  # maximum number of kills; then the run may finish
SLOW: Final = 3600.0  # time limit of a run in seconds, for a busy machine


@dataclasses.dataclass(frozen=True)
class Battlefield:
    """A run to be killed, and the undisturbed run to compare it with."""

    config: Path
    count: int  # number of processes
    directory: Path
    reference: Reference
    seconds: float  # duration of an undisturbed run
    at_last: Sequence[str] = ()  # settings of the last start, which is not killed

    def start(self, run_dir: Path, *, last: bool) -> Job:
        """Starts or resumes the run."""
        settings = self.at_last if last else ()
        return start(self.config, run_dir, self.count, settings=settings)


@dataclasses.dataclass
class Tally:
    """Counts of kills and of equal checkpoints."""

    count: int  # number of processes
    runs: int = 0
    kills: int = 0
    checkpoints: int = 0  # number of checkpoints compared after a kill


def start(config: Path, run_dir: Path, count: int, *, settings: Sequence[str] = ()) -> Job:
    """Starts a run of `count` processes."""
    directory = run_dir.parent / f"{run_dir.name}.out"
    return hosts.start(
        "pretrain", config, f"run_dir={run_dir}", *settings, count=count, directory=directory
    )


def undisturbed(config: Path, directory: Path, *, count: int) -> Battlefield:
    """Runs twice without a kill. The first run fills the compilation cache, the second is timed."""
    first, second = (directory / f"{name}{count}" for name in ("first", "undisturbed"))
    run_whole(config, first, count)
    seconds = run_whole(config, second, count)
    reference = Reference(second)
    reference.check(first)
    return Battlefield(config, count, directory, reference, seconds)


def run_whole(config: Path, run_dir: Path, count: int) -> float:
    """Runs to the end and returns the duration in seconds."""
    began = time.monotonic()
    with start(config, run_dir, count) as job:
        assert job.wait(timeout=SLOW) == [0] * count, job.said()
    return time.monotonic() - began


def kill_until(field: Battlefield, tally: Tally, *, kills: int, seed: int, deadline: float) -> None:
    """Kills processes `kills` times over several runs. Every run then finishes."""
    random_ = random.Random(f"{seed} {field.count}")
    while tally.kills < kills and time.monotonic() < deadline:
        run_dir = field.directory / f"killed{field.count}-{tally.runs}"
        most = min(KILLS_A_RUN, kills - tally.kills)
        instants = iter([random_.uniform(0, field.seconds) for _ in range(most)])
        _one_run(field, run_dir, instants, tally, random_)
        field.reference.check(run_dir)
        tally.runs += 1


def _one_run(
    field: Battlefield,
    run_dir: Path,
    instants: Iterator[float],
    tally: Tally,
    random_: random.Random,
) -> None:
    checked: set[int] = set()
    while True:
        instant = next(instants, None)
        with field.start(run_dir, last=instant is None) as job:
            if instant is None or ended_within(job, instant):
                codes = job.wait(timeout=SLOW)
                assert codes == [0] * field.count, job.said()
                return
            kill(job, random_)
        tally.kills += 1
        newest = field.reference.newest(run_dir)
        if newest is not None and newest not in checked:
            field.reference.check_checkpoint(run_dir, newest)
            checked.add(newest)
            tally.checkpoints += 1


def ended_within(job: Job, seconds: float) -> bool:
    """Waits up to `seconds`. Returns whether all processes have ended."""
    deadline = time.monotonic() + seconds
    return all(host.ended.wait(max(0.0, deadline - time.monotonic())) for host in job)


def kill(job: Job, random_: random.Random) -> None:
    """Sends SIGKILL to all processes at once, or to one process first."""
    hosts = list(job)
    if len(hosts) > 1 and random_.random() < 0.5:
        victim = random_.choice(hosts)
        victim.send(9)
        victim.ended.wait(60)
        time.sleep(random_.uniform(0.0, 0.5))
    job.kill()


@pytest.fixture(scope="module")
def config(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two phases that save every third step, so that about half of the kills interrupt a save."""
    values: dict[str, Any] = project_config(project)
    values["model"]["architecture"] |= DROPOUT
    values["mesh"] = {"platform": "cpu"}
    short, longer = values["train"]["phases"]
    values["train"] |= {
        "phases": [short | {"steps": 9}, longer | {"steps": 9}],
        "log_every": 1,
        "evaluation": {"every": 6, "examples": 16},
        "checkpoint": {"every": EVERY, "keep_last": 100},
    }
    return write_config(tmp_path_factory.mktemp("config") / "run.yaml", values)


def test_killed_run_equals_undisturbed_run(
    config: Path,
    tmp_path: Path,
) -> None:
    whole = tmp_path / "whole"
    # Half of the time is compilation, which later runs read from the cache.
    seconds = run_whole(config, whole, 1) / 2
    field = Battlefield(
        *(config, 1, tmp_path, Reference(whole), seconds), at_last=("loader.workers=1",)
    )
    tally = Tally(1)
    kill_until(field, tally, kills=3, seed=0, deadline=time.monotonic() + 300)
    assert tally.kills == 3, tally
    account = read_goodput(tmp_path / "killed1-0")
    assert account is not None
    assert account.finished


@pytest.mark.chaos
def test_often_killed_run_equals_undisturbed_run(
    config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """CHAOS_KILLS, CHAOS_PROCESSES, CHAOS_MINUTES and CHAOS_SEED set limits and seed."""
    kills = int(os.environ.get("CHAOS_KILLS", "200"))
    counts = [int(count) for count in os.environ.get("CHAOS_PROCESSES", "1,2,4").split(",")]
    seconds = 60 * float(os.environ.get("CHAOS_MINUTES", "120"))
    seed = int(os.environ.get("CHAOS_SEED", "0"))
    began, tallies = time.monotonic(), list[Tally]()
    for done, count in enumerate(counts):
        field = undisturbed(config, tmp_path, count=count)
        deadline = began + seconds * (done + 1) / len(counts)
        part = kills // len(counts) + (done < kills % len(counts))
        tallies.append(Tally(count))
        try:
            kill_until(field, tallies[-1], kills=part, seed=seed, deadline=deadline)
        finally:
            with capsys.disabled():
                print(f"\n{tallies[-1]}")
    assert all(tally.kills for tally in tallies)
