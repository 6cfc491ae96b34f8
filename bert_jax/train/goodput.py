"""Tells what the time of a process goes on; `time_account` says what kinds there are."""

import contextlib
import functools
import time
from collections.abc import Iterator
from typing import Final

import jax
from etils import epath

from bert_jax.train.time_account import GOODPUT, KINDS, Goodput, goodput_lines, goodput_of
from bert_jax.train.writer import Writer

_LOSABLE: Final = KINDS[:4]
_COMPILING: Final = "/jax/core/compile/"  # tracing, lowering to MLIR, XLA


class CompileClock:
    """Adds up what JAX reports; a trace within a trace counts once."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._counted: list[tuple[float, float]] = []  # (when it began, seconds)

    def heard(self, event: str, duration_secs: float, **_: object) -> None:
        """Takes an event of JAX, which reports it when it ends."""
        if not event.startswith(_COMPILING):
            return
        began = time.monotonic() - duration_secs
        while self._counted and self._counted[-1][0] >= began:  # within this one
            self.seconds -= self._counted.pop()[1]
        self.seconds += duration_secs
        self._counted.append((began, duration_secs))


@functools.cache
def compile_clock() -> CompileClock:
    """Returns this process's clock, which runs from the first call on."""
    clock = CompileClock()
    jax.monitoring.register_event_duration_secs_listener(clock.heard)
    return clock


class Stopwatch:
    """Tells what the time of this process goes on, and goes on from what earlier ones wrote."""

    def __init__(self, run_dir: epath.Path, *, started: float) -> None:
        """Begins to count, as `start`.

        Only the first process reads what the run directory holds. `started` is when this process,
        or this run in it, began: seconds since 1970.
        """
        self._before = goodput_lines(run_dir) if jax.process_index() == 0 else []
        self._compiling = compile_clock()
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self._seconds["start"] = max(time.time() - started, 0.0)
        self._started, self._starts = started, 1
        self._kind, self._since = "start", time.monotonic()
        self._compiled = self._compiling.seconds
        # (step, seconds by kind) of this process's start and of each of its checkpoints.
        self._saved = [(0, dict.fromkeys(_LOSABLE, 0.0))]

    def resume(self, step: int) -> None:
        """Adds the time of earlier processes of this run; what they did beyond a step is lost."""
        if self._before:
            self._add_earlier(step)
        self._saved = [(step, {kind: self._seconds[kind] for kind in _LOSABLE})]

    def _add_earlier(self, step: int) -> None:
        last = self._before[-1]
        kept = [line for line in self._before if line["step"] <= step][-1:]
        counted = goodput_of(kept[0]).seconds if kept else dict.fromkeys(KINDS, 0.0)
        died = goodput_of(last)
        for kind in KINDS:
            if kind in _LOSABLE:
                self._seconds[kind] += min(counted[kind], died.seconds[kind])
                self._seconds["lost"] += max(died.seconds[kind] - counted[kind], 0.0)
            else:
                self._seconds[kind] += died.seconds[kind]
        if not died.finished:
            self._seconds["down"] += max(self._started - died.at, 0.0)
        self._starts = died.starts + 1

    @property
    def kind(self) -> str:
        """What the process is at."""
        return self._kind

    @contextlib.contextmanager
    def on(self, kind: str) -> Iterator[None]:
        """Counts the time of the block as of a kind, save for what is compiled in it."""
        before = self._kind
        self._turn_to(kind)
        try:
            yield
        finally:
            self._turn_to(before)

    @property
    def input_seconds(self) -> float:
        """Seconds spent waiting for input so far, those of now apart."""
        return self._seconds["input"]

    def saved(self, step: int) -> None:
        """Remembers how much of what can be lost was spent up to a checkpoint."""
        self._turn_to(self._kind)
        self._saved.append((step, {kind: self._seconds[kind] for kind in _LOSABLE}))

    def rewind(self, step: int) -> None:
        """Counts what was spent since a checkpoint as lost: the run goes back to it."""
        self._turn_to(self._kind)
        while len(self._saved) > 1 and self._saved[-1][0] > step:
            self._saved.pop()
        for kind, before in self._saved[-1][1].items():
            self._seconds["lost"] += self._seconds[kind] - before
            self._seconds[kind] = before

    def write(self, writer: Writer, *, step: int, finished: bool = False) -> None:
        """Writes a line of metrics.jsonl; `finished`: the run has come to its end."""
        now = self.read(finished=finished)
        others = {"starts": now.starts, "finished": int(finished), "at": round(now.at, 3)}
        rounded = {kind: round(seconds, 3) for kind, seconds in now.seconds.items()}
        writer.write(GOODPUT, step, rounded | others)

    def read(self, *, finished: bool = False) -> Goodput:
        """Returns the figures of now."""
        self._turn_to(self._kind)
        return Goodput(dict(self._seconds), self._starts, time.time(), finished)

    def _turn_to(self, kind: str) -> None:
        now, compiled = time.monotonic(), self._compiling.seconds
        compiling = max(compiled - self._compiled, 0.0)
        self._seconds[self._kind] += now - self._since - compiling
        self._seconds["compile"] += compiling
        self._kind, self._since, self._compiled = kind, now, compiled
