"""Ends a process whose step or evaluation hangs, and writes the stacks of all its threads.

A device, a collective operation or a file system may hang without an error. The job would then cost
money until someone notices. Exit code 43 tells the launcher to restart the job.
"""

import collections
import os
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, Self

import jax
from etils import epath

from bert_jax.errors import RunStopped
from bert_jax.files.atomic import refusal_of
from bert_jax.parallel.channel import end_now
from bert_jax.parallel.compiling import is_compiling
from bert_jax.parallel.stop_signal import STOP
from bert_jax.train.goodput import Stopwatch
from bert_jax.train.prefetch import is_waiting_for_input
from bert_jax.train.sections import WatchdogSection

HANGS: Final = 43  # exit code after a hang
FACTOR: Final = 10.0  # time limit of a step, in medians of recent step times
_LAST_STEPS: Final = 64  # maximum steps for the median
_FEWEST_STEPS: Final = 5  # minimum steps for the median
# Time limit of waiting for input; it exceeds the retries of a bucket and delays of a slow disk.
_INPUT_SECONDS: Final = 1200.0
# Time limit of writing the stacks, because the storage may hang as well.
_WRITING_SECONDS: Final = 30.0
_STANDARD_ERROR: Final = 2


class Watchdog:
    """Watches the time since the last step, or the last batch of an evaluation; a context manager.

    The time excludes compilation (`bert_jax.parallel.compiling.compiling`), saves and restores.
    Waiting for input has its own limit. After a signal, the last save has no limit.
    """

    def __init__(
        self, section: WatchdogSection | None, watch: Stopwatch, run_dir: epath.Path
    ) -> None:
        """Starts nothing yet. Without a section, the watchdog does nothing."""
        self._section, self._watch, self._run_dir = section, watch, run_dir
        self._steps: collections.deque[float] = collections.deque(maxlen=_LAST_STEPS)
        self._beat = time.monotonic()
        self._input = 0.0  # seconds waited for input until the end of the last step
        self._evaluated = (False, 0)  # whether an evaluation runs, and number of all its batches
        self._ended = threading.Event()

    def step_done(self) -> None:
        """Records the end of a step."""
        now, waited = time.monotonic(), self._watch.input_seconds
        self._steps.append(max(now - self._beat - (waited - self._input), 0.0))
        self._beat, self._input = now, waited

    def __enter__(self) -> Self:
        if self._section is not None:
            floor = self._section.floor_seconds
            threading.Thread(
                target=self._watch_time, args=(floor,), daemon=True, name="watchdog"
            ).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()

    def _watch_time(self, floor: float) -> None:
        while not self._ended.wait(min(floor / 10, 5.0)):
            kind = self._watch.kind
            evaluated = (kind == "evaluate", STOP.batches)
            unwatched = STOP.ending or is_compiling() or kind not in ("train", "input", "evaluate")
            if unwatched or evaluated != self._evaluated:
                self._beat, self._evaluated = time.monotonic(), evaluated
                continue
            steps = list(self._steps)
            if len(steps) < _FEWEST_STEPS:
                continue
            median, waited = statistics.median(steps), time.monotonic() - self._beat
            limit = max(floor, FACTOR * median)
            if kind == "train":
                waited -= self._watch.input_seconds - self._input
            elif kind == "input" or is_waiting_for_input():
                limit = max(limit, _INPUT_SECONDS)
            if waited > limit:
                what = "batch of an evaluation" if kind == "evaluate" else "step"
                self._end(
                    RunStopped(
                        f"watchdog.no_{what.split()[0]}",
                        f"no {what} finished for {waited:.0f} s (median step: {median:.3g} s).",
                    )
                )

    def _end(self, hang: RunStopped) -> None:
        """Writes the stacks to standard error and the run directory, and ends the process.

        The process ends even if standard error or the storage hangs.
        """
        stderr_works = False
        try:
            text = _stacks()
            stderr_works = (
                _refusal_in_time(lambda: os.write(_STANDARD_ERROR, text.encode())) is None
            )
            path = self._run_dir / f"stacks_{jax.process_index()}.txt"
            refusal = _refusal_in_time(lambda: path.write_text(text))
            hang = hang.followed_by(
                " Run the same command again to resume from the last checkpoint. Stacks of all "
                "threads: "
                f"{path if refusal is None else f'on standard error only ({path}: {refusal})'}."
            )
        finally:
            end_now(HANGS, hang.line(), printed=not stderr_works)


def _stacks() -> str:
    """Returns the stack of every thread without source lines, because reading files may hang."""
    lines: list[str] = []
    for thread, frame in sys._current_frames().items():
        lines.append(f"Thread {thread:#x} (most recent call first):")
        while frame is not None:
            code = frame.f_code
            lines.append(f'  File "{code.co_filename}", line {frame.f_lineno} in {code.co_name}')
            frame = frame.f_back
        lines.append("")
    return "\n".join(lines)


def _refusal_in_time(write: Callable[[], object]) -> str | None:
    """Calls `write`; returns the reason if it fails or takes too long, else None."""
    done: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=lambda: done.put(refusal_of(write)), daemon=True).start()
    try:
        return done.get(timeout=_WRITING_SECONDS)
    except queue.Empty:
        return f"no answer within {_WRITING_SECONDS:g} s"
