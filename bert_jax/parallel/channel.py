"""Messages between the processes of a job, and their end, through JAX's coordination service.

Each process looks twice a second who is alive and what the others have said. The service counts a
process without heartbeats as dead. Then all others end with exit code 4: a collective operation
would wait for it forever. The death of process 0 takes the service along, and JAX aborts the other
processes in C++ (docs/adr/0012-processes.md).
"""

import contextlib
import json
import multiprocessing
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from bert_jax.errors import PeerLost, first_line

PEER_LOST: Final = 4  # the exit code
INTERRUPTED: Final = 3  # the exit code of a run that a signal stopped: start it again
_LOOK_SECONDS: Final = 0.5
# An error on one process is often an error on all: each gets this long to print its own line.
_GRACE_SECONDS: Final = 2.0
# Process 0 takes the service along, so it ends last; the others may still write a checkpoint.
_LAST_SECONDS: Final = 8.0
_LAST_SAVE_SECONDS: Final = 60.0
_EVER: Final = 7 * 86_400.0  # seconds
_NOTICES: Final = "bert_jax/notices"
_ROUNDS: Final = "bert_jax/rounds"


class Member(NamedTuple):
    """A process of the job."""

    process: int  # its index
    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.process} ({self.host}, pid {self.pid})"


class Channel:
    """This process's connection to the other processes of its job."""

    def __init__(
        self,
        index: int,
        members: Mapping[int, Member],
        *,
        client: Any,
        shut_down: Callable[[], None],
        silence_seconds: float,
    ) -> None:
        """Takes JAX's client of the coordination service, and the function that disconnects it.

        `silence_seconds` is the time-out of heartbeats.
        """
        self.index, self.members = index, dict(members)
        self.leaving = threading.Event()  # this process computes no more with the others
        self._client, self._shut_down, self._silence = client, shut_down, silence_seconds
        self._rounds: Counter[str] = Counter()  # that are complete, by what they are about
        self._kept: dict[str, list[str]] = {}  # paths of the last ones, by the first word of that
        self._handlers: dict[str, Callable[[str], None]] = {}
        self._answering: list[threading.Thread] = []
        self._watch = threading.Thread(target=self._look, daemon=True, name="channel")

    def start(self) -> None:
        """Starts to watch the other processes."""
        self._watch.start()

    def handle(self, name: str, handler: Callable[[str], None]) -> None:
        """Calls a function once, in a thread of its own, with the text of a notice."""
        self._handlers[name] = handler

    def notify(self, name: str, text: str) -> None:
        """Publishes a notice to all processes, this one too; the first of a name counts."""
        with contextlib.suppress(RuntimeError):  # it exists already, or the service is gone
            self._client.key_value_set(f"{_NOTICES}/{name}", text)

    def exchange(
        self, value: Any, *, about: str | None = None, timeout: float | None = None
    ) -> list[Any]:
        """Returns the values of all processes, in their order, without using a device.

        Call it on every process; if one dies meanwhile, this process ends. `value` is plain JSON.
        Calls about the same come in the same order on every process, as do calls from the main
        thread, which need no `about`. Raises TimeoutError if a process does not call within
        `timeout` seconds after the first.
        """
        about = about or "main"
        path = f"{_ROUNDS}/{about} {self._rounds[about]}"
        try:
            self._client.key_value_set(
                f"{path}/{self.index}", json.dumps(value), allow_overwrite=True
            )
            self._client.wait_at_barrier(path, round(1000 * (timeout or _EVER)))
            said = self._said(path)
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error) or timeout is None:
                self.explain()
                raise PeerLost(f"the processes lost each other: {first_line(error)}") from error
            said = self._said(path)
            missing = [str(member) for key, member in self.members.items() if key not in said]
            raise TimeoutError(f"no answer from {', '.join(missing)} in {timeout:g} s") from None
        self._rounds[about] += 1
        kept = self._kept.setdefault(about.partition(" ")[0], [])
        kept.append(path)
        if len(kept) > 2:  # every process has read the rounds before this one
            read = kept.pop(0)
            if self.index == 0:
                self._client.key_value_delete(f"{read}/")
        return [json.loads(said[index]) for index in range(len(self.members))]

    def explain(self) -> None:
        """Returns when no other process is dead, and ends this process otherwise.

        The death of another process explains an error here, but the service notices it later.
        """
        time.sleep(self._silence + _GRACE_SECONDS)

    def leave(self) -> None:
        """Waits without a limit until all processes have done their work, then disconnects."""
        if self.leaving.is_set():
            return
        self.exchange(None, about="leave")
        self.notify(f"left.{self.index}", "0 ")
        self.leaving.set()
        for thread in (self._watch, *self._answering):
            thread.join()  # a thread in C++ at the end of the interpreter would abort it
        self._shut_down()

    def depart(self, code: int, line: str) -> None:
        """Tells the others how this process ends, from any thread. Process 0 waits for them."""
        self.notify(f"left.{self.index}", f"{code} {line}")
        self.leaving.set()
        last = threading.Thread(target=self._disconnect, daemon=True)
        last.start()  # in a thread: a process that hangs keeps the service from its end
        last.join(_LAST_SAVE_SECONDS if code == INTERRUPTED else _LAST_SECONDS)

    def _disconnect(self) -> None:
        if self.index == 0:
            self._look()
        with contextlib.suppress(RuntimeError):
            self._shut_down()

    def _said(self, path: str) -> dict[int, str]:
        found = self._client.key_value_dir_get(f"{path}/")
        return {int(key.rpartition("/")[2]): value for key, value in found}

    def _look(self) -> None:
        """Watches until this process leaves; process 0 until the others have left."""
        failed: dict[int, float] = {}  # when this process heard of it
        while True:
            try:
                alive = self._client.get_live_nodes(list(self.members))
                found = self._client.key_value_dir_get(f"{_NOTICES}/")
            except RuntimeError:
                return  # JAX ends this process, or it has left
            if self.leaving.is_set():
                if self.index or len(alive) == 1:
                    return
                time.sleep(_LOOK_SECONDS)
                continue
            notices = {key.rpartition("/")[2]: text for key, text in found}
            for name in notices.keys() & self._handlers.keys():
                self._answer(self._handlers.pop(name), notices[name])
            left = {
                int(name.partition(".")[2]): text.partition(" ")
                for name, text in notices.items()
                if name.startswith("left.")
            }
            for index, (code, _, line) in left.items():
                if int(code) in (0, INTERRUPTED):
                    continue
                if time.monotonic() - failed.setdefault(index, time.monotonic()) > _GRACE_SECONDS:
                    end_now(PEER_LOST, f"{self.members[index]} ended with exit code {code}: {line}")
            gone = [index for index in self.members if index not in alive and index not in left]
            if gone:
                who = ", ".join(str(self.members[index]) for index in gone)
                end_now(
                    PEER_LOST,
                    f"{who} is gone: no heartbeat for {self._silence:g} s; the same command on all "
                    f"hosts resumes from the last checkpoint",
                )
            time.sleep(_LOOK_SECONDS)

    def _answer(self, handler: Callable[[str], None], text: str) -> None:
        thread = threading.Thread(target=handler, args=(text,), daemon=True, name="notice")
        self._answering.append(thread)
        thread.start()


_ending: Final = threading.Lock()


def end_now(code: int, line: str = "", *, printed: bool = False) -> None:
    """Ends the process from any thread: a line on standard error, then no exit handlers.

    Exit handlers would wait for other processes, and the main thread may hang in a collective
    operation. The other processes hear of the end first. A closed standard error does not stop it.
    """
    if not _ending.acquire(blocking=False):
        threading.Event().wait()  # another thread ends the process
    try:
        line = " ".join(line.split())
        if line and not printed:
            with contextlib.suppress(OSError):
                os.write(2, f"bert-jax: {line}\n".encode())
        flush = threading.Thread(target=_flush, daemon=True)  # another thread may hold the lock
        flush.start()
        flush.join(1.0)
        for child in multiprocessing.active_children():
            child.kill()
        if (channel := current_channel()) is not None:
            channel.depart(code, line)
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
