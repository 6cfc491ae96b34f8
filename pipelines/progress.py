"""Lines that say how far a stage is, how fast, and how long it will take."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta


class Progress:
    """Counts the jobs of one stage."""

    def __init__(
        self,
        say: Callable[[str], None],
        *,
        name: str,
        total: int,
        finished: int,
        work: float,
        unit: str,
    ) -> None:
        """Starts the clock.

        Args:
            say: gets a line for every job.
            name: of what is counted: ``tokenised part``.
            total: jobs of the stage.
            finished: jobs that an earlier run has finished.
            work: the size of those that are left, all together; from it comes the time left.
            unit: of the rate: ``MB``.
        """
        self._say = say
        self._name = name
        self._total = total
        self._finished = finished
        self._work = work
        self._unit = unit
        self._done = 0.0
        self._counted = 0.0
        self._started = time.monotonic()

    def add(self, told: str, *, work: float, counted: float) -> None:
        """Counts a job that has finished.

        Args:
            told: what came of it: ``7,200 tokens``.
            work: its size.
            counted: how much of the rate's unit it was.
        """
        self._finished += 1
        self._done += work
        self._counted += counted
        seconds = max(time.monotonic() - self._started, 1e-6)
        rate = self._counted / seconds
        line = f"{self._name} {self._finished} of {self._total}: {told}, "
        line += f"{rate:,.1f} {self._unit}/s" if rate < 100 else f"{rate:,.0f} {self._unit}/s"
        if self._finished < self._total and self._done:
            left = seconds * (self._work - self._done) / self._done
            line += f", {timedelta(seconds=round(left))} left"
        self._say(line)
