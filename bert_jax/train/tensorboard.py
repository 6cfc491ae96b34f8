"""TensorBoard, without PyTorch."""

import contextlib
import functools
import pathlib
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from etils import epath

from bert_jax.errors import first_line
from bert_jax.files.atomic import Attempts, write_whole
from bert_jax.files.remote import is_remote

if TYPE_CHECKING:
    from tensorboardX.record_writer import RecordWriter

Sending: TypeAlias = Callable[[], contextlib.AbstractContextManager[None]]
"""Gives a block in which a bucket is written to, such as one whose time is counted apart."""

# Of the run in one file of a bucket, at most.
FILE_SECONDS: Final = 300.0
# Until what was written is in a local file.
FLUSH_SECONDS: Final = 20.0


class TensorBoard:
    """The scalars of a run, for TensorBoard.

    A local file is appended to. An object in a bucket cannot be, and tensorboardX would send the
    whole file every few seconds: there each stretch of the run is a file of its own, sent once, and
    TensorBoard joins them. Events are written by the caller's own thread: tensorboardX's dies of a
    full disk. Here the curves get a gap, which is said once; metrics.jsonl has all figures. What a
    bucket refuses is sent with the next file.
    """

    def __init__(
        self,
        run_dir: epath.PathLike,
        *,
        resume_step: int,
        say: Callable[[str], None] = lambda _: None,
        sending: Sending = contextlib.nullcontext,
    ) -> None:
        """Opens ``tensorboard/``; what is there beyond a step is not shown any more.

        `say` gets a line when a file could not be written; one goes to a bucket within `sending`.
        """
        self._target = epath.Path(run_dir) / "tensorboard"
        self._say, self._sending = say, sending
        self._attempts, self._unsent = Attempts(self._target, say=say), False
        self._aside = (
            tempfile.TemporaryDirectory(ignore_cleanup_errors=True) if is_remote(run_dir) else None
        )
        self._directory = pathlib.Path(self._aside.name if self._aside else self._target)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._events: RecordWriter | None = None
        self._gap = False
        self._open(purge_step=resume_step + 1)

    def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """Adds a point to the curve of each figure, ``train/loss``."""
        if self._events is None:
            return
        values = [
            {"tag": f"{kind}/{name}", "simple_value": value} for name, value in figures.items()
        ]
        with self._failing_once():
            self._append(step=step, summary={"value": values})
            if self._aside is None and time.monotonic() - self._flushed > FLUSH_SECONDS:
                self._flush_local()
        self._empty = False
        if self._aside is not None and time.monotonic() - self._opened > FILE_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Makes what was written outlive this process."""
        if self._events is None:  # there may be room again
            self._open(purge_step=None)
        elif self._aside is None:
            with self._failing_once():
                self._flush_local()
        elif self._unsent or not self._empty:
            waits = "the curves wait until it can be written"
            self._unsent = not self._attempts.succeeds(self._send, otherwise=waits)
            self._open(purge_step=None)

    def close(self) -> None:
        """Writes out what is buffered."""
        if self._aside is None:
            with self._failing_once():
                self._close_file()
        else:
            self._attempts.succeeds(self._send, otherwise="the curves lack what was not sent")
            self._aside.cleanup()

    def _open(self, *, purge_step: int | None) -> None:
        self._empty = True
        self._opened = self._flushed = time.monotonic()
        with self._failing_once():
            # Ordered by the second that it begins with, and by the end within one.
            name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{time.time_ns()}"
            record_writer, _ = _tensorboard_x()
            self._file = self._directory / name
            self._events = record_writer(str(self._file))
            self._append(file_version="brain.Event:2")
            if purge_step is not None:
                self._append(step=purge_step, session_log={"status": "START"})
            self._flush_local()
            self._gap = False

    def _append(self, **fields: object) -> None:
        assert self._events is not None
        _, make_event = _tensorboard_x()
        event = make_event(wall_time=time.time(), **fields)
        self._events.write(event.SerializeToString())

    def _flush_local(self) -> None:
        assert self._events is not None
        self._events.flush()
        self._flushed = time.monotonic()

    def _close_file(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()

    @contextlib.contextmanager
    def _failing_once(self) -> Iterator[None]:
        """Says that a file could not be written, and leaves it."""
        try:
            yield
        except OSError as error:
            if not self._gap:
                self._say(f"{self._target}: {first_line(error)}; the curves get a gap")
            self._gap = True
            with contextlib.suppress(OSError):  # closed even so
                self._close_file()

    def _send(self) -> None:
        """Ends the file, unless nothing is in it, and copies it and those refused to the bucket."""
        with self._failing_once():
            self._close_file()
        if self._empty:
            self._file.unlink(missing_ok=True)
        for file in sorted(self._directory.iterdir()):
            with self._sending():
                write_whole(self._target / file.name, file.read_bytes())
            file.unlink()


@functools.cache
def _tensorboard_x() -> tuple[Any, Any]:
    """Returns tensorboardX's writer and its events, loaded without PyTorch.

    tensorboardX imports PyTorch wherever it is installed, which takes two seconds and which scalars
    do not need.
    """
    hide = "torch" not in sys.modules
    if hide:
        sys.modules["torch"] = None  # pyright: ignore[reportArgumentType] (import raises then)
    try:
        from tensorboardX.proto import event_pb2
        from tensorboardX.record_writer import RecordWriter
    finally:
        if hide:
            del sys.modules["torch"]
    return RecordWriter, event_pb2.Event  # pyright: ignore[reportAttributeAccessIssue]
