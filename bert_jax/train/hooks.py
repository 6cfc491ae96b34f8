"""Hooks of the train loop: they run after a step at which the devices wait."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

from bert_jax.errors import RunStopped
from bert_jax.parallel.channel import current_channel
from bert_jax.parallel.replica_checksum import Deviation, find_deviations
from bert_jax.parallel.stop_signal import STOP
from bert_jax.train.agreement import failure_of
from bert_jax.train.manifest import SelectionScore
from bert_jax.train.output import Output
from bert_jax.train.progress import DueActions, StepTracker
from bert_jax.train.spec import Phase, TrainSpec
from bert_jax.train.state import TrainState


@dataclasses.dataclass
class Pause:
    """A step at which the devices wait, and the findings of its hooks."""

    step: int
    phase: Phase
    state: TrainState
    due: DueActions
    score: SelectionScore | None = None  # of this step's evaluation
    interrupted: bool = False  # by a signal: the run saves and ends
    out_of_patience: bool = False  # too many evaluations were no better: likewise

    @property
    def ends_run(self) -> bool:
        """Whether the run ends here, before its last step."""
        return self.interrupted or self.out_of_patience


# May change the pause for later hooks and the loop.
Hook: TypeAlias = Callable[[Pause], None]


def check_replicas(spec: TrainSpec, pause: Pause) -> None:
    """Compares the replicas of the state at every pause, before anything is saved.

    Raises RunStopped: some differ; names the devices and their processes.
    """
    if spec.intervals.checksum_every is None:
        return
    if found := find_deviations(pause.state, spec.mesh):
        held = spec.checkpoints.describe_last()
        raise RunStopped(f"step {pause.step}: {describe(found)}; nothing was saved, {held}")


def stop_early(spec: TrainSpec, tracker: StepTracker, output: Output, pause: Pause) -> None:
    """Ends a run after several evaluations in a row without a better score."""
    pause.out_of_patience = tracker.out_of_patience
    if pause.out_of_patience and not pause.due.end_phase:
        tries, metric = tracker.progress.without_better, spec.selection.metric
        output.display.say(
            f"ended at step {pause.step}: {tries} evaluations without a better {metric}"
        )


def save(spec: TrainSpec, tracker: StepTracker, output: Output, pause: Pause) -> None:
    """Starts saving state and progress together, where that is due or the run ends here."""
    if not (pause.due.save or pause.ends_run):
        return
    with output.watch.on("save"):
        spec.check_lock()
        if (failure := failure_of(output.flush)) is not None:
            spec.checkpoints.not_saved(pause.step, failure)
            return
        began = spec.checkpoints.save(
            pause.state,
            step=pause.step,
            progress=tracker.progress.to_json(),
            selection_score=pause.score,
        )
    output.watch.saved(pause.step)
    output.write_time(pause.step)
    if began:
        STOP.saved(pause.step, spec.checkpoints.wait)
    if pause.interrupted and not pause.out_of_patience:
        output.display.say(
            f"stopped at step {pause.step}, saved; the same command goes on from here"
        )


def describe(found: list[Deviation]) -> str:
    """Returns the devices that deviate, and an array in which they do.

    ``replicas differ: device 5 (process 1, TPU v4) in params/mlm/bias and 3 more``
    """
    outvoted = [deviation for deviation in found if deviation.outvoted]
    named = outvoted or found
    devices = ", ".join(
        f"device {each.device.id} ({_process(each.device)}, {each.device.device_kind})"
        for each in named
    )
    arrays = list(dict.fromkeys(name for each in named for name in each.arrays))
    more = f" and {len(arrays) - 1} more" if len(arrays) > 1 else ""
    doubt = "" if outvoted else "; no majority tells which of them is wrong"
    return f"replicas differ: {devices} in {arrays[0]}{more}{doubt}"


def _process(device: Any) -> str:
    """Returns ``process 1``, with several hosts ``process 1 on host-b``."""
    channel, index = current_channel(), device.process_index
    return f"process {index}" + (f" on {channel.members[index].host}" if channel else "")
