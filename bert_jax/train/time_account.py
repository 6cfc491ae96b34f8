"""The account of a run's wall time, over all its restarts.

Every second has one kind:

- `start`: imports, opening of devices and data.
- `restore`: restoring or initialising the state.
- `compile`: compilation.
- `input`: waiting for a batch.
- `train`: training steps.
- `evaluate`: evaluation.
- `save`: waiting for a checkpoint, or for metrics that are written to a bucket.
- `lost`: work that a kill or a rollback has undone.
- `down`: time between the last account of one process and the start of the next.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from etils import epath

from bert_jax.errors import UserError
from bert_jax.train.metrics_writer import GOODPUT, read_metrics

# Kinds of time that become `lost` after a kill or a rollback.
LOSABLE: Final[tuple[str, ...]] = ("train", "input", "evaluate", "save")
KINDS: Final[tuple[str, ...]] = (*LOSABLE, "start", "restore", "compile", "lost", "down")


class Goodput(NamedTuple):
    """The account of a run's wall time."""

    seconds: dict[str, float]  # seconds of each of `KINDS`
    starts: int  # number of processes started
    at: float  # time of this account, in seconds since 1970
    finished: bool  # whether the run has ended

    @property
    def total(self) -> float:
        """Seconds since the first start."""
        return sum(self.seconds.values())

    @property
    def shares(self) -> dict[str, float]:
        """Share of each kind in the wall time."""
        return {kind: self.seconds[kind] / max(self.total, 1e-9) for kind in KINDS}


def read_goodput(run_dir: epath.PathLike) -> Goodput | None:
    """Returns the account of a run, or None if metrics.jsonl has no account.

    ``read_goodput("runs/base").shares["train"] -> 0.93``
    """
    lines = goodput_lines(epath.Path(run_dir))
    return goodput_of(lines[-1]) if lines else None


def describe_goodput(found: Goodput) -> str:
    """Returns the account as text: ``train 81.0%, start 19.0% of 0:03:10, 1 start``."""
    shares = sorted(found.shares.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{kind} {share:.1%}" for kind, share in shares if share >= 0.0005)
    starts = f"{found.starts} start{'s' if found.starts > 1 else ''}"
    return f"{shown} of {timedelta(seconds=round(found.total))}, {starts}"


def goodput_lines(run_dir: epath.Path) -> Sequence[dict[str, Any]]:
    """Returns the lines of metrics.jsonl that contain an account."""
    try:
        lines = read_metrics(run_dir, kind=GOODPUT)
    except UserError:  # the file is missing, or the writer will report its damage
        return []
    return [line for line in lines if {*KINDS, "starts", "at", "finished"} <= line.keys()]


def goodput_of(line: dict[str, Any]) -> Goodput:
    """Returns the account from a line of metrics.jsonl."""
    seconds = {kind: float(line[kind]) for kind in KINDS}
    return Goodput(seconds, int(line["starts"]), float(line["at"]), bool(line["finished"]))
