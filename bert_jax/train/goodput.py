"""Where a run's wall time went, over all its restarts.

Every second is of one kind: `start` (imports, devices, opening the data), `restore` (or making the
first state), `compile`, `input` (waiting for a batch), `train`, `evaluate`, `save` (standing still
for a checkpoint), `lost` (work done after the last checkpoint of a process that was killed, and so
done again), `down` (from the last sign of life of one process to the start of the next).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import jax
from etils import epath

from bert_jax.errors import UserError
from bert_jax.train.compile_time import compile_clock
from bert_jax.train.writer import Writer, read_metrics

GOODPUT: Final = "goodput"  # the kind of its lines in metrics.jsonl
KINDS: Final = (
    *("train", "input", "evaluate", "save"),  # is lost with a process that is killed
    *("start", "restore", "compile", "lost", "down"),
)
_LOSABLE: Final = KINDS[:4]


class Goodput(NamedTuple):
    """Where the wall time of a run went."""

    seconds: dict[str, float]  # by kind, all of `KINDS`
    starts: int  # of processes
    at: float  # seconds since 1970: when this was known
    finished: bool  # whether the run had come to its end

    @property
    def total(self) -> float:
        """Seconds from the first start on."""
        return sum(self.seconds.values())

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the kinds in the wall time, which add up to 1."""
        return {kind: self.seconds[kind] / max(self.total, 1e-9) for kind in KINDS}


class Stopwatch:
    """Tells what the time of this process goes on, and goes on from what earlier ones wrote."""

    def __init__(self, run_dir: epath.Path, *, started: float) -> None:
        """Begins to count, as `start`.

        Args:
            run_dir: of the run; only the first process reads what it holds.
            started: when this process, or this run in it, began: seconds since 1970.
        """
        self._before = _lines(run_dir) if jax.process_index() == 0 else []
        self._compiling = compile_clock()
        self._seconds = dict.fromkeys(KINDS, 0.0)
        self._seconds["start"] = max(time.time() - started, 0.0)
        self._started, self._starts = started, 1
        self._kind, self._since = "start", time.monotonic()
        self._compiled = self._compiling.seconds

    def resume(self, step: int) -> None:
        """Adds the time of earlier processes of this run.

        Args:
            step: that this one goes on from; what they did beyond it is lost.
        """
        if not self._before:
            return
        last = self._before[-1]
        kept = [line for line in self._before if line["step"] <= step][-1:]
        counted = _of(kept[0]).seconds if kept else dict.fromkeys(KINDS, 0.0)
        died = _of(last)
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

    def waited(self, seconds: float) -> None:
        """Counts a part of the time since the kind was last changed as waiting for input."""
        self._seconds["input"] += seconds
        self._seconds[self._kind] -= seconds

    def write(self, writer: Writer, *, step: int, finished: bool = False) -> None:
        """Writes a line of metrics.jsonl.

        Args:
            writer: of the run.
            step: done so far.
            finished: whether the run has come to its end.
        """
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


def read_goodput(run_dir: epath.PathLike) -> Goodput | None:
    """Returns where a run's time went, as it last wrote; None if it has written nothing.

    ``read_goodput("runs/base").shares["train"] -> 0.93``

    Args:
        run_dir: of the run, which may be under way or dead.
    """
    lines = _lines(epath.Path(run_dir))
    return _of(lines[-1]) if lines else None


def describe_goodput(found: Goodput) -> str:
    """Returns a line: ``train 81.0%, compile 12.0%, start 7.0% of 0:03:10, 1 start``."""
    shares = sorted(found.shares.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{kind} {share:.1%}" for kind, share in shares if share >= 0.0005)
    starts = f"{found.starts} start{'s' if found.starts > 1 else ''}"
    return f"{shown} of {timedelta(seconds=round(found.total))}, {starts}"


def _lines(run_dir: epath.Path) -> Sequence[dict[str, Any]]:
    try:
        lines = read_metrics(run_dir, kind=GOODPUT)
    except UserError:  # there are none yet, or the writer will say what is wrong
        return []
    return [line for line in lines if {*KINDS, "starts", "at", "finished"} <= line.keys()]


def _of(line: dict[str, Any]) -> Goodput:
    seconds = {kind: float(line[kind]) for kind in KINDS}
    return Goodput(seconds, int(line["starts"]), float(line["at"]), bool(line["finished"]))
