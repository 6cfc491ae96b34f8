"""What a run does about bad steps: goes on without one, goes back to a checkpoint, or stops."""

import collections
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.errors import Diverged, UserError
from bert_jax.task import Sums
from bert_jax.train.bad_steps import BadStep, BadStepGuard
from bert_jax.train.dump import write_dump
from bert_jax.train.output import Output
from bert_jax.train.prefetch import DeviceBatch
from bert_jax.train.restore import restore_or_initialise
from bert_jax.train.rollbacks import Rollback, RollbackLog
from bert_jax.train.spec import TrainSpec
from bert_jax.train.state import TrainState, abstract_like
from bert_jax.train.step import StepFigures, StepLimits
from bert_jax.train.step_tracker import StepTracker
from bert_jax.train.writer import read_metrics

BAD_STEP: Final = "bad_step"  # lines of metrics.jsonl


class RunningStep(NamedTuple):
    """A step that was dispatched and is not read yet."""

    step: int
    batch: DeviceBatch
    limits: StepLimits
    figures: StepFigures


class RollbackDue(Exception):
    """A bad step calls for a rollback, which ends the stream of batches."""

    def __init__(self, bad: BadStep, state: TrainState) -> None:
        super().__init__(str(bad))
        self.bad, self.state = bad, state  # the state is frozen before the step


class Recovery:
    """Judges the steps of a run, and answers bad ones as its settings say; on all hosts alike."""

    def __init__(
        self, spec: TrainSpec, tracker: StepTracker, output: Output, rollbacks: RollbackLog
    ) -> None:
        """Takes the run's rollbacks so far."""
        self._spec, self._tracker, self._rollbacks = spec, tracker, rollbacks
        self._output, self._display = output, output.display
        self.guard = BadStepGuard(spec.bad_steps)

    def limits(self, step: int) -> StepLimits:
        """Returns what a step is judged by: loss and gradient norm of a spike."""
        return self.guard.limits(self._tracker.progress.history, step)

    def judge(self, running: RunningStep, metrics: Sums) -> BadStep | None:
        """Returns what is wrong with a step, and remembers it for those after it."""
        history = self._tracker.progress.history
        return self.guard.judge(history, running.step, metrics, running.limits)

    def respond(self, bad: BadStep, running: RunningStep, state: TrainState) -> TrainState:
        """Answers a bad step that has been counted; returns the state to go on from.

        The given state is frozen before the step, unless the response is a warning. Raises
        RollbackDue: call `roll_back`; Diverged: as set, or after too many; the step has been
        written out.
        """
        if bad.response in ("warn", "skip"):
            done = "skipped, its update is not applied" if bad.response == "skip" else "a spike"
            self._display.say(f"{bad}: {done}", style="bold yellow")
            self._record(bad)
            return _thawed(state) if bad.response == "skip" else state
        spec, progress = self._spec, self._tracker.progress
        last = spec.checkpoints.latest_step()
        if bad.response == "rollback":
            before = self._rollbacks.to(last or 0)
            bad = self.guard.rollback_or_stop(bad, rollbacks=len(before))
        folder = write_dump(spec, bad, state, running.batch.batch, running.figures, progress)
        if bad.response == "rollback":
            self._display.say(f"{bad}; written to {folder}", style="bold red")
            raise RollbackDue(bad, state)
        self._record(bad)
        held = "there is no checkpoint yet" if last is None else f"checkpoint {last} is untouched"
        raise Diverged(f"{bad}; {held}; look at the step with `bert-jax replay {folder}`")

    def roll_back(self, bad: BadStep, state: TrainState) -> TrainState:
        """Goes back to the last checkpoint, its data position moved past the bad step.

        The memory of the given state is given back before the other is read. Raises RunStopped: the
        last save failed, and the settings say to stop.
        """
        self._spec.checkpoints.settle()
        abstract = jax.tree.map(abstract_like, state)
        for leaf in jax.tree.leaves(state):
            leaf.delete()
        with self._output.watch.on("restore"):
            state, progress = restore_or_initialise(
                self._spec, abstract, self._rollbacks, say=self._display.say
            )
        progress.unevaluated = False  # a start has made up for it, and its figures stand
        left_out = self._rollbacks.add(bad, progress, at=self._tracker.progress)
        left_out.apply(progress)
        self._tracker.progress = progress
        self._output.rewind(progress.step)
        self._record_rollback(left_out)
        self._display.say(
            f"step {bad.step}: back to step {progress.step}; rows {left_out.first} to "
            f"{left_out.position.example_index - 1} of phase {left_out.phase} are left out",
            style="bold red",
        )
        return state

    def complete_figures(self) -> None:
        """Writes the lines of rollbacks that a killed process has not written.

        Call it at the start of a run, when its files are open.
        """
        if jax.process_index() != 0 or not self._rollbacks.entries:
            return
        try:
            lines = read_metrics(self._spec.run_dir, kind=BAD_STEP)
        except UserError:  # no line was written so far
            lines = []
        written = collections.Counter(
            (line["step"], line["at"]) for line in lines if "rollback" in line
        )
        for entry in self._rollbacks.entries:
            key = entry.checkpoint, entry.bad_step
            if not written[key]:
                self._record_rollback(entry)
            written[key] -= 1

    def _record_rollback(self, entry: Rollback) -> None:
        figures = {"at": entry.bad_step, "rollback": 1, **entry.figures}
        self._output.writer.write(BAD_STEP, entry.checkpoint, figures)

    def _record(self, bad: BadStep) -> None:
        figures = {"at": bad.step, bad.response: 1, **bad.finite}
        self._output.writer.write(BAD_STEP, bad.step, figures)


def _thawed(state: TrainState) -> TrainState:
    """Returns a frozen state one step on, as if its step had changed nothing else."""
    layout = state.step.sharding
    step, healthy = jax.jit(
        lambda step: (step + 1, jnp.ones((), jnp.bool_)), out_shardings=(layout, layout)
    )(state.step)
    return state._replace(step=step, healthy=healthy)
