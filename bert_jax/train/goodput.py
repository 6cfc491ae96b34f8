"""Measures the time that a process spends on each kind of `time_account`."""

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Final

import jax
from etils import epath

from bert_jax.train.time_account import KINDS, LOSABLE, Goodput, goodput_lines, goodput_of

_COMPILING: Final = "/jax/core/compile/"  # prefix of JAX's compilation events


class CompileClock:
    """Adds up the seconds of JAX's compilations; nested events count once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._counted: list[tuple[float, float]] = []  # (start, seconds)

    def on_event(self, event: str, duration_secs: float, **_: object) -> None:
        """Adds an event, which JAX reports at its end."""
        if not event.startswith(_COMPILING):
            return
        began = time.monotonic() - duration_secs
        while self._counted and self._counted[-1][0] >= began:  # nested in this event
            self.seconds -= self._counted.pop()[1]
        self.seconds += duration_secs
        self._counted.append((began, duration_secs))


@functools.cache
def compile_clock() -> CompileClock:
    """Returns this process's clock; the first call starts it."""
    clock = CompileClock()
    jax.monitoring.register_event_duration_secs_listener(clock.on_event)
    return clock


class Stopwatch:
    """Accounts for this run's wall time, adding to the totals of earlier processes.

    Attributes:
        kind: kind of the current activity.
    """

    def __init__(self, run_dir: epath.Path, *, started: float) -> None:
        """Starts with the kind `start`.

        Only the first process reads the run directory. `started` is the Unix time at which this
        process, or a later run in it, started.
        """
        self._before = goodput_lines(run_dir) if jax.process_index() == 0 else []
        self._compiling = compile_clock()
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self._seconds["start"] = max(time.time() - started, 0.0)
        self._started, self._starts = started, 1
        self.kind, self._since = "start", time.monotonic()
        self._compiled = self._compiling.seconds
        # (step, seconds by kind) at this process's start and at each of its checkpoints
        self._saved = [(0, self._losable())]

    def resume(self, step: int) -> None:
        """Adds the time of earlier processes; their work after `step` counts as lost."""
        if self._before:
            died = goodput_of(self._before[-1])
            last = [line for line in self._before if line["step"] <= step][-1:]
            counted = goodput_of(last[0]).seconds if last else dict.fromkeys(KINDS, 0.0)
            for kind, seconds in died.seconds.items():
                self._seconds[kind] += min(counted[kind], seconds) if kind in LOSABLE else seconds
            lost = (max(died.seconds[kind] - counted[kind], 0.0) for kind in LOSABLE)
            self._seconds["lost"] += sum(lost)
            if not died.finished:
                self._seconds["down"] += max(self._started - died.at, 0.0)
            self._starts = died.starts + 1
        self._saved = [(step, self._losable())]

    @contextlib.contextmanager
    def on(self, kind: str) -> Iterator[None]:
        """Assigns the time of the block, except compilation, to a kind."""
        before = self.kind
        self._turn_to(kind)
        try:
            yield
        finally:
            self._turn_to(before)

    @property
    def input_seconds(self) -> float:
        """Seconds spent waiting for input, without the current wait."""
        return self._seconds["input"]

    def saved(self, step: int) -> None:
        """Records the account at the checkpoint of `step`."""
        self._turn_to(self.kind)
        self._saved.append((step, self._losable()))

    def rewind(self, step: int) -> None:
        """After a rollback to the checkpoint of `step`, counts the time since then as lost."""
        self._turn_to(self.kind)
        while len(self._saved) > 1 and self._saved[-1][0] > step:
            self._saved.pop()
        for kind, before in self._saved[-1][1].items():
            self._seconds["lost"] += self._seconds[kind] - before
            self._seconds[kind] = before

    def read(self) -> Goodput:
        """Returns the current account of an unfinished run."""
        self._turn_to(self.kind)
        return Goodput(dict(self._seconds), self._starts, time.time(), False)

    def figures(self, *, finished: bool = False) -> dict[str, float]:
        """Returns the account for a line of metrics.jsonl; `finished` is whether the run ended."""
        now = self.read()
        seconds = {kind: round(seconds, 3) for kind, seconds in now.seconds.items()}
        return {**seconds, "starts": now.starts, "finished": int(finished), "at": round(now.at, 3)}

    def _losable(self) -> dict[str, float]:
        return {kind: self._seconds[kind] for kind in LOSABLE}

    def _turn_to(self, kind: str) -> None:
        now, compiled = time.monotonic(), self._compiling.seconds
        compiling = max(compiled - self._compiled, 0.0)
        self._seconds[self.kind] += now - self._since - compiling
        self._seconds["compile"] += compiling
        self.kind, self._since, self._compiled = kind, now, compiled
