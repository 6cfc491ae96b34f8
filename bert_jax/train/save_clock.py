"""When a checkpoint is due by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable

import jax

from bert_jax.train.agreement import from_first_process


class SaveClock:
    """Counts the minutes since the last save.

    Several processes save together, so the first one's clock counts for all. Asking it is a round
    trip, so it is asked at report steps alone; one process looks at its clock at every step.
    """

    def __init__(
        self,
        every_minutes: float | None,
        *,
        report_every: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts counting. Reports are so many steps apart; None for no limit; `now` in seconds."""
        self._seconds = None if every_minutes is None else 60 * every_minutes
        self._report_every, self._now = report_every, now
        self._saved = now()

    def due(self, step: int) -> bool:
        """Says whether to save after a step; all processes get the same answer."""
        if self._seconds is None:
            return False
        if jax.process_count() == 1:
            return self._elapsed()
        return step % self._report_every == 0 and from_first_process(self._elapsed)

    def restart(self) -> None:
        """Counts from now, when a save begins."""
        self._saved = self._now()

    def _elapsed(self) -> bool:
        return self._seconds is not None and self._now() - self._saved >= self._seconds
