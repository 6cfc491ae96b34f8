"""Kills real `pretrain` runs at random instants and starts them again until they are done."""

import dataclasses
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.chaos.reference import Reference
from tests.processes import hosts
from tests.processes.hosts import Job

EVERY: Final = 3  # steps from one checkpoint in the run directory to the next
KILLS_A_RUN: Final = 8  # then it may come to its end
SLOW: Final = 3600.0  # seconds of a run, on a machine with other work


@dataclasses.dataclass(frozen=True)
class Battlefield:
    """What is run, and what it should come to."""

    config: Path
    count: int  # processes
    directory: Path
    reference: Reference
    seconds: float  # that an undisturbed run takes
    at_last: Sequence[str] = ()  # settings of the start that is not killed

    def start(self, run_dir: Path, *, last: bool) -> Job:
        """Starts the run, or goes on with it."""
        settings = self.at_last if last else ()
        return start(self.config, run_dir, self.count, settings=settings)


@dataclasses.dataclass
class Tally:
    """What was done, and found equal."""

    count: int  # processes
    runs: int = 0
    kills: int = 0
    checkpoints: int = 0  # found after a kill and compared


def start(config: Path, run_dir: Path, count: int, *, settings: Sequence[str] = ()) -> Job:
    """Starts a run of so many processes."""
    directory = run_dir.parent / f"{run_dir.name}.out"
    return hosts.start(
        "pretrain", config, f"run_dir={run_dir}", *settings, count=count, directory=directory
    )


def undisturbed(config: Path, directory: Path, *, count: int) -> Battlefield:
    """Runs twice without a kill: the first compiles, the second tells how long a run takes."""
    first, second = (directory / f"{name}{count}" for name in ("first", "undisturbed"))
    run_whole(config, first, count)
    seconds = run_whole(config, second, count)
    reference = Reference(second)
    reference.check(first)
    return Battlefield(config, count, directory, reference, seconds)


def run_whole(config: Path, run_dir: Path, count: int) -> float:
    """Runs to the end; returns the seconds that it took."""
    began = time.monotonic()
    with start(config, run_dir, count) as job:
        assert job.wait(timeout=SLOW) == [0] * count, job.said()
    return time.monotonic() - began


def kill_until(field: Battlefield, tally: Tally, *, kills: int, seed: int, deadline: float) -> None:
    """Kills so many times, over as many runs as it takes; every run comes to its end."""
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
    """Waits so long for the end of all processes."""
    deadline = time.monotonic() + seconds
    return all(host.ended.wait(max(0.0, deadline - time.monotonic())) for host in job)


def kill(job: Job, random_: random.Random) -> None:
    """Kills with no warning: all processes at once, or one of them and a moment later the rest."""
    hosts = list(job)
    if len(hosts) > 1 and random_.random() < 0.5:
        victim = random_.choice(hosts)
        victim.send(9)
        victim.ended.wait(60)
        time.sleep(random_.uniform(0.0, 0.5))
    job.kill()
