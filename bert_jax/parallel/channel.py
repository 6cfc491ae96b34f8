"""Messages between the processes of a job, over JAX's coordination service.

Twice a second, each process reads the list of live processes and all published notices. If a
process sends no heartbeats, the service declares it dead, and all other processes exit with code 4,
because a collective operation would wait for the dead process forever. The service runs in process
0. If process 0 dies, JAX aborts the other processes in C++ (docs/adr/0012-processes.md).
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
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from bert_jax.errors import PeerLost, UserError, commas, first_line
from bert_jax.files.scratch import delete_scratch

PEER_LOST: Final = 4  # exit code after the loss of another process
INTERRUPTED: Final = 3  # exit code of a run that a signal stopped; it can be resumed
_MISTAKE: Final = 2  # exit code of a UserError; another start would end in the same way
_POLL_SECONDS: Final = 0.5
# An error often occurs in all processes. After another process fails, this process continues for
# this time, so that it can print its own error.
_GRACE_SECONDS: Final = 2.0
# Process 0 ends last, because it runs the service. It waits at most this long for the others, and
# after a signal `_LAST_SAVE_SECONDS`, because they may still write a checkpoint.
_LAST_SECONDS: Final = 8.0
_LAST_SAVE_SECONDS: Final = 60.0
_UNLIMITED_SECONDS: Final = 7 * 86_400.0
_NOTICES: Final = "bert_jax/notices"
_ROUNDS: Final = "bert_jax/rounds"


class Member(NamedTuple):
    """A process of the job."""

    process: int  # index
    host: str
    pid: int

    def __str__(self) -> str:
        return f"process {self.process} ({self.host}, pid {self.pid})"


class Channel:
    """This process's connection to the other processes of its job."""

    def __init__(
        self, index: int, members: Mapping[int, Member], *, client: Any, silence_seconds: float
    ) -> None:
        """`client` is JAX's client of the service; `silence_seconds` is its heartbeat timeout."""
        self.index, self.members = index, dict(members)
        self.leaving = threading.Event()  # set when this process leaves the job
        self._client, self._silence = client, silence_seconds
        self._rounds: Counter[str] = Counter()  # number of complete exchanges by subject
        # Keys of the latest exchanges, by the first word of the subject.
        self._paths: dict[str, list[str]] = {}
        self._handlers: dict[str, Callable[[str], None]] = {}
        self._answering: list[threading.Thread] = []
        self._watch = threading.Thread(target=self._poll, daemon=True, name="channel")

    def open(self) -> None:
        """Makes this the channel of the process and starts to watch the other processes."""
        _channels.append(self)
        atexit.register(self.leave)
        self._watch.start()

    def handle(self, name: str, handler: Callable[[str], None]) -> None:
        """Registers a function for the notice `name`. A new thread calls it once with the text."""
        self._handlers[name] = handler

    def notify(self, name: str, text: str) -> None:
        """Publishes a notice to all processes, including this one.

        A second notice of the same name is ignored.
        """
        with contextlib.suppress(RuntimeError):  # the notice exists, or the service has ended
            self._client.key_value_set(f"{_NOTICES}/{name}", text)

    def exchange(
        self, value: Any, *, about: str = "main", timeout: float | None = None
    ) -> list[Any]:
        """Returns the values of all processes, ordered by process index, without using a device.

        Every process must call it. If another process dies meanwhile, this process exits with 4.

        Args:
            value: plain JSON.
            about: subject. For each subject, all processes must make their calls in the same order.
            timeout: seconds. If None, there is no limit.

        Raises:
            TimeoutError: a process did not call in time.
            PeerLost: the service does not answer.
        """
        path = f"{_ROUNDS}/{about} {self._rounds[about]}"
        try:
            self._client.key_value_set(
                f"{path}/{self.index}", json.dumps(value), allow_overwrite=True
            )
            self._client.wait_at_barrier(path, round(1000 * (timeout or _UNLIMITED_SECONDS)))
            found = self._read(path)
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error) or timeout is None:
                self.explain()
                raise PeerLost(
                    "processes.disconnected",
                    f"the connection to the other processes failed ({first_line(error)})",
                ) from error
            found = self._read(path)
            missing = [str(member) for key, member in self.members.items() if str(key) not in found]
            raise TimeoutError(f"no answer from {', '.join(missing)} in {timeout:g} s") from None
        self._rounds[about] += 1
        paths = self._paths.setdefault(about.partition(" ")[0], [])
        paths.append(path)
        if len(paths) > 2:  # every process has read all earlier exchanges
            self._client.key_value_delete(f"{paths.pop(0)}/{self.index}")
        return [json.loads(found[str(index)]) for index in range(len(self.members))]

    def explain(self) -> None:
        """Waits until the service would have reported a dead process.

        Call it after an error that a dead process may have caused. If the service reports a dead
        process, this process ends.
        """
        time.sleep(self._silence + _GRACE_SECONDS)

    def leave(self) -> None:
        """Waits without a time limit until all processes have done their work, then disconnects."""
        if self.leaving.is_set():
            return
        self.exchange(None, about="leave")
        self.notify(f"left.{self.index}", "0 ")
        self.leaving.set()
        for thread in (self._watch, *self._answering):
            thread.join()  # if a thread is in C++, the interpreter aborts at exit
        _shut_down()

    def depart(self, code: int, line: str) -> None:
        """Publishes the exit code and error of this process. Any thread may call it.

        Process 0 waits for the other processes.
        """
        self.notify(f"left.{self.index}", f"{code} {line}")
        self.leaving.set()
        last = threading.Thread(target=self._disconnect, daemon=True)
        last.start()  # may block: the service waits for processes that hang
        last.join(_LAST_SAVE_SECONDS if code == INTERRUPTED else _LAST_SECONDS)

    def _disconnect(self) -> None:
        if self.index == 0:
            self._poll()
        with contextlib.suppress(RuntimeError):
            _shut_down()

    def _read(self, directory: str) -> dict[str, str]:
        """Returns the values in a directory of the key-value store, by the last part of the key."""
        found = self._client.key_value_dir_get(f"{directory}/")
        return {key.rpartition("/")[2]: value for key, value in found}

    def _poll(self) -> None:
        """Watches the other processes until this process leaves.

        Process 0 watches until all other processes have left.
        """
        failed: dict[str, float] = {}  # time at which this process learnt of each failure
        while True:
            try:
                alive = self._client.get_live_nodes(list(self.members))
                notices = self._read(_NOTICES)
            except RuntimeError:
                return  # JAX is ending this process, or this process has left
            if not self.leaving.is_set():
                self._react(alive, notices, failed)
            elif self.index or len(alive) == 1:
                return
            time.sleep(_POLL_SECONDS)

    def _react(
        self, alive: Mapping[int, Any], notices: dict[str, str], failed: dict[str, float]
    ) -> None:
        """Calls the handlers of new notices. Ends this process if another failed or died."""
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
                # A mistake on one host, such as a missing file, is a mistake of the whole job.
                mistake = int(code) == _MISTAKE
                ended = (UserError if mistake else PeerLost)(
                    "processes.peer_ended",
                    f"{self.members[int(name.removeprefix('left.'))]} ended with exit code {code}: "
                    f"{line}",
                )
                end_now(_MISTAKE if mistake else PEER_LOST, ended.line())
        gone = [i for i in self.members if i not in alive and f"left.{i}" not in left]
        if gone:
            lost = commas(self.members[at] for at in gone)
            error = PeerLost(
                "processes.peer_gone",
                f"no heartbeat from {lost} for {self._silence:g} s. Run the same command on all "
                "hosts to resume from the last checkpoint.",
            )
            end_now(PEER_LOST, error.line())


def _shut_down() -> None:
    import jax  # slow to import; `end_now` must work before

    jax.distributed.shutdown()


_ending: Final = threading.Lock()


def end_now(code: int, line: str = "", *, printed: bool = False) -> None:
    """Prints a line on standard error, sends it to the other processes and ends this process.

    Any thread may call it. Skips exit handlers, which would wait for other processes. `printed`:
    whether the line has been printed already.
    """
    if not _ending.acquire(blocking=False):
        threading.Event().wait()  # another thread ends the process
    try:
        line = " ".join(line.split())
        if line and not printed:
            with contextlib.suppress(OSError):
                os.write(2, f"bert-jax: {line}\n".encode())
        flush = threading.Thread(target=_flush, daemon=True)  # may wait for another thread's lock
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
_alone: Final = threading.local()


def current_channel() -> Channel | None:
    """Returns this process's channel, or None if the job has one process, or in `alone`."""
    return _channels[0] if _channels and not hasattr(_alone, "block") else None


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Lets this thread read files in the block as if the job had one process."""
    _alone.block = True
    try:
        yield
    finally:
        del _alone.block
