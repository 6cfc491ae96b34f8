"""TensorBoard, without PyTorch."""

from __future__ import annotations

import pathlib
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from etils import epath

from bert_jax.files.atomic import write_whole
from bert_jax.files.remote import is_remote

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter

# Of the run in one file of a bucket, at most.
FILE_SECONDS: Final = 300.0


class TensorBoard:
    """The scalars of a run, for TensorBoard.

    A local file is appended to. An object in a bucket cannot be, and tensorboardX would send the
    whole file every few seconds: there each stretch of the run is a file of its own, sent once, and
    TensorBoard joins them.
    """

    def __init__(self, run_dir: epath.PathLike, *, resume_step: int) -> None:
        """Opens ``tensorboard/``; what is there beyond a step is not shown any more.

        Args:
            run_dir: local or gs://.
            resume_step: the last step that counts.
        """
        self._target = epath.Path(run_dir) / "tensorboard"
        self._aside = tempfile.TemporaryDirectory() if is_remote(run_dir) else None
        self._writer = self._open(purge_step=resume_step + 1)

    def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """Adds a point to the curve of each figure, ``train/loss``."""
        for name, value in figures.items():
            self._writer.add_scalar(f"{kind}/{name}", value, step)
        self._empty = False
        if self._aside is not None and time.monotonic() - self._opened > FILE_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Makes what was written outlive this process."""
        if self._aside is None:
            self._writer.flush()
        elif not self._empty:
            self._send()
            self._writer = self._open(purge_step=None)

    def close(self) -> None:
        """Writes out what is buffered."""
        if self._aside is None:
            self._writer.close()
        else:
            self._send()
            self._aside.cleanup()

    def _open(self, *, purge_step: int | None) -> SummaryWriter:
        self._empty, self._opened = True, time.monotonic()
        # Their names begin with the second; this orders what was begun within one.
        suffix = "" if self._aside is None else f".{time.time_ns()}"
        directory = str(self._target) if self._aside is None else self._aside.name
        return _summary_writer()(
            directory, purge_step=purge_step, flush_secs=20, filename_suffix=suffix
        )

    def _send(self) -> None:
        """Ends the file and copies it to the bucket, unless nothing is in it."""
        assert self._aside is not None
        self._writer.close()
        for file in pathlib.Path(self._aside.name).iterdir():
            if not self._empty:
                write_whole(self._target / file.name, file.read_bytes())
            file.unlink()


def _summary_writer() -> type[SummaryWriter]:
    """Returns tensorboardX's writer without loading PyTorch.

    tensorboardX imports PyTorch wherever it is installed, which takes two seconds and which scalars
    do not need.
    """
    hide = "torch" not in sys.modules
    if hide:
        sys.modules["torch"] = None  # pyright: ignore[reportArgumentType] (import raises then)
    try:
        from tensorboardX import SummaryWriter
    finally:
        if hide:
            del sys.modules["torch"]
    return SummaryWriter
