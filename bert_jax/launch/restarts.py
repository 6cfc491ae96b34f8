"""Whether a run's process that has ended is started again, and when."""

import dataclasses
from typing import Final, Literal

from bert_jax.launch.job import Ending
from bert_jax.parallel.channel import PEER_LOST
from bert_jax.parallel.stop_signal import INTERRUPTED

_DONE: Final = 0
_FINAL: Final = {1: "the run stopped itself", 2: "a mistake in the configuration"}

_LONGEST_PAUSE_SECONDS: Final = 120.0


@dataclasses.dataclass(frozen=True)
class RestartDecision:
    """What follows from an ending."""

    state: Literal["restarting", "stopped", "done", "failed"]  # of the host
    exit_code: int  # of the agent, where this is the end
    message: str  # why
    pause: float | None = None  # seconds before the next start; None: there is none


class Restarts:
    """Judges endings, one after the other.

    A process that a signal stopped (3) or that has lost another (4) did nothing wrong. Any other
    that died is started again too, unless it died at the same step before: the same would happen
    for ever. Pauses double until the run has made progress.
    """

    def __init__(self, first_pause: float) -> None:
        """Nothing has ended yet; `first_pause` is in seconds."""
        self._first_pause = self._pause = first_pause
        self._furthest = -1  # step
        self._died_at: set[int | None] = set()  # since there was progress; None: before a report

    def judge(self, ending: Ending) -> RestartDecision:
        """Returns what follows."""
        code, said = ending.exit_code, ending.message
        if code == _DONE:
            return RestartDecision("done", 0, said)
        if code in _FINAL:
            return RestartDecision("failed", code, said or _FINAL[code])
        if ending.step is not None and ending.step > self._furthest:
            self._furthest = ending.step
            self._pause = self._first_pause
            self._died_at.clear()
        if code not in (INTERRUPTED, PEER_LOST):
            if ending.step in self._died_at:
                where = (
                    "before its first report" if ending.step is None else f"at step {ending.step}"
                )
                return RestartDecision("failed", 1, f"the run died twice {where}: {said}")
            self._died_at.add(ending.step)
        pause = self._pause
        self._pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return RestartDecision("restarting", code, said, pause)
