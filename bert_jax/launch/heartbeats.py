"""What the hosts of one attempt say of themselves, and for how long they have said nothing."""

import dataclasses
from collections.abc import Mapping, Sequence

from etils import epath

from bert_jax.files.remote import each
from bert_jax.launch.job import Attempt, HostStatus, JobFiles
from bert_jax.validation import read_section


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The hosts of an attempt at one moment."""

    told: Mapping[int, HostStatus]  # by worker, what it last said
    missing: Sequence[int]  # workers that have said nothing yet

    @property
    def done(self) -> bool:
        """Whether all have come to the run's end."""
        return not self.missing and all(host.state == "done" for host in self.told.values())

    @property
    def finished(self) -> int | None:
        """A worker that has come to the run's end: then the others have nothing left to do.

        A process ends with 0 only after all have left, which they do after the last save.
        """
        return next((worker for worker, host in self.told.items() if host.state == "done"), None)

    @property
    def failed(self) -> tuple[int, HostStatus] | None:
        """The worker whose run ended in a way that a restart will not mend: the earliest one."""
        failed = [(host.at, worker) for worker, host in self.told.items() if host.state == "failed"]
        return (min(failed)[1], self.told[min(failed)[1]]) if failed else None

    @property
    def step(self) -> int | None:
        """The furthest that any has told."""
        return max(
            (host.step for host in self.told.values() if host.step is not None), default=None
        )


def read_hosts(files: JobFiles, attempt: Attempt) -> Hosts:
    """Reads what all hosts of an attempt last said.

    Raises UserError if one of the files is not what a host writes, or RunStopped if the bucket does
    not answer.
    """
    paths = [files.host(attempt.number, worker) for worker in range(attempt.hosts)]
    found = dict(enumerate(each(read_host, paths)))
    return Hosts(
        told={worker: host for worker, host in found.items() if host is not None},
        missing=[worker for worker, host in found.items() if host is None],
    )


class HeartbeatAges:
    """The time since each host's last heartbeat changed, by the clock of this machine."""

    def __init__(self) -> None:
        self._changed: dict[int, tuple[float, float]] = {}
        self._finished_at: float | None = None

    def record(self, hosts: Hosts, now: float) -> None:
        """Records which heartbeats are new."""
        for worker, host in hosts.told.items():
            if self._changed.get(worker, (None,))[0] != host.at:
                self._changed[worker] = host.at, now
        if self._finished_at is None and hosts.finished is not None:
            self._finished_at = now

    def since_finished(self, now: float) -> float | None:
        """Returns for how many seconds a host has been done; None: none is."""
        return None if self._finished_at is None else now - self._finished_at

    def reset(self) -> None:
        """Starts all ages again at the next heartbeat, after a time without access to any."""
        self._changed.clear()

    def longest(self, hosts: Hosts, now: float) -> tuple[int, float]:
        """Returns the unfinished worker with the oldest heartbeat, and its age in seconds."""
        waits = [
            (now - self._changed[worker][1], worker)
            for worker, host in hosts.told.items()
            if host.state != "done" and worker in self._changed
        ]
        seconds, worker = max(waits, default=(0.0, 0))
        return worker, seconds


def read_host(path: epath.Path) -> HostStatus | None:
    """Returns what one host last said; None if it has said nothing yet.

    Raises UserError if the file is not what a host writes, or RunStopped if the bucket does not
    answer.
    """
    return read_section(HostStatus, path) if path.exists() else None
