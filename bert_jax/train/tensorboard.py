"""TensorBoard's event files, without PyTorch."""

import functools
import pathlib
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from etils import epath

from bert_jax.data.google_bert.tfrecord import frame
from bert_jax.files.atomic import refusal_of
from bert_jax.files.line_log import LineLog
from bert_jax.files.remote import is_remote


class TensorBoard:
    """The scalars of a run, for TensorBoard.

    On a disk this process appends to one file. An object in a bucket cannot be appended to: there
    each flush ends a file and sends it, and TensorBoard joins the files. Figures that a disk or
    bucket refuses wait, as in `LineLog`.
    """

    def __init__(
        self, run_dir: epath.PathLike, *, resume_step: int, say: Callable[[str], None]
    ) -> None:
        """Writes nothing yet; `say` gets a line when a file is refused.

        TensorBoard will show no older points beyond `resume_step`.
        """
        self._directory = epath.Path(run_dir) / "tensorboard"
        self._remote = is_remote(run_dir)
        self._say = say
        self._resume_step: int | None = resume_step  # None: the first file says it
        self._log: LineLog | None = None

    def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """Adds a point to the curve of each figure, ``train/loss``."""
        values = [
            {"tag": f"{kind}/{name}", "simple_value": value} for name, value in figures.items()
        ]
        self._append(self._log or self._open(), step=step, summary={"value": values})

    def flush(self) -> None:
        """Makes the figures outlive this process, unless they are refused."""
        if self._log is not None and refusal_of(self._log.flush) is None and self._remote:
            self._log = None

    def close(self) -> None:
        """Flushes, or says that it cannot."""
        if self._log is not None:
            self._log.close()

    def _open(self) -> LineLog:
        # TensorBoard reads files by their names: the second of their start, and the end within one.
        now = time.time_ns()
        name = f"events.out.tfevents.{now // 10**9}.{socket.gethostname()}.{now}"
        if not self._remote:
            pathlib.Path(self._directory).mkdir(parents=True, exist_ok=True)
        self._log = log = LineLog(self._directory / name, content=b"", say=self._say)
        self._append(log, file_version="brain.Event:2")
        if self._resume_step is not None:
            self._append(log, step=self._resume_step + 1, session_log={"status": "START"})
        self._resume_step = None
        return log

    def _append(self, log: LineLog, **fields: object) -> None:
        log.append_raw(frame(_event_type()(wall_time=time.time(), **fields).SerializeToString()))


@functools.cache
def _event_type() -> Any:
    """Returns tensorboardX's event message, loaded without PyTorch.

    tensorboardX imports PyTorch if it is installed, which takes two seconds and is not needed here.
    """
    hide = "torch" not in sys.modules
    if hide:
        sys.modules["torch"] = None  # pyright: ignore[reportArgumentType] (import raises then)
    try:
        from tensorboardX.proto import event_pb2
    finally:
        if hide:
            del sys.modules["torch"]
    return event_pb2.Event  # pyright: ignore[reportAttributeAccessIssue]
