"""TensorBoard, without PyTorch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from etils import epath

if TYPE_CHECKING:
    from tensorboardX import SummaryWriter


class TensorBoard:
    """The scalars of a run, for TensorBoard."""

    def __init__(self, run_dir: epath.PathLike, *, resume_step: int) -> None:
        """Opens ``tensorboard/``; what is there beyond a step is not shown any more.

        Args:
            run_dir: local or gs://.
            resume_step: the last step that counts.
        """
        self._writer = _summary_writer()(
            str(epath.Path(run_dir) / "tensorboard"), purge_step=resume_step + 1, flush_secs=20
        )

    def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """Adds a point to the curve of each figure, ``train/loss``."""
        for name, value in figures.items():
            self._writer.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        """Writes out what is buffered."""
        self._writer.close()


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
