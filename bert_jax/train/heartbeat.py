"""A small file that tells whoever started this process how far the run is on this host.

It is written where the environment names one. The agent of a submitted job
(`bert_jax.launch.host`) uploads it, and knows by it at which step a process died.
"""

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from bert_jax.files.atomic import Attempts
from bert_jax.train.time_account import GOODPUT, KINDS
from bert_jax.train.writer import Writer

HEARTBEAT: Final = "BERT_JAX_HEARTBEAT"  # the environment variable that names the file


class Heartbeat(Writer):
    """A writer that passes everything on, and keeps the last figures in a file.

    ``{"step": 120, "loss": 6.9, "goodput": {"train": 0.9, …}}``, written whole at every report.
    Where the disk refuses it, the last one stays.
    """

    def __init__(self, writer: Writer, path: Path, *, say: Callable[[str], None]) -> None:
        """`say` gets a line when the file begins to be refused."""
        self._writer, self._path = writer, path
        self._attempts = Attempts(path, say=say)
        self._loss: float | None = None

    def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """See `Writer`. The account of time is the last that is written of a step."""
        self._writer.write(kind, step, figures)
        if kind == "train":
            self._loss = figures.get("loss", self._loss)
        if kind == GOODPUT:
            total = max(sum(figures[name] for name in KINDS), 1e-9)
            shares = {name: round(figures[name] / total, 4) for name in KINDS}
            content = json.dumps({"step": step, "loss": self._loss, "goodput": shares})
            self._attempts.succeeds(
                lambda: self._replace(content), otherwise="it tells of an earlier step"
            )

    def _replace(self, content: str) -> None:
        beside = self._path.with_suffix(".tmp")
        beside.write_text(content, encoding="utf-8")
        beside.replace(self._path)

    def flush(self) -> None:
        """See `Writer`."""
        self._writer.flush()

    def rewind(self, step: int) -> None:
        """See `Writer`."""
        self._writer.rewind(step)

    def close(self) -> None:
        """See `Writer`."""
        self._writer.close()


def with_heartbeat(writer: Writer, *, say: Callable[[str], None]) -> Writer:
    """Returns the writer, which also writes the file that the environment names, if it does."""
    path = os.environ.get(HEARTBEAT)
    return Heartbeat(writer, Path(path), say=say) if path else writer
