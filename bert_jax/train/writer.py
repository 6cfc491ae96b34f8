"""Where a run's figures go: metrics.jsonl and TensorBoard."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from etils import epath

from bert_jax.files.atomic import write_whole
from bert_jax.files.remote import is_remote

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter


class Writer(Protocol):
    """Takes named figures of a step."""

    def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """Writes figures of one kind (`train`, `validation`)."""
        ...

    def close(self) -> None:
        """Writes out what is buffered."""
        ...


class RunWriter:
    """metrics.jsonl and TensorBoard of a run directory.

    A run that resumes at step N first drops lines beyond N: they tell of steps that will be done
    again.
    """

    def __init__(self, run_dir: epath.PathLike, *, resume_step: int) -> None:
        """Opens both.

        Args:
            run_dir: local or gs://.
            resume_step: the last step that counts; 0 for a fresh run.
        """
        self._path = epath.Path(run_dir) / "metrics.jsonl"
        self._lines = _lines_up_to(self._path, resume_step)
        write_whole(self._path, "".join(self._lines).encode())
        # A local file is appended to; an object store has no append, so the whole is rewritten.
        self._local = not is_remote(run_dir)
        self._board = _summary_writer()(
            str(epath.Path(run_dir) / "tensorboard"), purge_step=resume_step + 1, flush_secs=20
        )

    def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """Adds ``{"kind": "train", "step": 10, "loss": 9.1, …}``, and the same to TensorBoard."""
        line = json.dumps({"kind": kind, "step": step, **figures}) + "\n"
        if self._local:
            with Path(self._path).open("a", encoding="utf-8") as file:
                file.write(line)
        else:
            self._lines.append(line)
            self._path.write_text("".join(self._lines), encoding="utf-8")
        for name, value in figures.items():
            self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Writes out TensorBoard's buffer."""
        self._board.close()


class NoWriter:
    """For processes other than the first: figures are written once."""

    def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


def read_metrics(run_dir: epath.PathLike, *, kind: str | None = None) -> list[dict[str, Any]]:
    """Returns the lines of a run's metrics.jsonl, of one kind where given."""
    path = epath.Path(run_dir) / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if kind in (None, line["kind"])]


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


def _lines_up_to(path: epath.Path, step: int) -> list[str]:
    if step == 0 or not path.exists():
        return []
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        try:
            if line.endswith("\n") and json.loads(line)["step"] <= step:
                kept.append(line)
        except json.JSONDecodeError:
            break  # the process was killed in the middle of this line
    return kept
