"""Where a run's figures go: metrics.jsonl, TensorBoard, trackers."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from etils import epath

from bert_jax.files.atomic import write_whole
from bert_jax.files.line_log import Entry, open_log, read_log
from bert_jax.train.sections import TrackerName
from bert_jax.train.tensorboard import Sending, TensorBoard
from bert_jax.train.trackers import Trackers

METRICS: Final = "metrics.jsonl"
VALIDATION: Final = "validation"  # lines of evaluations


class Writer:
    """Takes named figures of a step; this one drops them: they are written once, by one process."""

    def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """Writes figures of one kind (`train`, `validation`)."""

    def flush(self) -> None:
        """Makes what was written outlive this process: call it before a checkpoint counts on it."""

    def rewind(self, step: int) -> None:
        """Drops what was written of steps beyond one: the run has gone back to it."""

    def close(self) -> None:
        """Writes out what is buffered."""


class RunWriter(Writer):
    """metrics.jsonl, TensorBoard and the trackers of a run.

    A run that resumes at step N first drops lines beyond N: they tell of steps that will be done
    again.
    """

    def __init__(
        self,
        run_dir: epath.PathLike,
        *,
        resume_step: int,
        evaluated: bool = True,
        say: Callable[[str], None] = lambda _: None,
        trackers: Sequence[TrackerName] = (),
        sending: Sending = contextlib.nullcontext,
    ) -> None:
        """Opens them.

        `resume_step` is the last step that counts, 0 for a fresh run; its evaluation is dropped
        unless `evaluated`: it will be done again. `say` gets a line if lines of metrics.jsonl were
        found damaged, a file begins to be refused, or a tracker fails. TensorBoard's files go to a
        bucket within `sending`.
        """
        self._run_dir, self._say, self._sending = run_dir, say, sending
        self._open(resume_step, evaluated=evaluated)
        self._trackers = Trackers(epath.Path(run_dir), trackers, say=say)

    def _open(self, step: int, *, evaluated: bool = True) -> None:
        """Opens the files, without what was written of steps beyond one."""

        def counts(line: Entry) -> bool:
            again = not evaluated and line["kind"] == VALIDATION
            return line["step"] < step if again else line["step"] <= step

        self._lines = open_log(
            epath.Path(self._run_dir) / METRICS,
            check=is_figures,
            keep=counts,
            say=self._say,
        )
        self._board = TensorBoard(
            self._run_dir, resume_step=step, say=self._say, sending=self._sending
        )

    def write(self, kind: str, step: int, figures: Mapping[str, float]) -> None:
        """Adds ``{"kind": "train", "step": 10, "loss": 9.1, …}``, and the same to TensorBoard."""
        self._lines.append({"kind": kind, "step": step, **figures})
        self._board.write(kind, step, figures)
        self._trackers.write(kind, step, figures)

    def flush(self) -> None:
        """See `Writer`."""
        self._lines.flush()
        self._board.flush()

    def rewind(self, step: int) -> None:
        """See `Writer`. Trackers draw the steps that are done again over the former ones."""
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
    """Returns the lines of a run's metrics.jsonl, of one kind where given.

    Damaged lines are passed over: a line has a kind, a step and otherwise numbers.

    Raises:
        UserError: there are no metrics, or they cannot be read.
    """
    lines = read_log(epath.Path(run_dir) / METRICS, is_figures)
    return [line for line in lines if kind in (None, line["kind"])]


def copy_metrics(source: epath.PathLike, target: epath.PathLike) -> None:
    """Gives a run directory the metrics of another, as one file."""
    lines = [json.dumps(line) + "\n" for line in read_metrics(source)]
    write_whole(epath.Path(target) / METRICS, "".join(lines))


def is_figures(line: Entry) -> bool:
    """Says whether a JSON object is a line of metrics.jsonl: a kind, a step, and numbers."""
    kind, step = line.get("kind"), line.get("step")
    if not isinstance(kind, str) or type(step) is not int or step < 0:
        return False
    figures = (value for name, value in line.items() if name not in ("kind", "step"))
    return all(isinstance(value, int | float) and type(value) is not bool for value in figures)
