"""Messages between the processes of a job, and their common end, over JAX's coordination service.

Twice a second each process reads who is alive and what the others have published. The service
counts a process without heartbeats as dead, and all others then end with exit code 4: a collective
operation would wait for it forever. If process 0 dies, the service dies with it, and JAX aborts the
other processes in C++ (docs/adr/0012-processes.md).
"""

import atexit
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
from bert_jax.files.scratch import delete_scratch

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
        self, index: int, members: Mapping[int, Member], *, client: Any, silence_seconds: float
    ) -> None:
        """Takes JAX's client of the coordination service, and the time-out of its heartbeats."""
        self.index, self.members = index, dict(members)
        self.leaving = threading.Event()  # this process computes no more with the others
        self._client, self._silence = client, silence_seconds
        self._rounds: Counter[str] = Counter()  # complete exchanges by subject
        self._kept: dict[str, list[str]] = {}  # their last paths by the subject's first word
        self._handlers: dict[str, Callable[[str], None]] = {}
        self._answering: list[threading.Thread] = []
        self._watch = threading.Thread(target=self._look, daemon=True, name="channel")

    def open(self) -> None:
        """Makes this the channel of the process, until its end, and watches the other processes."""
        _channels.append(self)
        atexit.register(self.leave)
        self._watch.start()

    def handle(self, name: str, handler: Callable[[str], None]) -> None:
        """Calls a function once, in a new thread, with the text of a notice."""
        self._handlers[name] = handler

    def notify(self, name: str, text: str) -> None:
        """Publishes a notice to all processes, this one too; the first of a name counts."""
        with contextlib.suppress(RuntimeError):  # it exists already, or the service is gone
            self._client.key_value_set(f"{_NOTICES}/{name}", text)

    def exchange(
        self, value: Any, *, about: str = "main", timeout: float | None = None
    ) -> list[Any]:
        """Returns the values of all processes, in their order, without using a device.

        Call it on every process; if one dies meanwhile, this process ends. `value` is plain JSON.
        Calls about the same subject come in the same order on every process, as the main thread's
        do. Raises TimeoutError if a process does not call within `timeout` seconds after the first.
        """
        path = f"{_ROUNDS}/{about} {self._rounds[about]}"
        try:
            self._client.key_value_set(
                f"{path}/{self.index}", json.dumps(value), allow_overwrite=True
            )
            self._client.wait_at_barrier(path, round(1000 * (timeout or _EVER)))
            said = self._read(path)
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error) or timeout is None:
                self.explain()
                raise PeerLost(
                    "processes.disconnected",
                    "the connection to the other processes failed ({reason})",
                    reason=first_line(error),
                ) from error
            said = self._read(path)
            missing = [str(member) for key, member in self.members.items() if str(key) not in said]
            raise TimeoutError(f"no answer from {', '.join(missing)} in {timeout:g} s") from None
        self._rounds[about] += 1
        kept = self._kept.setdefault(about.partition(" ")[0], [])
        kept.append(path)
        if len(kept) > 2:  # every process has read the rounds before this one
            self._client.key_value_delete(f"{kept.pop(0)}/{self.index}")
        return [json.loads(said[str(index)]) for index in range(len(self.members))]

    def explain(self) -> None:
        """Returns if no other process is dead, and ends this process otherwise.

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
        _shut_down()

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
            _shut_down()

    def _read(self, directory: str) -> dict[str, str]:
        """Returns the values in a directory of the key-value store by the last part of the key."""
        found = self._client.key_value_dir_get(f"{directory}/")
        return {key.rpartition("/")[2]: value for key, value in found}

    def _look(self) -> None:
        """Watches until this process leaves; process 0 until the others have left."""
        failed: dict[str, float] = {}  # when this process heard of each failure
        while True:
            try:
                alive = self._client.get_live_nodes(list(self.members))
                notices = self._read(_NOTICES)
            except RuntimeError:
                return  # JAX ends this process, or it has left
            if not self.leaving.is_set():
                self._react(alive, notices, failed)
            elif self.index or len(alive) == 1:
                return
            time.sleep(_LOOK_SECONDS)

    def _react(
        self, alive: Mapping[int, Any], notices: dict[str, str], failed: dict[str, float]
    ) -> None:
        """Calls the handlers of new notices; ends this process if another has failed or died."""
        for name in notices.keys() & self._handlers.keys():
            handler, text = self._handlers.pop(name), notices[name]
            thread = threading.Thread(target=handler, args=(text,), daemon=True, name="notice")
            self._answering.append(thread)
            thread.start()
        left = {name for name in notices if name.startswith("left.")}
        for name in left:
            code, _, line = notices[name].partition(" ")
            if int(code) in (0, INTERRUPTED):
                continue
            if time.monotonic() - failed.setdefault(name, time.monotonic()) > _GRACE_SECONDS:
                ended = PeerLost(
                    "processes.peer_ended",
                    "{peer} ended with exit code {code}: {reason}",
                    peer=str(self.members[int(name.removeprefix("left."))]),
                    code=int(code),
                    reason=line,
                )
                end_now(PEER_LOST, ended.line())
        gone = [i for i in self.members if i not in alive and f"left.{i}" not in left]
        if gone:
            error = PeerLost(
                "processes.peer_gone",
                "no heartbeat from {peers} for {seconds:g} s. Run the same command on all hosts to "
                "resume from the last checkpoint.",
                peers=[str(self.members[index]) for index in gone],
                seconds=self._silence,
            )
            end_now(PEER_LOST, error.line())


def _shut_down() -> None:
    import jax  # without JAX, `end_now` is there before anything that takes time

    jax.distributed.shutdown()


_ending: Final = threading.Lock()


def end_now(code: int, line: str = "", *, printed: bool = False) -> None:
    """Ends the process from any thread: a line on standard error, then no exit handlers.

    Exit handlers would wait for other processes. The other processes hear of the end first.
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
        delete_scratch()
        if (channel := current_channel()) is not None:
            channel.depart(code, line)
    finally:
        os._exit(code)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


_channels: list[Channel] = []


def current_channel() -> Channel | None:
    """Returns this process's channel, if the job has several processes."""
    return _channels[0] if _channels else None
