"""The one train loop.

Read `train` and `_Loop.run` from top to bottom. The loop dispatches step N, and only then
reads the metrics of step N−1, so that the devices never wait for the host.
"""

import dataclasses
import functools
from collections.abc import Mapping

import jax
from rich.console import Console

from bert_jax.narration import doing
from bert_jax.parallel.rules import replicated
from bert_jax.parallel.stop_signal import STOP, StopSignal
from bert_jax.train import metrics as sums_of
from bert_jax.train.agreement import failure_of
from bert_jax.train.compiled import StepPrograms, lower_train_step
from bert_jax.train.evaluations import Evaluations
from bert_jax.train.goodput import Stopwatch
from bert_jax.train.manifest import SelectionScore
from bert_jax.train.output import Output, PhaseReports, open_output
from bert_jax.train.prefetch import DeviceBatch, prefetch_to_device
from bert_jax.train.profile import StepProfile
from bert_jax.train.progress_display import warn_aloud
from bert_jax.train.recovery import Recovery, RollbackDue, RunningStep
from bert_jax.train.replicas import ReplicaCheck
from bert_jax.train.restore import restore_or_initialise
from bert_jax.train.rollbacks import RollbackLog
from bert_jax.train.spec import Phase, TrainSpec
from bert_jax.train.state import TrainState, abstract_state
from bert_jax.train.step import HEALTHY, TrainStep
from bert_jax.train.step_tracker import StepTracker
from bert_jax.train.watchdog import Watchdog


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    interrupted: bool  # by a signal, and saved
    scores: Mapping[str, float]  # of the last evaluation


def train(spec: TrainSpec, *, console: Console) -> Outcome:
    """Trains to the end, from the run's last checkpoint where there is one.

    Raises:
        RunStopped: loss or gradient went bad and the settings say to stop; the step is written out.
        UserError: the checkpoint belongs to other data, another model or another seed.
    """
    watch = Stopwatch(spec.run_dir, started=spec.started)
    abstract = abstract_state(spec.step.model, spec.step.optimizer, spec.mesh)
    with watch.on("restore"), doing("making or restoring the state"):
        rollbacks = RollbackLog(spec.run_dir)
        state, progress = restore_or_initialise(spec, abstract, rollbacks, say=warn_aloud)
    spec.write_config(spec.run_dir)
    tracker = StepTracker(progress, phases=spec.phases, intervals=spec.intervals)
    first, last = progress.step, tracker.last_step
    output = open_output(spec, watch, console, progress=progress, last=last)
    try:
        loop = _Loop(spec, state, tracker, output, rollbacks)
        loop.recovery.complete_figures()
        if first:
            output.display.say(f"resuming at step {first} of {last}")
        with (
            jax.set_mesh(spec.mesh),
            jax.transfer_guard_device_to_host("disallow"),
            STOP.listening() as stop,
            watch.on("train"),
            loop.watchdog,
            loop.profile,
        ):
            stop.saved(first, spec.checkpoints.wait)
            loop.run(stop)
        with watch.on("save"), doing("saving the last checkpoint"):
            spec.checkpoints.wait()
        if tracker.progress.step > first:
            output.tell_time(step=tracker.progress.step, finished=not loop.interrupted)
    finally:
        output.close()
    return Outcome(tracker.progress.step, loop.interrupted, loop.evaluations.scores)


class _Loop:
    """A run in motion: its state, its bookkeeping, and where figures go."""

    def __init__(
        self,
        spec: TrainSpec,
        state: TrainState,
        tracker: StepTracker,
        output: Output,
        rollbacks: RollbackLog,
    ) -> None:
        self.spec, self.state, self.tracker, self.output = spec, state, tracker, output
        self.recovery = Recovery(spec, tracker, output, rollbacks)
        self.replicas = ReplicaCheck(spec)
        self.evaluations = Evaluations(spec, tracker, output)
        self.watchdog = Watchdog(spec.watchdog, output.watch, spec.run_dir)
        self.profile = StepProfile(spec.profile, spec.run_dir, say=output.display.say)
        everywhere = replicated(spec.mesh)
        self.schedule = jax.make_array_from_process_local_data(everywhere, spec.schedule)
        self.interrupted = False

    def run(self, stop: StopSignal) -> None:
        """Runs the phases that are left, or until a signal or a lack of patience stops the run."""
        self.evaluations.make_up(self.state.params, stop)
        if self.evaluations.cut:
            self.interrupted = True
            return
        for phase in self.tracker.remaining_phases():
            self._run_phase(phase, stop)
            if self.interrupted:
                return

    def _run_phase(self, phase: Phase, stop: StopSignal) -> None:
        while True:
            try:
                return self._run_steps(phase, stop)
            except RollbackDue as due:
                self.state = self.recovery.roll_back(due.bad, self.state)

    def _run_steps(self, phase: Phase, stop: StopSignal) -> None:
        """Runs the steps of a phase that are left."""
        spec, tracker = self.spec, self.tracker
        reports = PhaseReports(phase, spec.step.task, tracker, self.output)
        lower = functools.partial(lower_train_step, spec.step, accumulation=phase.accumulation)
        step_fn = StepPrograms(lower, shapes=phase.shapes)
        running: RunningStep | None = None
        with phase.loader.batches(
            first_step=tracker.first_batch(), with_examples=spec.example_log
        ) as rows:
            batches = prefetch_to_device(
                rows, spec.mesh, shares=spec.share.count, watch=self.output.watch
            )
            for step, batch in enumerate(batches, start=tracker.progress.step + 1):
                # Step N is dispatched; while the devices compute it, step N−1 is read.
                previous, running = running, self._dispatch(step_fn, step, batch)
                if previous is not None and not self._finish_step(previous, reports):
                    # Step N−1 was bad and froze the state: step N has changed nothing.
                    running = self._dispatch(step_fn, step, batch)
                due = tracker.due_after_next(stop_requested=stop.due(tracker.progress.step + 1))
                if not (due.anything or self.replicas.due(step)):
                    continue

                self._finish_step(running, reports)
                running, score = None, None
                self.replicas.check(self.state, step=step)
                if due.evaluate:
                    score = self.evaluations.run(phase, self.state.params, stop)
                stopping = due.stop or self.evaluations.cut
                saving = due.save or stopping or tracker.out_of_patience
                if saving and self._save(score):
                    stop.saved(step, spec.checkpoints.wait)
                if due.end_phase or stopping or tracker.out_of_patience:
                    self._say_why(stopped=stopping, end_phase=due.end_phase)
                    return
                reports.restart()

    def _dispatch(self, step_fn: TrainStep, step: int, batch: DeviceBatch) -> RunningStep:
        """Starts a step on the devices."""
        limits = self.recovery.limits(step)
        withheld = self.recovery.guard.withheld(limits)
        with self.profile.step(step):
            self.state, figures = step_fn(self.state, batch.batch, withheld, self.schedule)
        return RunningStep(step, batch, limits, figures)

    def _finish_step(self, running: RunningStep, reports: PhaseReports) -> bool:
        """Reads a step's metrics, counts and reports it; returns whether its update was applied."""
        metrics = sums_of.to_host(running.figures.metrics)
        bad = self.recovery.judge(running, metrics)
        applied = metrics.pop(HEALTHY)[0] > 0
        self.tracker.finish_step(metrics if applied else {})
        self.watchdog.step_done()
        self.output.display.step_done(running.step)
        self.profile.step_done(running.step)
        self.output.examples.write(running.batch.examples, self.tracker.progress)
        if bad:
            self.state = self.recovery.respond(bad, running, self.state)
        reports.add(running.batch)
        return applied

    def _save(self, selection_score: SelectionScore | None) -> bool:
        """Starts saving state and progress together; returns whether the save began."""
        progress, output, checkpoints = self.tracker.progress, self.output, self.spec.checkpoints
        with output.watch.on("save"):  # a bucket may keep it waiting, which is no step that hangs
            self.spec.check_lock()
        if (failure := failure_of(output.flush)) is not None:
            checkpoints.not_saved(progress.step, failure)
            return False
        with output.watch.on("save"):
            began = checkpoints.save(
                self.state,
                step=progress.step,
                progress=progress.to_json(),
                selection_score=selection_score,
            )
        output.watch.saved(progress.step)
        output.watch.write(output.writer, step=progress.step)
        return began

    def _say_why(self, *, stopped: bool, end_phase: bool) -> None:
        """Says why the run ends before its last step, if it does."""
        progress, say = self.tracker.progress, self.output.display.say
        if self.tracker.out_of_patience:
            if not end_phase:
                say(
                    f"ended at step {progress.step}: {progress.without_better} evaluations without "
                    f"a better {self.spec.selection.metric}"
                )
        elif stopped:
            self.interrupted = True
            say(f"stopped at step {progress.step}, saved; the same command goes on from here")
