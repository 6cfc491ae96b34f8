"""The progress of a run, in one line for a user who watches its job."""

import collections
from collections import Counter
from datetime import timedelta
from typing import Final

from etils import epath

from bert_jax.errors import UserError, counted
from bert_jax.files.yaml_file import read_yaml
from bert_jax.launch.heartbeats import Hosts
from bert_jax.launch.job import Ending
from bert_jax.parallel.channel import PEER_LOST

_RECENT_SECONDS: Final = 3600.0
_MOST_ENDINGS: Final = 3  # lines on endings of one moment


def total_steps(config: epath.PathLike) -> int | None:
    """Returns the steps of a pretraining configuration, None for another one.

    Raises RunStopped if its bucket does not answer.
    """
    try:
        phases = read_yaml(config)["train"]["phases"]
        return sum(int(phase["steps"]) for phase in phases)
    except (UserError, KeyError, TypeError, ValueError):
        return None


class RunProgress:
    """The run of one attempt, as its hosts report it."""

    def __init__(self, *, old_endings: bool = False) -> None:
        """With `old_endings`, `hear` prints no line on the restarts of its first call."""
        self._steps: collections.deque[tuple[float, int]] = collections.deque()  # (time, step)
        self._hosts: Hosts | None = None
        self._endings: set[tuple[int, float]] = set()  # (worker, time)
        self._skip_endings = old_endings

    def hear(self, hosts: Hosts, now: float) -> list[str]:
        """Takes the reports at a time in seconds; returns a line for each new restart."""
        self._hosts = hosts
        if (step := hosts.step) is not None:
            if self._steps and step < self._steps[-1][1]:  # back to a checkpoint
                self._steps.clear()
            if not self._steps or step > self._steps[-1][1]:
                self._steps.append((now, step))
            while self._steps[0][0] < now - _RECENT_SECONDS and len(self._steps) > 1:
                self._steps.popleft()
        return self._restarts(hosts)

    def describe(self, *, total: int | None) -> str:
        """Returns ``4 hosts running, step 300 of 1,000 (30.0%), loss 6.500``."""
        hosts = self._hosts
        if hosts is None:
            return ""
        states = Counter(host.state for host in hosts.told.values())
        parts = [f"{counted(count, 'host')} {state}" for state, count in sorted(states.items())]
        if hosts.missing:
            parts.append(f"{counted(len(hosts.missing), 'host')} without a heartbeat yet")
        if (step := hosts.step) is None:
            return ", ".join([*parts, "no step reported yet"])
        share = f" of {total:,} ({step / total:.1%})" if total else ""
        parts.append(f"step {step:,}{share}")
        losses = [(host.step or 0, host.loss) for host in hosts.told.values() if host.loss]
        parts += [f"loss {max(losses)[1]:.3f}"] if losses else []
        return ", ".join(parts)

    def time_left(self, *, total: int | None) -> str:
        """Returns ``, 3:20:00 left`` at the speed of the last hour, empty if it is unknown."""
        if total is None or len(self._steps) < 2:
            return ""
        (began, first), (ended, last) = self._steps[0], self._steps[-1]
        seconds = (total - last) * (ended - began) / (last - first)
        return f", {timedelta(seconds=round(max(seconds, 0.0)))} left"

    def _restarts(self, hosts: Hosts) -> list[str]:
        new = [
            (worker, ending)
            for worker, host in hosts.told.items()
            for ending in host.endings
            if ending.exit_code and (worker, ending.at) not in self._endings
        ]
        self._endings |= {(worker, ending.at) for worker, ending in new}
        if self._skip_endings:
            self._skip_endings = False
            return []
        # If a host lost another one, the line on the other host is enough.
        causes = [each for each in new if each[1].exit_code != PEER_LOST] or new[:1]
        lines = [_restart(worker, ending) for worker, ending in causes[:_MOST_ENDINGS]]
        if more := len(causes) - len(lines):
            lines.append(f"{counted(more, 'other host')} restarted too")
        return lines


def _restart(worker: int, ending: Ending) -> str:
    where = "before its first report" if ending.step is None else f"at step {ending.step:,}"
    why = f": {ending.message}" if ending.message else ""
    return f"host {worker} ended {where} with exit code {ending.exit_code}{why}"
