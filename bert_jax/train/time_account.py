"""Where a run's wall time went, over all its restarts.

Every second is of one kind: `start` (imports, devices, opening the data), `restore` (or making the
first state), `compile`, `input` (waiting for a batch), `train`, `evaluate`, `save` (waiting for a
checkpoint, or while figures are sent to a bucket), `lost` (work after the last checkpoint of a
process that was killed, or undone by a rollback, and so done again), `down` (from the last line of
one process to the start of the next).
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from etils import epath

from bert_jax.errors import UserError
from bert_jax.train.writer import GOODPUT, read_metrics

# Kinds that are lost with a process that is killed.
LOSABLE: Final[tuple[str, ...]] = ("train", "input", "evaluate", "save")
KINDS: Final[tuple[str, ...]] = (*LOSABLE, "start", "restore", "compile", "lost", "down")


class Goodput(NamedTuple):
    """Where the wall time of a run went."""

    seconds: dict[str, float]  # by kind, all of `KINDS`
    starts: int  # of processes
    at: float  # seconds since 1970: the time of this account
    finished: bool  # whether the run had ended

    @property
    def total(self) -> float:
        """Seconds since the first start."""
        return sum(self.seconds.values())

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the kinds in the wall time, which add up to 1."""
        return {kind: self.seconds[kind] / max(self.total, 1e-9) for kind in KINDS}


def read_goodput(run_dir: epath.PathLike) -> Goodput | None:
    """Returns the account of a run, alive or dead, or None without any entry.

    ``read_goodput("runs/base").shares["train"] -> 0.93``
    """
    lines = goodput_lines(epath.Path(run_dir))
    return goodput_of(lines[-1]) if lines else None


def describe_goodput(found: Goodput) -> str:
    """Returns a line: ``train 81.0%, compile 12.0%, start 7.0% of 0:03:10, 1 start``."""
    shares = sorted(found.shares.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{kind} {share:.1%}" for kind, share in shares if share >= 0.0005)
    starts = f"{found.starts} start{'s' if found.starts > 1 else ''}"
    return f"{shown} of {timedelta(seconds=round(found.total))}, {starts}"


def goodput_lines(run_dir: epath.Path) -> Sequence[dict[str, Any]]:
    """Returns the accounts in a run's metrics.jsonl, none where there are none yet."""
    try:
        lines = read_metrics(run_dir, kind=GOODPUT)
    except UserError:  # there are none yet, or the writer will say what is wrong
        return []
    return [line for line in lines if {*KINDS, "starts", "at", "finished"} <= line.keys()]


def goodput_of(line: dict[str, Any]) -> Goodput:
    """Returns the account in a line."""
    seconds = {kind: float(line[kind]) for kind in KINDS}
    return Goodput(seconds, int(line["starts"]), float(line["at"]), bool(line["finished"]))
