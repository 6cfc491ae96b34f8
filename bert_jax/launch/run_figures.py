"""How far a run is and how fast, from the figures in its directory. Loads no JAX."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pydantic
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.yaml_file import read_yaml
from bert_jax.section import Section
from bert_jax.train.time_account import GOODPUT, KINDS
from bert_jax.train.writer import read_metrics

_RECENT_SECONDS: Final = 3600.0  # whose speed tells when the run will end


class RunFigures(Section):
    """A run as it last wrote."""

    step: int = 0  # done so far; 0 before the first report
    total_steps: int | None = None  # None where the configuration does not say it
    loss: float | None = None  # of the last report
    tokens_per_second: float | None = None  # that are no padding
    mfu: float | None = None  # model FLOPs over the devices' peak; None where the peak is not known
    # Of the last hour since its process started, with all that it stood still for; None before two
    # reports
    seconds_per_step: float | None = None
    at: float | None = None  # of the last figures, in seconds since 1970; None: there are none
    # Of its wall time by kind, since the time that was asked for
    seconds: dict[str, float] = pydantic.Field(default_factory=dict)
    starts: int = 0  # of processes
    finished: bool = False  # whether it has come to its end

    @property
    def seconds_left(self) -> float | None:
        """Until its last step, at the speed of the last hour; None: not known."""
        if self.finished:
            return 0.0
        if self.seconds_per_step is None or self.total_steps is None:
            return None
        return max(self.total_steps - self.step, 0) * self.seconds_per_step


def read_figures(
    run_dir: epath.PathLike, config: epath.PathLike, *, since: float = 0.0
) -> RunFigures:
    """Reads the metrics of a run, which may not have begun.

    Args:
        run_dir: of the run.
        config: the file that says how many steps it has.
        since: seconds since 1970; the account of time begins then.

    Raises:
        RunStopped: its bucket does not answer.
    """
    lines = _metrics(run_dir)
    accounts = [line for line in lines if line["kind"] == GOODPUT and {*KINDS, "at"} <= line.keys()]
    found: dict[str, Any] = {"total_steps": _total_steps(config)}
    if trained := [line for line in lines if line["kind"] == "train"]:
        found |= {"step": trained[-1]["step"], "loss": trained[-1].get("loss")}
    if speeds := [line for line in lines if line["kind"] == "speed"]:
        found |= {name: speeds[-1].get(name) for name in ("tokens_per_second", "mfu")}
    if accounts:
        last = accounts[-1]
        found |= {
            "step": last["step"],
            "at": last["at"],
            "starts": last["starts"],
            "finished": bool(last["finished"]),
            "seconds_per_step": _seconds_per_step(accounts),
            "seconds": _seconds(accounts, since),
        }
    return RunFigures(**found)


def _metrics(run_dir: epath.PathLike) -> Sequence[Mapping[str, Any]]:
    try:
        return read_metrics(run_dir)
    except UserError:  # there are none yet
        return []


def _total_steps(config: epath.PathLike) -> int | None:
    try:
        phases = read_yaml(config)["train"]["phases"]
        return sum(int(phase["steps"]) for phase in phases)
    except (UserError, KeyError, TypeError, ValueError):
        return None


def _seconds_per_step(accounts: Sequence[Mapping[str, Any]]) -> float | None:
    last = accounts[-1]
    recent = [
        line
        for line in accounts
        if line["starts"] == last["starts"] and line["at"] >= last["at"] - _RECENT_SECONDS
    ]
    steps = last["step"] - recent[0]["step"]
    return (last["at"] - recent[0]["at"]) / steps if steps > 0 else None


def _seconds(accounts: Sequence[Mapping[str, Any]], since: float) -> dict[str, float]:
    before = [line for line in accounts if line["at"] < since][-1:]
    counted = before[0] if before else dict.fromkeys(KINDS, 0.0)
    return {kind: max(accounts[-1][kind] - counted[kind], 0.0) for kind in KINDS}
