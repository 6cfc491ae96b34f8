"""Dispatching one step, and reading it once the devices have computed it."""

import jax

from bert_jax.parallel.rules import replicated
from bert_jax.train import metrics as sums_of
from bert_jax.train.output import Output, PhaseReports
from bert_jax.train.prefetch import DeviceBatch
from bert_jax.train.profile import StepProfile
from bert_jax.train.recovery import Recovery, RunningStep
from bert_jax.train.rollbacks import RollbackLog
from bert_jax.train.spec import TrainSpec
from bert_jax.train.state import TrainState
from bert_jax.train.step import HEALTHY, TrainStep
from bert_jax.train.step_tracker import StepTracker
from bert_jax.train.watchdog import Watchdog


class StepRunner:
    """Runs single steps, with the recovery, watchdog and profile that all steps share."""

    def __init__(
        self, spec: TrainSpec, tracker: StepTracker, output: Output, rollbacks: RollbackLog
    ) -> None:
        self.tracker, self.output = tracker, output
        self.recovery = Recovery(spec, tracker, output, rollbacks)
        self.watchdog = Watchdog(spec.watchdog, output.watch, spec.run_dir)
        self.profile = StepProfile(spec.profile, spec.run_dir, say=output.display.say)
        everywhere = replicated(spec.mesh)
        self._schedule = jax.make_array_from_process_local_data(everywhere, spec.schedule)

    def dispatch(
        self, step_fn: TrainStep, step: int, state: TrainState, batch: DeviceBatch
    ) -> tuple[TrainState, RunningStep]:
        """Starts a step on the devices; the state's memory becomes the new state's."""
        limits = self.recovery.limits(step)
        withheld = self.recovery.guard.withheld(limits)
        with self.profile.step(step):
            state, figures = step_fn(state, batch.batch, withheld, self._schedule)
        return state, RunningStep(step, batch, limits, figures)

    def finish(
        self, running: RunningStep, state: TrainState, reports: PhaseReports
    ) -> tuple[TrainState, bool]:
        """Reads a step's metrics, counts and reports it; returns whether its update was applied.

        The state is the newest one dispatched. Raises RollbackDue, Diverged: the step was bad.
        """
        metrics = sums_of.to_host(running.figures.metrics)
        bad = self.recovery.judge(running, metrics)
        applied = metrics.pop(HEALTHY)[0] > 0
        self.tracker.finish_step(metrics if applied else {})
        self.watchdog.step_done()
        self.output.display.step_done(running.step)
        self.profile.step_done(running.step)
        self.output.examples.write(running.batch.examples, self.tracker.progress)
        if bad:
            state = self.recovery.respond(bad, running, state)
        reports.add(running.batch)
        return state, applied
