"""A step that takes far longer than the others: say where every thread stands, and end.

A hang tells nothing by itself: a device, a collective operation or a file system does not answer,
and a job costs money until someone looks. Exit code 43 tells whoever started it to start it again.
"""

import collections
import faulthandler
import os
import statistics
import tempfile
import threading
import time
from typing import Final, Self

import jax
from etils import epath

from bert_jax.parallel.channel import current_channel, end_now
from bert_jax.parallel.compiling import is_compiling
from bert_jax.train.goodput import Stopwatch
from bert_jax.train.sections import WatchdogSection

HANGS: Final = 43  # the exit code
_LAST_STEPS: Final = 64  # whose median is taken
_FEWEST_STEPS: Final = 5
# Longer than files in a bucket are asked for again, and than a slow disk takes.
_INPUT_SECONDS: Final = 1200.0


class Watchdog:
    """Watches the time since the last step was done; a context manager.

    Only what the stopwatch counts as training is watched, and of that not what is compiled or
    loaded (`bert_jax.parallel.compiling.compiling`). Waiting for input is no part of a step, and
    hangs after a time of its own.
    """

    def __init__(
        self, section: WatchdogSection | None, watch: Stopwatch, run_dir: epath.Path
    ) -> None:
        """Begins to watch with the block; without a section no step is taken to hang."""
        self._section, self._watch, self._run_dir = section, watch, run_dir
        self._steps: collections.deque[float] = collections.deque(maxlen=_LAST_STEPS)
        self._beat = time.monotonic()
        self._input = 0.0  # seconds waited for input before the last step was done
        self._ended = threading.Event()

    def step_done(self) -> None:
        """Says that a step is done."""
        now, waited = time.monotonic(), self._watch.input_seconds
        self._steps.append(max(now - self._beat - (waited - self._input), 0.0))
        self._beat, self._input = now, waited

    def __enter__(self) -> Self:
        if self._section is not None:
            threading.Thread(
                target=self._look, args=(self._section,), daemon=True, name="watchdog"
            ).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._ended.set()

    def _look(self, section: WatchdogSection) -> None:
        pause = min(section.floor_seconds / 10, 5.0)
        while not self._ended.wait(pause):
            kind = self._watch.kind
            if is_compiling() or kind not in ("train", "input"):
                self._beat = time.monotonic()
                continue
            steps = list(self._steps)
            if len(steps) < _FEWEST_STEPS:
                continue
            median, waited = statistics.median(steps), time.monotonic() - self._beat
            limit = max(section.floor_seconds, section.factor * median)
            if kind == "train":
                waited -= self._watch.input_seconds - self._input
            else:
                limit = max(limit, _INPUT_SECONDS)
            if waited > limit:
                self._end(waited, median)

    def _end(self, waited: float, median: float) -> None:
        process = jax.process_index()
        path = self._run_dir / f"stacks_{process}.txt"
        with tempfile.TemporaryFile("w+") as stacks:
            faulthandler.dump_traceback(stacks, all_threads=True)
            stacks.seek(0)
            text = stacks.read()
        os.write(2, text.encode())
        where = str(path)
        try:
            path.write_text(text)
        except OSError as error:
            where = f"nowhere ({error})"
        line = (
            f"a step hangs: {waited:.0f} s since the last one was done, of which the median is "
            f"{median:.3g} s; the stacks of all threads are in {where}; the same command goes on "
            f"from the last checkpoint"
        )
        if (channel := current_channel()) is not None:
            channel.fail(HANGS, line)
        end_now(HANGS, line)
