"""The processes of a running job: each hears from the others, and notices when one is gone.

Every process has one connection to process 0, which passes on what concerns all. A heartbeat each
second carries the step; a connection that closes, or stays silent too long, is a process that is
gone. Then every process says so in the same line and ends with exit code 4: whatever it computed
with the others could not be finished anyway, and a collective operation would wait forever.
"""

import contextlib
import multiprocessing
import os
import queue
import selectors
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from bert_jax.errors import PeerLost
from bert_jax.parallel.roll_call import Present
from bert_jax.parallel.wire import Message

PEER_LOST: Final = 4  # the exit code
_BEAT_SECONDS: Final = 1.0
# What stops one process mostly stops all: each gets this long to say so itself.
_GRACE_SECONDS: Final = 10.0
# A process killed closes its connection at once; an error that this explains waits so long for it.
_EXPLAIN_SECONDS: Final = 5.0
# JAX's shutdown barrier opens on all processes at once: who has passed it is not long before the
# others. So one that is gone while this one still waits was killed there.
_SHUTDOWN_SECONDS: Final = 5.0
# Closing a connection with something unread in it may discard what was sent over it.
_DELIVER_SECONDS: Final = 0.2

Handler = Callable[[int, Message], None]  # (index of the sender, message)


class Channel:
    """This process's way to the others. Handlers run in its thread, one at a time.

    Attributes:
        step: of this process's run, for the heartbeat.
        exit_code: which this process ends with when its work is done.
        jax_joined: whether JAX knows of the others, and waits for all of them before it ends.
    """

    def __init__(self, index: int, present: Present, *, silence_seconds: float) -> None:
        """Takes over the connections of a roll call.

        A process without a heartbeat for `silence_seconds` counts as gone.
        """
        self.index, self.members = index, dict(present.members)
        self.step: int | None = None
        self.exit_code = 0
        self.jax_joined = False
        self._wires, self._silence = dict(present.wires), silence_seconds
        self._heard = dict.fromkeys(self._wires, time.monotonic())
        self._steps: dict[int, int] = {}
        self._left: set[int] = set()  # processes that are done
        self._all_left = threading.Event()
        self._one_gone = False  # that was done
        self._shutdown_until: float | None = None
        self._ending: tuple[float, str] | None = None
        self._over = False
        self._lock = threading.Lock()
        self._rounds = 0  # of `exchange` without a name
        self._said: dict[str, dict[int, Any]] = {}  # round → values by process, at process 0
        self._heard_all: dict[str, queue.SimpleQueue[list[Any]]] = {}  # by round
        self._handlers: dict[str, Handler] = {
            "beat": self._beat,
            "left": self._leave,
            "all_left": lambda *_: self._all_left.set(),
            "failed": self._fail,
            "gone": lambda _, message: self.end(PEER_LOST, str(message["line"])),
            "said": lambda sender, message: self._say(sender, message["round"], message["value"]),
            "all_said": lambda _, message: self._answers(message["round"]).put(message["values"]),
        }

    @property
    def count(self) -> int:
        """Of the processes, this one included."""
        return len(self.members)

    def start(self) -> None:
        """Starts to send and to hear heartbeats."""
        self._heard = dict.fromkeys(self._wires, time.monotonic())
        threading.Thread(target=self._run, daemon=True, name="channel").start()

    def handle(self, kind: str, handler: Handler) -> None:
        """Calls a function for every message of a kind."""
        self._handlers[kind] = handler

    def send(self, kind: str, **values: Any) -> None:
        """Sends a message to process 0; from process 0, to all others."""
        for wire in list(self._wires.values()):
            wire.send({"kind": kind, **values})

    def exchange(
        self, value: Any, *, about: str | None = None, timeout: float | None = None
    ) -> list[Any]:
        """Returns what each process says, in their order; a round trip, and no device waits.

        Call it on every process. A process that dies on the way ends the others. `value` is plain
        JSON. `about` names the round, once in a job; without it, call in the main thread of every
        process, in the same order. The others have `timeout` seconds to say theirs; None: no limit.
        Raises TimeoutError if they have not.
        """
        if about is None:
            self._rounds += 1
            about = str(self._rounds)
        if self.index == 0:
            self._say(0, about, value)
        else:
            self.send("said", round=about, value=value)
        try:
            return self._answers(about).get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"{self._missing(about)} within {timeout:g} s") from None
        finally:
            with self._lock:
                del self._heard_all[about]

    def leave(self) -> None:
        """Ends this process's part, and returns when all have ended theirs.

        What runs in one process only, such as an export, has no time-out: the others wait. JAX's
        shutdown barrier comes after it. There JAX would wait minutes for a process that was killed,
        and then abort: so this one ends without it, since its work is done.
        """
        if self._over:
            return
        _flush()
        if self.index == 0:
            self._leave(0, {})
        else:
            self.send("left")
        self._all_left.wait()
        self._over = not self.jax_joined

    def fail(self, code: int, line: str) -> None:
        """Tells the others why this process ends, which it does at once."""
        if not self._over:
            self.send("failed", index=self.index, code=code, line=line)
            self.hang_up()

    def hang_up(self) -> None:
        """Hears nothing more; the process ends at once, and the others know why."""
        self._over = True
        time.sleep(_DELIVER_SECONDS)

    def explain(self) -> None:
        """Gives this thread's error, which may come of another process's death, time to show it.

        Returns when no process is gone; else the process ends meanwhile.
        """
        time.sleep(_EXPLAIN_SECONDS)

    def end(self, code: int, line: str = "") -> None:
        """Ends this process from any thread, without waiting for what will never come."""
        self.hang_up()
        end_now(code, line)

    def _run(self) -> None:
        beat_due = 0.0
        with selectors.DefaultSelector() as selector:
            for index, wire in self._wires.items():
                selector.register(wire, selectors.EVENT_READ, index)
            while not self._over:
                for key, _ in selector.select(max(0.0, beat_due - time.monotonic())):
                    if not self._read(key.data):
                        selector.unregister(key.fileobj)
                now = time.monotonic()
                if now >= beat_due:
                    self.send("beat", step=self.step)
                    beat_due = now + _BEAT_SECONDS
                self._look(now)

    def _read(self, index: int) -> bool:
        """Hears a process; says whether there is more to come of it."""
        try:
            messages = self._wires[index].receive()
        except PeerLost as error:
            self._lost(index, str(error))
            return False
        self._heard[index] = time.monotonic()
        for message in messages:
            if handler := self._handlers.get(str(message.get("kind"))):
                handler(index, message)
        return True

    def _look(self, now: float) -> None:
        """Ends the process when another one is silent, or has failed some time ago."""
        for index, heard in self._heard.items():
            if now - heard > self._silence and index in self._wires:
                self._lost(index, f"nothing was heard of it for {self._silence:g} s")
        if self._ending and now > self._ending[0]:
            self.end(PEER_LOST, self._ending[1])
        if self._one_gone and self._all_left.is_set():
            self._shutdown_until = self._shutdown_until or now + _SHUTDOWN_SECONDS
            if now > self._shutdown_until:
                end_now(self.exit_code)

    def _lost(self, index: int, why: str) -> None:
        wire = self._wires.pop(index)
        if self._over or index in self._left or self._all_left.is_set():
            self._one_gone = True
            return
        wire.close()
        if self._ending:  # of something that it has said itself
            return
        step = self._steps.get(index)
        seen = f"last seen {'before its first step' if step is None else f'at step {step}'}"
        line = (
            f"{self.members[index]} is gone: {why}; {seen}; the same command on all hosts goes on "
            f"from the last checkpoint"
        )
        self.send("gone", line=line)
        self.end(PEER_LOST, line)

    def _say(self, sender: int, about: str, value: Any) -> None:
        """Process 0: passes on a round when it is complete."""
        with self._lock:
            values = self._said.setdefault(about, {})
            values[sender] = value
            if len(values) < self.count:
                return
            del self._said[about]
        everything = [values[index] for index in range(self.count)]
        self.send("all_said", round=about, values=everything)
        self._answers(about).put(everything)

    def _missing(self, about: str) -> str:
        """Says who has not spoken in a round, as far as this process knows."""
        said = self._said.get(about, ())
        missing = [str(member) for index, member in self.members.items() if index not in said]
        who = ", ".join(missing) if self.index == 0 else "another process"
        return f"nothing was heard of {who}"

    def _answers(self, about: str) -> queue.SimpleQueue[list[Any]]:
        """Returns where the values of a round come in, whoever asks first."""
        with self._lock:
            return self._heard_all.setdefault(about, queue.SimpleQueue())

    def _beat(self, index: int, message: Message) -> None:
        if isinstance(message.get("step"), int):
            self._steps[index] = message["step"]

    def _leave(self, index: int, _: Message) -> None:
        """Process 0: counts who is done."""
        self._left.add(index)
        if len(self._left) == self.count:
            self.send("all_left")
            self._all_left.set()

    def _fail(self, _: int, message: Message) -> None:
        member = self.members.get(int(message["index"]))
        line = f"{member} ended with exit code {message['code']}: {message['line']}"
        if self.index == 0:
            self.send("failed", **{k: v for k, v in message.items() if k != "kind"})
        if message["index"] != self.index and self._ending is None:
            self._ending = (time.monotonic() + _GRACE_SECONDS, line)


def end_now(code: int, line: str = "") -> None:
    """Ends the process from any thread: a line to standard error, then no exit handlers.

    Those would wait for other processes, and the main thread may hang in a collective operation.
    The process ends also where nobody reads standard error any more.
    """
    try:
        if line:
            with contextlib.suppress(OSError):
                os.write(2, f"bert-jax: {' '.join(line.split())}\n".encode())
        flush = threading.Thread(target=_flush, daemon=True)  # another thread may hold the lock
        flush.start()
        flush.join(1.0)
        for child in multiprocessing.active_children():
            child.kill()
    finally:
        os._exit(code)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


_channels: list[Channel] = []


def current_channel() -> Channel | None:
    """Returns this process's channel; None in a job of one process."""
    return _channels[0] if _channels else None


def set_channel(channel: Channel) -> None:
    """Makes a channel the one of this process."""
    _channels.append(channel)
