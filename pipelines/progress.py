"""Lines that say how far a stage is, how fast, and how long it will take."""

import dataclasses
import time
from collections.abc import Callable
from datetime import timedelta


@dataclasses.dataclass(kw_only=True)
class StageProgress:
    """Counts the jobs of one stage; the clock starts when it is made."""

    say: Callable[[str], None]  # gets a line for every job
    name: str  # of what is counted: `tokenised part`
    total: int  # jobs of the stage
    finished: int = 0  # of these, jobs that an earlier run has finished
    work: float  # size of the jobs that are left, all together; the time left is estimated from it
    unit: str  # of the rate: `MB`

    def __post_init__(self) -> None:
        self._done = 0.0
        self._counted = 0.0
        self._started = time.monotonic()

    def add(self, result: str, *, work: float, counted: float) -> None:
        """Counts a finished job of size ``work``, which is ``counted`` in the rate's unit."""
        self.finished += 1
        self._done += work
        self._counted += counted
        seconds = max(time.monotonic() - self._started, 1e-6)
        rate = self._counted / seconds
        line = f"{self.name} {self.finished} of {self.total}: {result}, "
        line += f"{rate:,.1f} {self.unit}/s" if rate < 100 else f"{rate:,.0f} {self.unit}/s"
        if self.finished < self.total and self._done:
            left = seconds * (self.work - self._done) / self._done
            line += f", {timedelta(seconds=round(left))} left"
        self.say(line)
