"""Ends a process whose step or evaluation hangs, and writes the stacks of all its threads.

A device, a collective operation or a file system may stop answering without an error, and the job
would cost money until someone looks. Exit code 43 tells the launcher to start it again.
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

HANGS: Final = 43  # the exit code
FACTOR: Final = 10.0  # times the median of the last steps
_LAST_STEPS: Final = 64  # the median is of these
_FEWEST_STEPS: Final = 5
# Longer than the retries of a bucket, and than a slow disk takes.
_INPUT_SECONDS: Final = 1200.0
# To write the stacks: the storage itself may hang.
_WRITING_SECONDS: Final = 30.0
_STANDARD_ERROR: Final = 2


class Watchdog:
    """Watches the time since the last step, or the last batch of an evaluation; a context manager.

    Compiling and loading a program do not count (`bert_jax.parallel.compiling.compiling`), nor do
    saving and restoring. Waiting for input has a limit of its own. After a signal has ended the
    run, the last save has no limit.
    """

    def __init__(
        self, section: WatchdogSection | None, watch: Stopwatch, run_dir: epath.Path
    ) -> None:
        """Begins to watch with the block; without a section it never ends the process."""
        self._section, self._watch, self._run_dir = section, watch, run_dir
        self._steps: collections.deque[float] = collections.deque(maxlen=_LAST_STEPS)
        self._beat = time.monotonic()
        self._input = 0.0  # seconds waited for input before the last step was done
        self._evaluated = (False, 0)  # whether an evaluation lasts, and batches of all so far
        self._ended = threading.Event()

    def step_done(self) -> None:
        """Counts a step."""
        now, waited = time.monotonic(), self._watch.input_seconds
        self._steps.append(max(now - self._beat - (waited - self._input), 0.0))
        self._beat, self._input = now, waited

    def __enter__(self) -> Self:
        if self._section is not None:
            floor = self._section.floor_seconds
            threading.Thread(target=self._look, args=(floor,), daemon=True, name="watchdog").start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()

    def _look(self, floor: float) -> None:
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
                values = {"seconds": waited, "median": median}
                if kind == "evaluate":
                    hang = RunStopped(
                        "watchdog.no_batch",
                        "no batch of an evaluation finished for {seconds:.0f} s (median step: "
                        "{median:.3g} s).",
                        **values,
                    )
                else:
                    hang = RunStopped(
                        "watchdog.no_step",
                        "no step finished for {seconds:.0f} s (median step: {median:.3g} s).",
                        **values,
                    )
                self._end(hang)

    def _end(self, hang: RunStopped) -> None:
        """Writes the stacks to standard error and the run, if they answer, and ends in any case."""
        heard = False
        try:
            text = _stacks()
            heard = _refusal_in_time(lambda: os.write(_STANDARD_ERROR, text.encode())) is None
            path = self._run_dir / f"stacks_{jax.process_index()}.txt"
            refusal = _refusal_in_time(lambda: path.write_text(text))
            hang = hang.followed_by(
                " Run the same command again to resume from the last checkpoint. Stacks of all "
                "threads: {stacks}.",
                stacks=path if refusal is None else f"on standard error only ({path}: {refusal})",
            )
        finally:
            end_now(HANGS, hang.line(), printed=not heard)


def _stacks() -> str:
    """Returns the stack of every thread, without reading a source file."""
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
    """Writes; returns why it failed or takes too long, None if it is done."""
    done: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    threading.Thread(target=lambda: done.put(refusal_of(write)), daemon=True).start()
    try:
        return done.get(timeout=_WRITING_SECONDS)
    except queue.Empty:
        return f"no answer within {_WRITING_SECONDS:g} s"
