"""Hooks of the train loop. They run after a step, while the devices wait."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import TypeAlias

from bert_jax.errors import RunStopped
from bert_jax.parallel.channel import current_channel
from bert_jax.parallel.replica_checksum import Deviation, find_deviations
from bert_jax.parallel.stop_signal import STOP
from bert_jax.train.agree_with_first_process import failure_of
from bert_jax.train.checkpoint_manifest import SelectionScore
from bert_jax.train.output import Output
from bert_jax.train.progress import DueActions, StepTracker
from bert_jax.train.spec import Phase, TrainSpec
from bert_jax.train.state import TrainState


@dataclasses.dataclass
class Pause:
    """A step after which the hooks run, and the results of the hooks."""

    step: int
    phase: Phase
    state: TrainState
    due: DueActions
    score: SelectionScore | None = None  # score of this step's evaluation
    interrupted: bool = False  # whether a signal requires the run to save and end
    ended_early: bool = False  # whether evaluations end the run

    @property
    def ends_run(self) -> bool:
        """Whether the run ends early, after this step."""
        return self.interrupted or self.ended_early


# Later hooks and the loop read what a hook changes in the pause.
Hook: TypeAlias = Callable[[Pause], None]


def check_replicas(spec: TrainSpec, pause: Pause) -> None:
    """If `checksum_every` is set, compares the replicas of the state at every pause.

    Raises RunStopped, naming the devices and their processes, if replicas differ.
    """
    if spec.intervals.checksum_every is None:
        return
    if found := find_deviations(pause.state, spec.mesh):
        error = replica_error(found).followed_by(
            f" Nothing was saved. Last checkpoint: {spec.checkpoints.on_disk.newest() or 'none'}."
        )
        raise error.located(f"step {pause.step}")


def stop_early(spec: TrainSpec, tracker: StepTracker, output: Output, pause: Pause) -> None:
    """Ends the run if an evaluation meets a rule. Warns of losses above `at_most`."""
    pause.ended_early = tracker.ended_early
    if tracker.target_reached:
        output.milestones.ended(pause.step, target_reached=True)
    for line in verdicts(spec, tracker):
        output.display.say(line, style="" if pause.ended_early else "bold yellow")


def verdicts(spec: TrainSpec, tracker: StepTracker) -> Iterator[str]:
    """Yields the messages of this step's evaluation: losses above `at_most`, reasons to stop."""
    rule, progress, stop = spec.intervals.stop_at, tracker.progress, spec.intervals.stop_above
    stopped, warned = f"stopped at step {progress.step}: ", f"step {progress.step}: "
    if rule is not None and tracker.target_reached:
        limits = {"at least": rule.at_least, "at most": rule.at_most}
        limit = next(f"{name} {value:g}" for name, value in limits.items() if value is not None)
        yield f"{stopped}{rule.metric} {progress.scores[rule.metric]:.5g} is {limit}"
    for name, rise in tracker.rises.items():
        yield (
            f"{stopped if stop else warned}{name} {progress.scores[name]:.5g} is {rise:.3g} above "
            f"the start ({progress.start[name]:.5g}), allowed: {spec.intervals.at_most[name]:g}"
        )
    if tracker.out_of_patience and progress.step < tracker.last_step:
        tries, metric = progress.without_better, spec.selection.metric
        yield f"{stopped}{tries} evaluations without a better {metric}"


def save(spec: TrainSpec, tracker: StepTracker, output: Output, pause: Pause) -> None:
    """Starts to save state and progress if a save is due or the run ends after this step."""
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
    if pause.interrupted and not pause.ended_early:
        output.display.say(
            f"stopped at step {pause.step}, saved. Run the same command again to resume."
        )


def replica_error(found: list[Deviation]) -> RunStopped:
    """Returns the error that names the deviating devices and the first deviating array."""
    outvoted = [deviation for deviation in found if deviation.outvoted]
    named = outvoted or found
    channel, devices = current_channel(), []
    for device in (each.device for each in named):
        index = device.process_index
        host = f" on {channel.members[index].host}" if channel else ""
        devices.append(f"device {device.id} (process {index}{host}, {device.device_kind})")
    arrays = list(dict.fromkeys(name for each in named for name in each.arrays))
    kind, how = "no_majority", ", and no majority shows which one is right"
    if outvoted:
        kind, how = "outvoted", " from the majority"
    return RunStopped(
        f"replicas.{kind}",
        f"the replicas on {', '.join(devices)} differ{how}. Differing arrays: {len(arrays)}, first "
        f"{arrays[0]}.",
    )
