"""The last reports of the hosts of one attempt, and their age."""

import dataclasses
from collections.abc import Mapping, Sequence

from etils import epath

from bert_jax.files.remote import each
from bert_jax.launch.job import Attempt, HostStatus, JobFiles
from bert_jax.validation import read_section


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The hosts of an attempt at one moment."""

    told: Mapping[int, HostStatus]  # the last report of each worker
    missing: Sequence[int]  # workers without a report

    @property
    def done(self) -> bool:
        """Whether all have finished the run."""
        return not self.missing and all(host.state == "done" for host in self.told.values())

    @property
    def finished(self) -> int | None:
        """A worker that has finished the run, so that nothing is left to do for the others.

        A process ends with 0 only after all have made the last save.
        """
        return next((worker for worker, host in self.told.items() if host.state == "done"), None)

    @property
    def failed(self) -> tuple[int, HostStatus] | None:
        """The worker that failed first for good, and its report."""
        failed = [item for item in self.told.items() if item[1].state == "failed"]
        return min(failed, key=lambda item: (item[1].at, item[0]), default=None)

    @property
    def step(self) -> int | None:
        """The last step that any host has reported."""
        steps = [host.step for host in self.told.values() if host.step is not None]
        return max(steps, default=None)


def read_host(path: epath.Path) -> HostStatus | None:
    """Returns the last report of one host, None before the first.

    Raises UserError if the file is damaged, RunStopped if the bucket does not answer.
    """
    return read_section(HostStatus, path) if path.exists() else None


def read_hosts(files: JobFiles, attempt: Attempt) -> Hosts:
    """Returns the last reports of all hosts of an attempt; raises as `read_host` does."""
    paths = [files.host(attempt.number, worker) for worker in range(attempt.hosts)]
    found = dict(enumerate(each(read_host, paths)))
    return Hosts(
        told={worker: host for worker, host in found.items() if host is not None},
        missing=[worker for worker, host in found.items() if host is None],
    )


class HeartbeatAges:
    """The time since each host's report last changed, by the clock of this machine."""

    def __init__(self) -> None:
        self._changed: dict[int, tuple[float, float]] = {}  # by worker: the report's time, and ours
        self._finished_at: float | None = None

    def record(self, hosts: Hosts, now: float) -> None:
        """Records which reports are new."""
        for worker, host in hosts.told.items():
            if self._changed.get(worker, (None,))[0] != host.at:
                self._changed[worker] = host.at, now
        if self._finished_at is None and hosts.finished is not None:
            self._finished_at = now

    def since_finished(self, now: float) -> float | None:
        """Returns the seconds since a host has been done; None: none is."""
        return None if self._finished_at is None else now - self._finished_at

    def reset(self) -> None:
        """Starts all ages again at the next report, after a time without access to them."""
        self._changed.clear()

    def longest(self, hosts: Hosts, now: float) -> tuple[int, float]:
        """Returns the unfinished worker with the oldest report, and its age in seconds."""
        waits = [
            (now - self._changed[worker][1], worker)
            for worker, host in hosts.told.items()
            if host.state != "done" and worker in self._changed
        ]
        seconds, worker = max(waits, default=(0.0, 0))
        return worker, seconds
