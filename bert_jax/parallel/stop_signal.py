"""Stopping by a signal: every process of a job saves at the same step and ends with code 3.

SIGTERM (a machine that is taken back or maintained gets it half a minute before) or Ctrl-C on any
one process is a request. The thread that hears it asks for the count of steps of all processes,
through `Channel`; they agree to stop one step after the furthest. The answer sets a limit that a
process does not pass before it knows the agreement, so none can be beyond it, and a step costs one
comparison. Where no process has an unsaved step, all end at once. So does a process that waits for
a bucket which does not answer: its steps since the last checkpoint are lost.
"""

import contextlib
import dataclasses
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, Self

from bert_jax.errors import first_line
from bert_jax.files.patience import OUTAGE
from bert_jax.parallel.channel import Channel, end_now
from bert_jax.parallel.signal_pipe import SignalPipe
from bert_jax.parallel.wire import Message

INTERRUPTED: Final = 3  # the exit code of a run that a signal stopped: start it again
# The launcher and the process group both pass a signal on: that is one request.
_SAME_REQUEST_SECONDS: Final = 1.0
_POLL_SECONDS: Final = 0.2


class EvaluationCut(Exception):
    """A request to stop came in an evaluation, which ends on all processes after the same batch."""


@dataclasses.dataclass
class _Request:
    """What a signal has asked for, and what came of it."""

    signal: str = ""  # its name
    came: float = 0.0
    limit: int | None = None  # of steps: not to be passed before the agreement, or the end
    answers: dict[int, tuple[int, bool]] = dataclasses.field(default_factory=dict)
    stop_at: int | None = None  # the agreement

    def begin(self, name: str) -> None:
        """Takes a signal for the request, unless there has been one."""
        if not self.signal:
            self.signal, self.came = name, time.monotonic()

    @property
    def is_old(self) -> bool:
        """Whether a signal that comes now is another request."""
        return bool(self.signal) and time.monotonic() - self.came > _SAME_REQUEST_SECONDS

    def halts(self, steps: int) -> bool:
        """Whether a process has to wait for the agreement, or its end, after so many steps."""
        return self.limit is not None and self.stop_at is None and steps >= self.limit


class StopSignal:
    """This process's ear for signals. There is one, `STOP`; the train loop asks it at every step.

    Its count of steps goes on over all loops of the process, such as those of a sweep.

    Attributes:
        ending: the process ends as soon as its last checkpoint is whole, and no step will follow.
        batches: number of batches that evaluations have begun.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._steps = 0  # dispatched, and batches of evaluations
        self._unsaved = False  # a step was dispatched that no checkpoint holds
        self._wait_for_save: Callable[[], None] = lambda: None
        self._saved_step = 0  # which the last checkpoint holds, or is about to
        self._request = _Request()
        self._owns_process = False
        self._held = False  # a signal is answered when the processes have met
        self._pipe: SignalPipe | None = None
        self._channel: Channel | None = None
        self._also: Callable[[int], bool] = lambda _: False
        self._cutting = False  # in an evaluation that may be cut short
        self.ending = False
        self.batches = 0

    def listen(self, *, owns_process: bool) -> None:
        """Hears signals from now on. Call it in the main thread; elsewhere it does nothing.

        A process that it owns ends where nothing has to be saved, as the command line does;
        otherwise the train loop alone ends, after its next step.
        """
        if threading.current_thread() is not threading.main_thread() or self._pipe is not None:
            return
        self._owns_process = owns_process
        self._pipe = SignalPipe(self._hear, handler=self._handler)
        self._pipe.install()

    def hold(self) -> None:
        """Answers no signal until `release`.

        The other processes must hear of a signal that comes before all have met, or they would wait
        for this one. A second signal ends the process.
        """
        self._held = True

    def release(self) -> None:
        """Answers a signal that has come since `hold`.

        Call it in the main thread. It does not return if the process ends by the signal.
        """
        with self._lock:
            if not self._held:
                return
            self._held, name = False, self._request.signal
        if name:
            self._ask(name)
        while self.ending:  # the other thread ends the process
            time.sleep(1)

    @property
    def is_asked(self) -> bool:
        """Whether a signal has come."""
        return bool(self._request.signal)

    def listen_again(self) -> None:
        """Puts the handlers back in place, after a library has put its own there."""
        if self._pipe is not None and threading.current_thread() is threading.main_thread():
            self._pipe.install()

    @contextlib.contextmanager
    def listening(self) -> Iterator[Self]:
        """Hears signals at least until the end of the block."""
        if self._pipe is not None:
            yield self
            return
        self.listen(owns_process=False)
        try:
            yield self
        finally:
            self._stop_listening()

    def agree_over(self, channel: Channel, also: Callable[[int], bool]) -> None:
        """Agrees with the other processes from now on.

        `also` is another service's agreement, step → whether to stop; it is asked too.
        """
        with self._lock:
            self._channel, self._also = channel, also
            for kind, handler in (
                ("stop", self._on_request),
                ("count", self._on_count),
                ("counted", self._on_counted),
                ("agreed", self._on_agreed),
            ):
                channel.handle(kind, handler)

    def saved(self, step: int, wait_for_save: Callable[[], None]) -> None:
        """Says that nothing is unsaved: a loop begins, or has started to save.

        `step` is what the checkpoint holds, or is about to, 0 for none; `wait_for_save` returns
        when it is whole.
        """
        with self._lock:
            self._unsaved, self._wait_for_save = False, wait_for_save
            self._saved_step = step
            if self._channel is not None:
                self._channel.step = step

    def due(self, step: int) -> bool:
        """Says whether to save and stop after a step that was just dispatched; all say the same."""
        with self._lock:
            self._unsaved = True
            if self._channel is not None:
                self._channel.step = step
            agreed = self._count_step()
        return self._also(step) or agreed

    @contextlib.contextmanager
    def cutting(self) -> Iterator[None]:
        """Lets `between_batches` end the block."""
        self._cutting = True
        try:
            yield
        finally:
            self._cutting = False

    def between_batches(self) -> None:
        """Ends an evaluation that may be cut short: call it before each batch, on all processes.

        Raises EvaluationCut, on all processes before the same batch.
        """
        self.batches += 1
        if not self._cutting:
            return
        with self._lock:
            agreed = self._count_step()
        if agreed:
            raise EvaluationCut

    def _count_step(self) -> bool:
        """Counts a step, or a batch that counts like one; says whether it is time to stop."""
        self._steps += 1
        while self._request.halts(self._steps):
            self._lock.wait()  # a round trip; a death on the way ends the process
        return self._request.stop_at is not None and self._steps >= self._request.stop_at

    def _hear(self, number: int) -> None:
        name = signal.Signals(number).name
        with self._lock:
            first = not self._request.signal
            self._begin(name)
            held = self._held
        if first and not held:
            self._ask(name)
        elif not first and self._owns_process and self._request.is_old:
            self._end_at_once(number)

    def _ask(self, name: str) -> None:
        if self._channel is None:
            with self._lock:
                steps, unsaved = self._answer()
                self._request.stop_at = steps + 1 if unsaved else None
            if unsaved:
                self._watch_outage(name)
            else:
                self._end_beside(name)
        elif self._channel.index == 0:
            self._on_request(0, {"signal": name})
        else:
            self._channel.send("stop", signal=name)

    def _on_request(self, _: int, message: Message) -> None:
        """Process 0: asks all for their counts, at the first request."""
        assert self._channel is not None
        with self._lock:
            if self._request.limit is not None:
                return
            self._begin(str(message["signal"]))
            self._request.answers[0] = self._answer()
        self._channel.send("count", signal=message["signal"])

    def _on_count(self, _: int, message: Message) -> None:
        assert self._channel is not None
        with self._lock:
            self._begin(str(message["signal"]))
            steps, unsaved = self._answer()
        self._channel.send("counted", steps=steps, unsaved=unsaved)

    def _on_counted(self, sender: int, message: Message) -> None:
        """Process 0: decides when all have answered."""
        assert self._channel is not None
        self._request.answers[sender] = int(message["steps"]), bool(message["unsaved"])
        if len(self._request.answers) < self._channel.count:
            return
        answers = self._request.answers.values()
        # One that is a step ahead may have begun a save that the others have still to join.
        unsaved = any(unsaved for _, unsaved in answers) or len({steps for steps, _ in answers}) > 1
        stop_at = max(steps for steps, _ in answers) + 1 if unsaved else None
        self._channel.send("agreed", stop_at=stop_at)
        self._on_agreed(0, {"stop_at": stop_at})

    def _on_agreed(self, _: int, message: Message) -> None:
        if message["stop_at"] is None:
            self._end_beside(self._request.signal)
            return
        with self._lock:
            self._request.stop_at = int(message["stop_at"])
            self._lock.notify_all()
        self._watch_outage(self._request.signal)

    def _begin(self, name: str) -> None:
        """Takes a signal for the request; storage that does not answer is given up sooner."""
        self._request.begin(name)
        OUTAGE.stopping = True

    def _answer(self) -> tuple[int, bool]:
        """Returns steps, and whether one is unsaved; from now on none begins but by agreement."""
        self._request.limit = self._steps + 1
        return self._steps, self._unsaved or not self._owns_process

    def _end_beside(self, name: str) -> None:
        """Ends in a thread of its own: this one has others to hear, or a second signal."""
        self.ending = True
        threading.Thread(target=self._end, args=(name,), daemon=True).start()

    def _watch_outage(self, name: str) -> None:
        """Ends the process in a thread of its own if the last save finds no bucket."""
        if not self._owns_process:
            return  # the request that waits raises

        def watch() -> None:
            while (given_up := OUTAGE.given_up()) is None:
                time.sleep(_POLL_SECONDS)
            self._end(name, given_up)

        threading.Thread(target=watch, daemon=True).start()

    def _end(self, name: str, given_up: Exception | None = None) -> None:
        """Ends the process once its last checkpoint is whole.

        Steps may be unsaved only if the bucket was given up, for the reason that is given.
        """
        held = "before the first step: nothing had to be saved"
        if self._saved_step:
            held = f"at step {self._saved_step}: its checkpoint stands"
        code, line = INTERRUPTED, f"stopped by {name} {held}"
        try:
            if given_up is not None and self._unsaved:
                raise given_up
            self._wait_for_save()
        except Exception as error:
            code, line = 1, f"stopped by {name}, and the last save failed: {first_line(error)}"
        if self._channel is not None and code == INTERRUPTED:
            self._channel.hang_up()
        elif self._channel is not None:
            self._channel.fail(code, line)
        end_now(code, line)

    def _end_at_once(self, number: int) -> None:
        if self._channel is not None:
            self._channel.fail(128 + number, f"a second {signal.Signals(number).name}")
        stands = "the last whole checkpoint stands" if self._saved_step else "nothing was saved"
        end_now(128 + number, f"a second {signal.Signals(number).name}: ended at once; {stands}")

    def _handler(self, number: int, _: object) -> None:
        """Runs in the main thread. The interpreter has told the other thread already."""
        if not self._owns_process and self._request.is_old:
            assert self._pipe is not None
            self._pipe.give_back(number)
            os.kill(os.getpid(), number)

    def _stop_listening(self) -> None:
        """Gives signals back to whoever had them; what was asked for is forgotten."""
        if self._pipe is None:
            return
        self._pipe.close()
        self._pipe = None
        self._request, self._unsaved, self._saved_step = _Request(), False, 0
        OUTAGE.stopping = False
        self._wait_for_save = lambda: None


STOP: Final = StopSignal()
