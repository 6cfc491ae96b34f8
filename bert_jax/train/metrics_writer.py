"""Writes a run's metrics to metrics.jsonl, TensorBoard, trackers and a heartbeat file."""

import functools
import json
import os
import pathlib
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from etils import epath

from bert_jax.data.google_bert.tfrecord import frame
from bert_jax.files.atomic import WriteAttempts, refusal_of, write_whole
from bert_jax.files.line_log import Entry, LineLog, open_log, read_log
from bert_jax.files.remote import is_remote
from bert_jax.train.sections import TrackerName
from bert_jax.train.trackers import Trackers

METRICS: Final = "metrics.jsonl"
VALIDATION: Final = "validation"  # kind of evaluation metrics
GOODPUT: Final = "goodput"  # kind of the account of wall time
HEARTBEAT: Final = "BERT_JAX_HEARTBEAT"  # environment variable with the heartbeat file's path


class Writer:
    """Writes the heartbeat file; used on every process of a job.

    If `HEARTBEAT` is set, the file has the latest metrics:
    ``{"step": 120, "loss": 6.9, "goodput": {"train": 0.9, …}}``. The agent of a submitted job
    (`bert_jax.launch.host`) uploads the file. If a process dies, the agent reads its last step.
    """

    def __init__(self, *, say: Callable[[str], None]) -> None:
        """`say` prints a warning if the heartbeat file cannot be written."""
        path = os.environ.get(HEARTBEAT)
        self._heartbeat = pathlib.Path(path) if path else None
        self._attempts = WriteAttempts(self._heartbeat, say=say)
        self._loss: float | None = None

    def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """Writes metrics of one kind: `train`, `speed`, `validation`, `bad_step`, `goodput`."""
        if kind == "train":
            self._loss = figures.get("loss", self._loss)
        if kind == GOODPUT and self._heartbeat is not None:  # the last kind that a step writes
            seconds = {n: s for n, s in figures.items() if n not in ("starts", "finished", "at")}
            total = max(sum(seconds.values()), 1e-9)
            shares = {name: round(value / total, 4) for name, value in seconds.items()}
            content = json.dumps({"step": step, "loss": self._loss, GOODPUT: shares})
            replace = functools.partial(_replace, self._heartbeat, content)
            self._attempts.succeeds(replace, otherwise="it still shows an earlier step")

    def flush(self) -> None:
        """Writes all buffered metrics to files. Call it before a checkpoint."""

    def rewind(self, step: int) -> None:
        """After a rollback to `step`, drops the metrics of later steps."""

    def close(self) -> None:
        """Writes all buffered metrics and closes the files."""


class TensorBoard:
    """Writes the metrics of a run to TensorBoard's event files.

    On a disk, a process appends to one file. In a bucket, objects cannot be appended to, so each
    flush writes a new file; TensorBoard joins the files. If a write fails, the metrics stay in
    memory, as in `LineLog`.
    """

    def __init__(
        self, run_dir: epath.PathLike, *, resume_step: int, say: Callable[[str], None]
    ) -> None:
        """Writes nothing yet; `say` prints a warning if a file cannot be written.

        TensorBoard hides points after `resume_step` that an earlier process wrote.
        """
        self._directory = epath.Path(run_dir) / "tensorboard"
        self._remote = is_remote(run_dir)
        self._say = say
        self._resume_step: int | None = resume_step  # step for the first file, then None
        self._log: LineLog | None = None

    def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """Adds a point to the curve of each metric, such as ``train/loss``."""
        values = [
            {"tag": f"{kind}/{name}", "simple_value": value} for name, value in figures.items()
        ]
        self._append(self._log or self._open(), step=step, summary={"value": values})

    def flush(self) -> None:
        """Writes all buffered metrics; if that fails, keeps them in memory."""
        if self._log is not None and refusal_of(self._log.flush) is None and self._remote:
            self._log = None

    def close(self) -> None:
        """Flushes and closes the file; if that fails, `say` prints a warning."""
        if self._log is not None:
            self._log.close()

    def _open(self) -> LineLog:
        # TensorBoard orders files by name. The seconds come first; nanoseconds make names unique.
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


class RunWriter(Writer):
    """Writes the metrics of a run; used on the first process of a job.

    A run that resumes at step N first drops the lines of later steps, which it repeats.
    """

    def __init__(
        self,
        run_dir: epath.PathLike,
        *,
        resume_step: int,
        evaluated: bool = True,
        say: Callable[[str], None] = lambda _: None,
        trackers: Sequence[TrackerName] = (),
    ) -> None:
        """Opens the files.

        Args:
            run_dir: run directory.
            resume_step: step at which the run resumes; 0 for a new run.
            evaluated: whether to keep the evaluation of `resume_step`.
            say: prints a warning about damaged lines, failed writes or failed trackers.
            trackers: names of the trackers to open.
        """
        super().__init__(say=say)
        self._run_dir, self._say = epath.Path(run_dir), say
        self._open(resume_step, evaluated=evaluated)
        self._trackers = Trackers(self._run_dir, trackers, say=say)

    def _open(self, step: int, *, evaluated: bool = True) -> None:
        """Opens the files and drops the metrics of all steps after `step`."""

        def counts(line: Entry) -> bool:
            again = not evaluated and line["kind"] == VALIDATION
            return line["step"] < step if again else line["step"] <= step

        self._lines = open_log(
            self._run_dir / METRICS,
            check=is_figures,
            keep=counts,
            say=self._say,
        )
        self._board = TensorBoard(self._run_dir, resume_step=step, say=self._say)

    def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """Adds a line ``{"kind": "train", "step": 10, "loss": 9.1, …}`` to metrics.jsonl.

        Also writes the metrics to TensorBoard, the trackers and the heartbeat file.
        """
        self._lines.append({"kind": kind, "step": step, **figures})
        self._board.write(kind, step, figures)
        self._trackers.write(kind, step, figures)
        super().write(kind, step, figures)

    def flush(self) -> None:
        """See `Writer`.

        Raises OSError, UserError or RunStopped if metrics.jsonl cannot be written.
        """
        self._board.flush()
        self._lines.flush()

    def rewind(self, step: int) -> None:
        """See `Writer`. Trackers keep the dropped metrics, so they show repeated steps twice."""
        self._close_files()
        self._open(step)

    def close(self) -> None:
        """See `Writer`."""
        self._close_files()
        self._trackers.close()

    def _close_files(self) -> None:
        self._lines.close()
        self._board.close()


def read_metrics(run_dir: epath.PathLike, *, kind: str | None = None) -> list[dict[str, Any]]:
    """Returns the lines of a run's metrics.jsonl, without damaged ones.

    If `kind` is set, only lines of that kind are returned. Raises UserError if the file is missing
    or cannot be read.
    """
    lines = read_log(epath.Path(run_dir) / METRICS, is_figures)
    return [line for line in lines if kind in (None, line["kind"])]


def copy_metrics(source: epath.PathLike, target: epath.PathLike) -> None:
    """Copies a run's metrics.jsonl, without damaged lines, into another run directory."""
    lines = [json.dumps(line) + "\n" for line in read_metrics(source)]
    write_whole(epath.Path(target) / METRICS, "".join(lines))


def is_figures(line: Entry) -> bool:
    """Returns whether a JSON object is a line of metrics.jsonl with kind, step and numbers."""
    kind, step = line.get("kind"), line.get("step")
    if not isinstance(kind, str) or type(step) is not int or step < 0:
        return False
    figures = (value for name, value in line.items() if name not in ("kind", "step"))
    return all(isinstance(value, int | float) and type(value) is not bool for value in figures)


def _replace(path: pathlib.Path, content: str) -> None:
    beside = path.with_suffix(".tmp")
    beside.write_text(content, encoding="utf-8")
    beside.replace(path)


@functools.cache
def _event_type() -> Any:
    """Returns tensorboardX's event type.

    Hides PyTorch during the import: tensorboardX would import it, which takes two seconds.
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
