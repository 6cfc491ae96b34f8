"""Stopping by a signal: every process of a job saves at the same step and ends with code 3.

SIGTERM (a machine gets it half a minute before it is preempted) or Ctrl-C on any process is a
request. All processes hear of it within a second and exchange their counts of steps. They stop one
step after the furthest; no process begins a step beyond the next one before it knows the counts. If
no process has an unsaved step, all end at once. A process whose bucket does not answer ends too:
its steps since the last checkpoint are lost.
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
from bert_jax.files.patience import OUTAGE
from bert_jax.parallel.channel import INTERRUPTED, Channel, end_now

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# The launcher and the process group both pass a signal on: that is one request.
_SAME_REQUEST_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.2
_AGREE_SECONDS: Final = 10.0  # then the processes ask each other again

Handler = Callable[[int, Any], None]  # (number of the signal, frame)


class SignalPipe:
    """Calls a function for SIGTERM and Ctrl-C in a thread of its own; a context manager.

    Python runs a handler between two instructions of the main thread, but that thread may compile
    or wait in C++ for minutes. The interpreter writes the signal's number to a pipe at once.
    """

    def __init__(self, hear: Callable[[int], None], *, handler: Handler = lambda *_: None) -> None:
        """Calls `hear` in the thread, and `handler` in the main thread, which must call this."""
        self._hear = hear
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._thread = threading.Thread(target=self._run, daemon=True, name="signals")
        self._thread.start()
        self._woken = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, handler) for number in _SIGNALS}

    def give_back(self, number: int) -> None:
        """Restores the former handler of one signal."""
        signal.signal(number, self._before[signal.Signals(number)])

    def close(self) -> None:
        """Restores the former handlers, after `hear` has returned for all signals."""
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
    """A request to stop came in an evaluation, which ends on all processes after the same batch."""


class StopSignal:
    """Handles SIGTERM and SIGINT of this process. There is one, `STOP`.

    It counts the steps of all loops of the process, such as the runs of a sweep.

    Attributes:
        name: of the first signal, such as "SIGTERM"; empty before it.
        ending: the process ends as soon as its last checkpoint is whole, and no step will follow.
        batches: number of batches that evaluations have begun.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._steps = 0  # dispatched, and batches of evaluations
        self._owns_process = False
        self._held = False  # a signal is answered when the processes have met
        self._pipe: SignalPipe | None = None
        self._channel: Channel | None = None
        self._cutting = False  # in an evaluation that may be cut short
        self._run = 0  # of a program that trains several times by the library
        self.ending = False
        self.batches = 0
        self._forget()

    def _forget(self) -> None:
        """Forgets the run and the request in it."""
        self.name, self._came = "", 0.0
        self._limit: int | None = None  # of steps, while the processes have still to agree
        self._stop_at: int | None = None  # the agreement
        self._unsaved = False  # a step was dispatched that no checkpoint holds
        self._saved_step = 0  # which the last checkpoint holds, or is about to
        self._wait_for_save: Callable[[], None] = lambda: None

    def listen(self, *, owns_process: bool, hold: bool = False) -> None:
        """Hears signals from now on, if called in the main thread.

        With `owns_process` the process ends, as the command line does, as soon as all steps are
        saved; otherwise the train loop alone ends, after its next step. With `hold` it answers no
        signal, except a second one, until the processes have met, or `release`.
        """
        if threading.current_thread() is threading.main_thread() and self._pipe is None:
            self._owns_process, self._held = owns_process, hold
            self._pipe = SignalPipe(self._hear, handler=self._handler)

    def release(self) -> None:
        """Ends the process if a held signal has come; call it in the main thread."""
        with self._lock:
            held, self._held = self._held, False
        if held and self.name:
            self.end_without_a_step(self.name)

    def agree_over(self, channel: Channel) -> None:
        """Agrees with the other processes from now on; ends the process if one held a signal.

        Each process must call it.
        """
        with self._lock:
            self._channel, self._held = channel, False
            mine = self.name
        self._expect_notice()
        if name := next(filter(None, channel.exchange(mine)), None):
            self.end_without_a_step(name)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hears signals at least until the end of the block; then forgets the run."""
        if self._pipe is not None:
            yield
            return
        self.listen(owns_process=False)
        try:
            yield
        finally:
            if self._pipe is not None:  # called in the main thread
                self._pipe.close()
                self._pipe = None
                self._run += 1
                self._expect_notice()
                self._forget()
                OUTAGE.stopping = False

    def saved(self, step: int, wait_for_save: Callable[[], None]) -> None:
        """Says that all steps are in the checkpoint of `step`, 0 for none, or about to be.

        `wait_for_save` returns when it is whole.
        """
        with self._lock:
            self._unsaved, self._wait_for_save = False, wait_for_save
            self._saved_step = step

    def due(self) -> bool:
        """Counts a dispatched step; returns on all processes whether to save and stop after it."""
        with self._lock:
            self._unsaved = True
            return self._count_step()

    @contextlib.contextmanager
    def cutting(self) -> Iterator[None]:
        """Lets `between_batches` end the block."""
        self._cutting = True
        try:
            yield
        finally:
            self._cutting = False

    def between_batches(self) -> None:
        """Raises EvaluationCut in a block of `cutting`, on all processes before the same batch.

        Call it before each batch, on all processes.
        """
        self.batches += 1
        if self._cutting:
            with self._lock:
                agreed = self._count_step()
            if agreed:
                raise EvaluationCut

    def end_without_a_step(self, name: str) -> NoReturn:
        """Ends the process, in which no step is unsaved, for a signal to it or to another."""
        self._end_beside(name)
        while True:
            threading.Event().wait()

    def _count_step(self) -> bool:
        """Counts a step, or a batch that counts like one; says whether it is time to stop."""
        self._steps += 1
        while self._stop_at is None and self._limit is not None and self._steps >= self._limit:
            self._lock.wait()  # for the agreement, or the end
        return self._stop_at is not None and self._steps >= self._stop_at

    def _hear(self, number: int) -> None:
        """Runs in the thread of the pipe."""
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
        """Whether a signal that comes now is another request."""
        return bool(self.name) and time.monotonic() - self._came > _SAME_REQUEST_SECONDS

    def _begin(self, name: str) -> None:
        """Records the first signal; call it with the lock."""
        if not self.name:
            self.name, self._came = name, time.monotonic()
        OUTAGE.stopping = True  # storage that does not answer is given up sooner

    def _agree(self, name: str, *, run: int) -> None:
        """Agrees on the last step, when a signal has come to any process."""
        with self._lock:
            if run != self._run:
                return  # it is over, on all processes soon
            self._begin(name)
            self._limit = self._steps + 1
            mine = self._steps, self._unsaved or not self._owns_process
        answers: list[Any] = [mine] if self._channel is None else []
        while not answers and self._channel is not None:
            if self._channel.leaving.is_set():
                return
            with contextlib.suppress(TimeoutError):  # a process that is dead ends this one
                answers = self._channel.exchange(mine, about=f"stop {run}", timeout=_AGREE_SECONDS)
        # A process that is a step ahead may have begun a save that the others have still to join.
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
        """Ends in a thread of its own: this one has a second signal to hear."""
        self.ending = True
        threading.Thread(target=self._end, args=(name,), daemon=True).start()

    def _watch_outage(self, name: str) -> None:
        """Ends the process if the last save finds no bucket."""
        while (given_up := OUTAGE.given_up()) is None:
            time.sleep(_POLL_SECONDS)
        self._end(name, given_up)

    def _end(self, name: str, given_up: Exception | None = None) -> None:
        """Ends the process once its last checkpoint is whole, or its bucket was given up."""
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
                "stopped by {signal}, but the last save failed: {reason}",
                signal=name,
                reason=first_line(error),
            )
            code, line = 1, failed.line()
        end_now(code, line)

    def _handler(self, number: int, _: object) -> None:
        """Runs in the main thread. The interpreter has told the other thread already."""
        if not self._owns_process and self._is_old:
            assert self._pipe is not None
            self._pipe.give_back(number)
            os.kill(os.getpid(), number)

    def _expect_notice(self) -> None:
        if self._channel is not None:
            agree = functools.partial(self._agree, run=self._run)
            self._channel.handle(f"stop.{self._run}", agree)


STOP: Final = StopSignal()
