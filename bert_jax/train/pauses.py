"""Hooks of the train loop: they run after a step at which the devices wait."""

import dataclasses
from typing import Protocol

from bert_jax.parallel.stop_signal import STOP
from bert_jax.train.agreement import failure_of
from bert_jax.train.manifest import SelectionScore
from bert_jax.train.output import Output
from bert_jax.train.spec import Phase, TrainSpec
from bert_jax.train.state import TrainState
from bert_jax.train.step_tracker import DueActions, StepTracker


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


class Hook(Protocol):
    """Evaluates, saves or ends the run, for example."""

    def __call__(self, pause: Pause) -> None:
        """Runs the hook, which may change the pause for later hooks and the loop."""
        ...


class EarlyStopping:
    """Ends a run after several evaluations in a row without a better score."""

    def __init__(self, spec: TrainSpec, tracker: StepTracker, output: Output) -> None:
        self._metric, self._tracker, self._output = spec.selection.metric, tracker, output

    def __call__(self, pause: Pause) -> None:
        """See `Hook`."""
        pause.out_of_patience = self._tracker.out_of_patience
        if pause.out_of_patience and not pause.due.end_phase:
            tries = self._tracker.progress.without_better
            self._output.display.say(
                f"ended at step {pause.step}: {tries} evaluations without a better {self._metric}"
            )


class Saving:
    """Starts saving state and progress together."""

    def __init__(self, spec: TrainSpec, tracker: StepTracker, output: Output) -> None:
        self._spec, self._tracker, self._output = spec, tracker, output

    def __call__(self, pause: Pause) -> None:
        """See `Hook`."""
        if not (pause.due.save or pause.ends_run):
            return
        output, checkpoints = self._output, self._spec.checkpoints
        with output.watch.on("save"):  # a bucket may keep it waiting, which is no step that hangs
            self._spec.check_lock()
            failure = failure_of(output.flush)
        if failure is not None:
            checkpoints.not_saved(pause.step, failure)
            return
        with output.watch.on("save"):
            began = checkpoints.save(
                pause.state,
                step=pause.step,
                progress=self._tracker.progress.to_json(),
                selection_score=pause.score,
            )
        output.watch.saved(pause.step)
        output.watch.write(output.writer, step=pause.step)
        if began:
            STOP.saved(pause.step, checkpoints.wait)


class StopOnSignal:
    """Says that a signal ends the run, which is saved by then."""

    def __init__(self, output: Output) -> None:
        self._output = output

    def __call__(self, pause: Pause) -> None:
        """See `Hook`."""
        if pause.interrupted and not pause.out_of_patience:
            self._output.display.say(
                f"stopped at step {pause.step}, saved; the same command goes on from here"
            )
