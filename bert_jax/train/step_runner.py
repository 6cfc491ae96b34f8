"""Runs single steps: dispatches a step, reads its metrics, and responds to a bad step."""

import collections
import functools
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.errors import Diverged, UserError
from bert_jax.parallel.sharding_rules import replicated
from bert_jax.train.bad_steps import BadStep, BadStepGuard, rollback_or_stop
from bert_jax.train.compiled import StepPrograms
from bert_jax.train.dump import write_dump
from bert_jax.train.metrics import to_host
from bert_jax.train.metrics_writer import read_metrics
from bert_jax.train.output import Output, PhaseReports
from bert_jax.train.prefetch import DeviceBatch
from bert_jax.train.profile import StepProfile
from bert_jax.train.progress import StepTracker
from bert_jax.train.restore import Rollback, RollbackLog, restore_or_initialise
from bert_jax.train.spec import Phase, TrainSpec
from bert_jax.train.state import TrainState, abstract_like, abstract_params
from bert_jax.train.step import HEALTHY, StepFigures, StepLimits, TrainStep
from bert_jax.train.watchdog import Watchdog

BAD_STEP: Final = "bad_step"  # kind of metrics


class RunningStep(NamedTuple):
    """A dispatched step whose metrics were not yet read."""

    step: int
    batch: DeviceBatch
    limits: StepLimits
    figures: StepFigures


class RollbackDue(Exception):
    """A bad step requires a rollback, which ends the current stream of batches."""

    def __init__(self, bad: BadStep, state: TrainState) -> None:
        super().__init__(str(bad))
        self.bad, self.state = bad, state  # `state`: frozen state before the step


class StepRunner:
    """Runs the steps of a run, with its watchdog and profile.

    All processes choose the same response to a bad step.
    """

    def __init__(
        self, spec: TrainSpec, tracker: StepTracker, output: Output, rollbacks: RollbackLog
    ) -> None:
        """Adds the lines of rollbacks that a killed process did not write to metrics.jsonl."""
        self.tracker, self.output = tracker, output
        self.watchdog = Watchdog(spec.watchdog, output.watch, spec.run_dir)
        self.profile = StepProfile(spec.profile, spec.run_dir, say=output.display.say)
        self._spec, self._rollbacks = spec, rollbacks
        self._guard = BadStepGuard(spec.bad_steps)
        self._phase: Phase | None = None  # phase of `_programs`
        self._programs: StepPrograms
        everywhere = replicated(spec.mesh)
        self._schedule = jax.make_array_from_process_local_data(everywhere, spec.schedule)
        if rollbacks.entries and jax.process_index() == 0:
            self._complete_lines()

    def programs(self, phase: Phase) -> StepPrograms:
        """Returns the compiled steps of a phase, which are kept until the next phase."""
        if self._phase is not phase:
            self._phase = phase
            self._programs = StepPrograms(
                phase.step,
                accumulation=phase.accumulation,
                shapes=phase.shapes,
                warn=functools.partial(self.output.display.say, style="bold yellow"),
            )
        return self._programs

    def compile_ahead(self, phase: Phase, state: TrainState) -> None:
        """Compiles the step and the evaluation of a phase before their first batches.

        Call it under `jax.set_mesh`.
        """
        assert phase.batch is not None
        frozen = self._spec.frozen.params
        self.programs(phase).compile(state, phase.batch, self._schedule, frozen)
        if phase.compile_evaluation is not None:
            phase.compile_evaluation(abstract_params(phase.step.model, self._spec.mesh), frozen)

    def dispatch(
        self, step_fn: TrainStep, step: int, state: TrainState, batch: DeviceBatch
    ) -> tuple[TrainState, RunningStep]:
        """Starts a step on the devices; the new state uses the memory of the old one."""
        limits = self._guard.limits(self.tracker.progress.history, step)
        withheld = self._guard.withheld(limits)
        with self.profile.step(step):
            state, figures = step_fn(
                state, batch.batch, withheld, self._schedule, self._spec.frozen.params
            )
        return state, RunningStep(step, batch, limits, figures)

    def finish(
        self, running: RunningStep, state: TrainState, reports: PhaseReports
    ) -> tuple[TrainState, bool]:
        """Reads a step's metrics, and counts and reports the step.

        Returns the state to continue from, and whether the step's update was applied. `state` is
        the state after the last dispatched step.

        Raises:
            RollbackDue: the caller must call `roll_back`. The step is dumped.
            Diverged: the settings require a stop, or there were too many bad steps. The step is
                dumped.
        """
        metrics, history = to_host(running.figures.metrics), self.tracker.progress.history
        bad = self._guard.judge(history, running.step, metrics, running.limits)
        applied = metrics.pop(HEALTHY)[0] > 0
        self.tracker.finish_step(metrics if applied else {})
        self.watchdog.step_done()
        self.output.display.step_done(running.step)
        self.profile.step_done(running.step)
        if bad:
            state = self._respond(bad, running, state)
        reports.add(running.batch)
        return state, applied

    def _respond(self, bad: BadStep, running: RunningStep, state: TrainState) -> TrainState:
        """Returns the state to continue from; `state` is frozen unless the response is "warn"."""
        display, checkpoints = self.output.display, self._spec.checkpoints
        if bad.response in ("warn", "skip"):
            done = "skipped without an update" if bad.response == "skip" else "a spike"
            display.say(f"{bad}: {done}", style="bold yellow")
            self._write_line(bad)
            if bad.response != "skip":
                return state
            layout = state.step.sharding
            step, healthy = jax.jit(
                lambda step: (step + 1, jnp.ones((), jnp.bool_)), out_shardings=(layout, layout)
            )(state.step)
            return state._replace(step=step, healthy=healthy)
        if bad.response == "rollback":
            last = checkpoints.on_disk.newest() or 0
            bad = rollback_or_stop(bad, rollbacks=len(self._rollbacks.to(last)))
        batch, figures = running.batch.batch, running.figures
        folder = write_dump(self._spec, bad, state, batch, figures, self.tracker.progress)
        if bad.response == "rollback":
            display.say(f"{bad}; written to {folder}", style="bold red")
            raise RollbackDue(bad, state)
        self._write_line(bad)
        last = checkpoints.on_disk.newest()
        raise Diverged(
            "step.bad",
            f"{bad.reason}{bad.exhausted}. Last checkpoint: {last}. The step is in {folder}.",
            place=f"step {bad.step}",
        )

    def roll_back(self, bad: BadStep, state: TrainState) -> TrainState:
        """Returns the last checkpoint's state and moves the data position past the bad step.

        First frees the memory of `state`. Raises RunStopped if the last save failed and the
        settings require a stop.
        """
        self._spec.checkpoints.settle()
        abstract = jax.tree.map(abstract_like, state)
        for leaf in jax.tree.leaves(state):
            leaf.delete()
        display, before = self.output.display, self.tracker.progress
        with self.output.watch.on("restore"):
            state, progress = restore_or_initialise(
                self._spec, abstract, self._rollbacks, say=display.say, warn=display.say
            )
        progress.unevaluated = False  # this process repeated the evaluation at its start
        progress.start, progress.start_data = before.start, before.start_data
        left_out = self._rollbacks.add(bad, progress, at=before)
        self.tracker.progress = progress
        self.output.rewind(progress.step)
        self._write_rollback(left_out)
        display.say(
            f"step {bad.step}: back to step {progress.step}; skipping rows {left_out.first} to "
            f"{left_out.position.example_index - 1} of phase {left_out.phase}",
            style="bold red",
        )
        return state

    def _complete_lines(self) -> None:
        try:
            lines = read_metrics(self._spec.run_dir, kind=BAD_STEP)
        except UserError:  # there is no metrics.jsonl yet
            lines = []
        written = collections.Counter(
            (line["step"], line["at"]) for line in lines if "rollback" in line
        )
        for entry in self._rollbacks.entries:
            key = entry.checkpoint, entry.bad_step
            if not written[key]:
                self._write_rollback(entry)
            written[key] -= 1

    def _write_rollback(self, entry: Rollback) -> None:
        figures = {"at": entry.bad_step, "rollback": 1, **entry.figures}
        self.output.writer.write(BAD_STEP, entry.checkpoint, figures)

    def _write_line(self, bad: BadStep) -> None:
        self.output.writer.write(
            BAD_STEP, bad.step, {"at": bad.step, bad.response: 1, **bad.finite}
        )
