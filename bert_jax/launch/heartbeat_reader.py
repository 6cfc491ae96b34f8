"""Heartbeats of an attempt's hosts: the last reports, their ages, and the run's progress."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Final

from etils import epath

from bert_jax.errors import UserError, counted
from bert_jax.files.remote import each
from bert_jax.files.yaml_file import read_yaml
from bert_jax.launch.job import Attempt, HostStatus, JobFiles
from bert_jax.parallel.channel import PEER_LOST
from bert_jax.validation import read_section

_RECENT_SECONDS: Final = 3600.0
_MAX_ENDING_LINES: Final = 3  # maximum lines for endings in one update


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The state of an attempt's hosts at one time."""

    reports: Mapping[int, HostStatus]  # last report of each worker
    missing: Sequence[int]  # workers without a report
    independent: bool = False  # whether each host works alone, as in `score`

    @property
    def done(self) -> bool:
        """Whether all hosts have finished the run."""
        return not self.missing and all(host.state == "done" for host in self.reports.values())

    @property
    def finished(self) -> int | None:
        """Index of a worker that has finished the run, or None.

        One finished worker means that the run is complete: a process exits with 0 only after all
        processes have saved the last checkpoint. Independent hosts finish one by one.
        """
        if self.independent:
            return None
        return next((worker for worker, host in self.reports.items() if host.state == "done"), None)

    @property
    def failed(self) -> tuple[int, HostStatus] | None:
        """The first worker that failed permanently, and its report, or None."""
        failed = [item for item in self.reports.items() if item[1].state == "failed"]
        return min(failed, key=lambda item: (item[1].at, item[0]), default=None)

    @property
    def step(self) -> int | None:
        """The last step that any host has reported."""
        steps = [host.step for host in self.reports.values() if host.step is not None]
        return max(steps, default=None)


def read_host(path: epath.Path) -> HostStatus | None:
    """Returns the last report of one host, or None before the first report.

    Raises UserError if the file is damaged, RunStopped if the bucket does not answer.
    """
    return read_section(HostStatus, path) if path.exists() else None


def read_hosts(files: JobFiles, attempt: Attempt) -> Hosts:
    """Returns the last reports of all hosts of an attempt; see `read_host` for errors."""
    paths = [files.host(attempt.number, worker) for worker in range(attempt.hosts)]
    found = dict(enumerate(each(read_host, paths)))
    reports = {worker: host for worker, host in found.items() if host is not None}
    missing = [worker for worker in found if worker not in reports]
    return Hosts(reports, missing, independent=attempt.job.verb == "score")


class HeartbeatAges:
    """Time since each host's last new report, measured by this machine's clock."""

    def __init__(self) -> None:
        self._changed: dict[int, tuple[float, float]] = {}  # worker: (report time, local time)
        self._finished_at: float | None = None

    def record(self, hosts: Hosts, now: float) -> None:
        """Records the time of each new report."""
        for worker, host in hosts.reports.items():
            if self._changed.get(worker, (None,))[0] != host.at:
                self._changed[worker] = host.at, now
        if self._finished_at is None and hosts.finished is not None:
            self._finished_at = now

    def since_finished(self, now: float) -> float | None:
        """Returns the seconds since the first host finished the run, or None."""
        return None if self._finished_at is None else now - self._finished_at

    def reset(self) -> None:
        """Forgets all ages. The next call of `record` restarts the age of every host."""
        self._changed.clear()

    def longest(self, hosts: Hosts, now: float) -> tuple[int, float]:
        """Returns the unfinished worker with the oldest report, and the report's age in seconds."""
        waits = [
            (now - self._changed[worker][1], worker)
            for worker, host in hosts.reports.items()
            if host.state != "done" and worker in self._changed
        ]
        seconds, worker = max(waits, default=(0.0, 0))
        return worker, seconds


def total_steps(config: epath.PathLike) -> int | None:
    """Returns the number of steps of a pretraining configuration, or None without phases.

    Raises RunStopped if its bucket does not answer.
    """
    try:
        return sum(int(phase["steps"]) for phase in read_yaml(config)["train"]["phases"])
    except (UserError, KeyError, TypeError, ValueError):
        return None


class RunProgress:
    """Describes the progress of an attempt's run."""

    def __init__(self, total: int | None, *, old_endings: bool = False) -> None:
        """`total`: steps of the run, if known.

        `old_endings`: skip the lines of the first `update`: an earlier supervisor printed them.
        """
        self._total = total
        self._steps: collections.deque[tuple[float, int]] = collections.deque()  # (time, step)
        self._hosts = Hosts({}, [])
        self._endings: set[tuple[int, float]] = set()  # (worker, time)
        self._skip_endings = old_endings

    def update(self, hosts: Hosts, now: float) -> list[str]:
        """Adds the reports at time `now` in seconds; returns lines on new restarts."""
        self._hosts = hosts
        if (step := hosts.step) is not None:
            if self._steps and step < self._steps[-1][1]:  # the run resumed from a checkpoint
                self._steps.clear()
            if not self._steps or step > self._steps[-1][1]:
                self._steps.append((now, step))
            while self._steps[0][0] < now - _RECENT_SECONDS and len(self._steps) > 1:
                self._steps.popleft()
        new = [
            (worker, ending)
            for worker, host in hosts.reports.items()
            for ending in host.endings
            if ending.exit_code and (worker, ending.at) not in self._endings
        ]
        self._endings |= {(worker, ending.at) for worker, ending in new}
        if self._skip_endings:
            self._skip_endings = False
            return []
        # If a host ended because it lost a peer, print only the peer's line.
        causes = [item for item in new if item[1].exit_code != PEER_LOST] or new[:1]
        lines = []
        for worker, ending in causes[:_MAX_ENDING_LINES]:
            where = "before its first report" if ending.step is None else f"at step {ending.step:,}"
            why = f": {ending.message}" if ending.message else ""
            lines.append(f"host {worker} ended {where} with exit code {ending.exit_code}{why}")
        if more := len(causes) - len(lines):
            lines.append(f"{counted(more, 'other host')} restarted too")
        return lines

    def describe(self) -> str:
        """Returns ``4 hosts running, step 300 of 1,000 (30.0%), loss 6.500``."""
        hosts = self._hosts
        states = collections.Counter(host.state for host in hosts.reports.values())
        parts = [f"{counted(count, 'host')} {state}" for state, count in sorted(states.items())]
        if hosts.missing:
            parts.append(f"{counted(len(hosts.missing), 'host')} without a heartbeat yet")
        if hosts.step is not None:
            parts.append(f"step {step_of(hosts.step, self._total)}")
            losses = [(host.step or 0, host.loss) for host in hosts.reports.values() if host.loss]
            parts += [f"loss {max(losses)[1]:.3f}"] if losses else []
        elif parts:
            parts.append("no step reported yet")
        return ", ".join(parts)

    def time_left(self) -> str:
        """Returns ``, 3:20:00 left`` at the speed of the last hour, or "" before it is known."""
        if self._total is None or len(self._steps) < 2:
            return ""
        (began, first), (ended, last) = self._steps[0], self._steps[-1]
        seconds = (self._total - last) * (ended - began) / (last - first)
        return f", {timedelta(seconds=round(max(seconds, 0.0)))} left"


def step_of(step: int, total: int | None) -> str:
    """Returns ``300 of 1,000 (30.0%)``, or ``300`` if the total is unknown."""
    return f"{step:,} of {total:,} ({step / total:.1%})" if total else f"{step:,}"
