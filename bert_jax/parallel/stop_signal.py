"""Stopping by a signal: every process of a job saves at the same step and exits with code 3.

SIGTERM (sent to a machine half a minute before preemption) or Ctrl-C on any process requests a
stop. All processes learn of it within a second and exchange their step counts. They stop one step
after the highest count. Until a process knows the counts, it begins at most one more step. If no
process has an unsaved step, all exit at once. If the bucket does not answer, the processes exit as
well, and the steps since the last checkpoint are lost.
"""

import contextlib
import functools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn, Self

from bert_jax.errors import RunStopped, first_line
from bert_jax.files.storage_retries import OUTAGE
from bert_jax.parallel.channel import INTERRUPTED, Channel, end_now

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# A launcher and the process group may both forward a signal. Signals within this time are one
# request.
_SAME_REQUEST_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.2
_AGREE_SECONDS: Final = 10.0  # time limit of one exchange, which is then repeated

Handler = Callable[[int, Any], None]  # (signal number, frame)


class SignalPipe:
    """Calls a function in a separate thread on SIGTERM and Ctrl-C; a context manager.

    Python runs signal handlers in the main thread, which may compile or wait in C++ for minutes.
    But the interpreter writes the signal number to a pipe at once, and the thread reads the pipe.
    """

    def __init__(self, hear: Callable[[int], None], *, handler: Handler = lambda *_: None) -> None:
        """Registers `hear` for the thread and `handler` for the main thread.

        Only the main thread may call this.
        """
        self._hear = hear
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._thread = threading.Thread(target=self._run, daemon=True, name="signals")
        self._thread.start()
        self._woken = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, handler) for number in _SIGNALS}

    def give_back(self, number: int) -> None:
        """Restores the previous handler of one signal."""
        signal.signal(number, self._before[signal.Signals(number)])

    def close(self) -> None:
        """Restores the previous handlers, after `hear` has returned for all signals."""
        signal.set_wakeup_fd(self._woken)
        for number in self._before:
            self.give_back(number)
        os.close(self._write)  # ends the thread
        self._thread.join()
        os.close(self._read)

    def _run(self) -> None:
        while heard := os.read(self._read, 1):
            if heard[0] in _SIGNALS:
                self._hear(heard[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class EvaluationCut(Exception):
    """A request to stop ends an evaluation, after the same batch on all processes."""


class StopSignal:
    """Handles SIGTERM and SIGINT for this process. The only instance is `STOP`.

    It counts the steps of all train loops of the process, such as the runs of a sweep.

    Attributes:
        name: name of the first signal, such as "SIGTERM". Empty if there was none.
        ending: whether the process only waits for its last checkpoint before it exits.
        batches: number of batches that evaluations have begun.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._steps = 0  # dispatched steps, and batches of evaluations
        self._owns_process = False
        self._held = False  # whether the response to a signal is delayed; see `listen`
        self._pipe: SignalPipe | None = None
        self._channel: Channel | None = None
        self._cutting = False  # whether the current evaluation may be interrupted
        self._run = 0  # index of the run, in a program that trains several times
        self.ending = False
        self.batches = 0
        self._forget()

    def _forget(self) -> None:
        """Resets the state of a run and its request to stop."""
        self.name, self._came = "", 0.0
        self._limit: int | None = None  # step count at which to wait until the processes agree
        self._stop_at: int | None = None  # step count at which the processes agreed to stop
        self._unsaved = False  # whether a dispatched step is in no checkpoint
        self._saved_step = 0  # step of the last checkpoint, which may still be written
        self._wait_for_save: Callable[[], None] = lambda: None

    def listen(self, *, owns_process: bool, hold: bool = False) -> None:
        """Starts to handle signals. Does nothing outside the main thread.

        Args:
            owns_process: whether a signal ends the process, as on the command line, once all steps
                are saved. If False, a signal ends only the train loop, after its next step.
            hold: whether to delay the response to a first signal until `agree_over` or `release`.
        """
        if threading.current_thread() is threading.main_thread() and self._pipe is None:
            self._owns_process, self._held = owns_process, hold
            self._pipe = SignalPipe(self._hear, handler=self._handler)

    def release(self) -> None:
        """Ends the delay of `listen`. Ends the process if it has received a signal."""
        with self._lock:
            held, self._held = self._held, False
        if held and self.name:
            self.end_without_a_step(self.name)

    def agree_over(self, channel: Channel) -> None:
        """Connects to the other processes. Ends this process if any has received a signal.

        Every process must call it.
        """
        with self._lock:
            self._channel, self._held = channel, False
            mine = self.name
        self._expect_notice()
        if name := next(filter(None, channel.exchange(mine)), None):
            self.end_without_a_step(name)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handles signals in the block. Resets the state after it, unless `listen` was called."""
        if self._pipe is not None:
            yield
            return
        self.listen(owns_process=False)
        try:
            yield
        finally:
            if self._pipe is not None:  # None outside the main thread
                self._pipe.close()
                self._pipe = None
                self._run += 1
                self._expect_notice()
                self._forget()
                OUTAGE.stopping = False

    def saved(self, step: int, wait_for_save: Callable[[], None]) -> None:
        """Records that the checkpoint of `step` has all steps. `step` is 0 without a checkpoint.

        `wait_for_save` returns when the checkpoint is complete.
        """
        with self._lock:
            self._unsaved, self._wait_for_save = False, wait_for_save
            self._saved_step = step

    def due(self) -> bool:
        """Counts a dispatched step and returns whether to save and stop after it.

        The result is the same on all processes.
        """
        with self._lock:
            self._unsaved = True
            return self._count_step()

    @contextlib.contextmanager
    def cutting(self) -> Iterator[None]:
        """Allows `between_batches` to raise EvaluationCut in the block."""
        self._cutting = True
        try:
            yield
        finally:
            self._cutting = False

    def between_batches(self) -> None:
        """Counts a batch of an evaluation; every process must call it before each batch.

        In a block of `cutting`, a request to stop raises EvaluationCut before the same batch on all
        processes.
        """
        self.batches += 1
        if self._cutting:
            with self._lock:
                agreed = self._count_step()
            if agreed:
                raise EvaluationCut

    def end_without_a_step(self, name: str) -> NoReturn:
        """Ends the process, which has no unsaved step, after a signal to any process."""
        self._end_beside(name)
        while True:
            threading.Event().wait()

    def _count_step(self) -> bool:
        """Counts a step or a batch of an evaluation; returns whether to stop."""
        self._steps += 1
        while self._stop_at is None and self._limit is not None and self._steps >= self._limit:
            self._lock.wait()  # until the processes agree, or the process ends
        return self._stop_at is not None and self._steps >= self._stop_at

    def _hear(self, number: int) -> None:
        """Handles a signal in the thread of the pipe."""
        name = signal.Signals(number).name
        with self._lock:
            first, held, old = not self.name, self._held, self._is_old
            self._begin(name)
        if first and not held:
            if self._channel is not None:
                self._channel.notify(f"stop.{self._run}", name)
            else:
                self._agree(name, run=self._run)
        elif not first and old and self._owns_process:
            saved = (
                "The last complete checkpoint remains." if self._saved_step else "Nothing saved."
            )
            end_now(128 + number, f"ended by a second {name}. {saved}")

    @property
    def _is_old(self) -> bool:
        """Whether a signal now would be a second request."""
        return bool(self.name) and time.monotonic() - self._came > _SAME_REQUEST_SECONDS

    def _begin(self, name: str) -> None:
        """Records the first signal; the caller has the lock."""
        if not self.name:
            self.name, self._came = name, time.monotonic()
        OUTAGE.stopping = True  # shortens the time limit of storage that does not answer

    def _agree(self, name: str, *, run: int) -> None:
        """Agrees with the other processes on the last step, after a signal to any of them."""
        with self._lock:
            if run != self._run:
                return  # the run has ended, or will end soon, on all processes
            self._begin(name)
            self._limit = self._steps + 1
            mine = self._steps, self._unsaved or not self._owns_process
        answers: list[Any] = [mine] if self._channel is None else []
        while not answers and self._channel is not None:
            if self._channel.leaving.is_set():
                return
            # If a process is dead, the channel ends this process.
            with contextlib.suppress(TimeoutError):
                answers = self._channel.exchange(mine, about=f"stop {run}", timeout=_AGREE_SECONDS)
        # A process that is a step ahead may have begun a save that all processes must join.
        unsaved = any(unsaved for _, unsaved in answers) or len({steps for steps, _ in answers}) > 1
        if not unsaved:
            self._end_beside(name)
            return
        with self._lock:
            self._stop_at = max(steps for steps, _ in answers) + 1
            self._lock.notify_all()
        if self._owns_process:
            threading.Thread(target=self._watch_outage, args=(name,), daemon=True).start()

    def _end_beside(self, name: str) -> None:
        """Ends the process in a new thread, because this thread handles a second signal."""
        self.ending = True
        threading.Thread(target=self._end, args=(name,), daemon=True).start()

    def _watch_outage(self, name: str) -> None:
        """Ends the process if the bucket of the last save does not answer."""
        while (given_up := OUTAGE.given_up()) is None:
            time.sleep(_POLL_SECONDS)
        self._end(name, given_up)

    def _end(self, name: str, given_up: Exception | None = None) -> None:
        """Ends the process once the last checkpoint is complete or the bucket is given up."""
        code, line = INTERRUPTED, f"stopped by {name} before the first step. Nothing to save."
        if self._saved_step:
            line = f"stopped by {name} at step {self._saved_step}, saved."
        try:
            if given_up is not None and self._unsaved:
                raise given_up
            self._wait_for_save()
        except Exception as error:
            failed = RunStopped(
                "checkpoint.last_save_failed",
                f"stopped by {name}, but the last save failed: {first_line(error)}",
            )
            code, line = 1, failed.line()
        end_now(code, line)

    def _handler(self, number: int, _: object) -> None:
        """Runs in the main thread. The thread of the pipe has the signal already."""
        if not self._owns_process and self._is_old:
            assert self._pipe is not None
            self._pipe.give_back(number)
            os.kill(os.getpid(), number)

    def _expect_notice(self) -> None:
        if self._channel is not None:
            agree = functools.partial(self._agree, run=self._run)
            self._channel.handle(f"stop.{self._run}", agree)


STOP: Final = StopSignal()
