"""The one train loop.

Read `train` and `_Loop.run_phase` from top to bottom. The loop dispatches step N, and only then
reads the metrics of step N−1, so that the devices never wait for the host.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import jax
from rich.console import Console

from bert_jax.narration import doing
from bert_jax.parallel.stop_signal import STOP, StopSignal
from bert_jax.train import metrics as sums_of
from bert_jax.train.compiled import StepPrograms, lower_train_step
from bert_jax.train.goodput import Stopwatch
from bert_jax.train.manifest import SelectionScore
from bert_jax.train.output import Output, open_output
from bert_jax.train.prefetch import DeviceBatch, prefetch_to_device
from bert_jax.train.progress_display import loudly
from bert_jax.train.recovery import Recovery, RollbackDue, RunningStep
from bert_jax.train.replicas import ReplicaCheck
from bert_jax.train.restore import restore_or_initialise
from bert_jax.train.spec import Evaluate, Phase, TrainSpec
from bert_jax.train.state import TrainState, abstract_state
from bert_jax.train.step import HEALTHY, STEP_METRICS, TrainStep
from bert_jax.train.step_tracker import StepTracker
from bert_jax.train.throughput import Meter
from bert_jax.train.watchdog import Watchdog


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    interrupted: bool  # by a signal, and saved
    scores: Mapping[str, float]  # of the last evaluation


def train(spec: TrainSpec, *, console: Console) -> Outcome:
    """Trains to the end, from the run's last checkpoint where there is one.

    Args:
        spec: everything that decides the numbers.
        console: where progress is shown.

    Raises:
        RunStopped: loss or gradient went bad and the settings say to stop; the step is written out.
        UserError: the checkpoint belongs to other data, another model or another seed.
    """
    watch = Stopwatch(spec.run_dir, started=spec.started)
    abstract = abstract_state(spec.step.model, spec.step.optimizer, spec.mesh)
    with watch.on("restore"), doing("making or restoring the state"):
        state, progress = restore_or_initialise(spec, abstract, say=loudly(console))
    spec.write_config(spec.run_dir)
    tracker = StepTracker(progress, phases=spec.phases, intervals=spec.intervals)
    first, last = progress.step, tracker.last_step
    output = open_output(spec, watch, console, first=first, last=last)
    loop = _Loop(spec, state, tracker, output)
    if first:
        output.display.say(f"resuming at step {first} of {last}")
    try:
        with (
            jax.set_mesh(spec.mesh),
            jax.transfer_guard_device_to_host("disallow"),
            STOP.listening() as stop,
            watch.on("train"),
            loop.watchdog,
        ):
            stop.saved(first, spec.checkpoints.wait)
            for phase in tracker.remaining_phases():
                loop.run_phase(phase, stop)
                if loop.interrupted:
                    break
        with watch.on("save"), doing("saving the last checkpoint"):
            spec.checkpoints.wait()
        if tracker.progress.step > first:
            output.tell_time(step=tracker.progress.step, finished=not loop.interrupted)
    finally:
        output.close()
    return Outcome(tracker.progress.step, loop.interrupted, loop.scores)


class _Loop:
    """A run in motion: its state, its bookkeeping, and where figures go."""

    def __init__(
        self,
        spec: TrainSpec,
        state: TrainState,
        tracker: StepTracker,
        output: Output,
    ) -> None:
        self.spec, self.state, self.tracker = spec, state, tracker
        self.output, self.writer, self.display = output, output.writer, output.display
        self.watch = output.watch
        self.recovery, self.replicas = Recovery(spec, tracker, output), ReplicaCheck(spec)
        self.watchdog = Watchdog(spec.watchdog, output.watch, spec.run_dir)
        self.interrupted = False
        self.scores: Mapping[str, float] = {}

    def run_phase(self, phase: Phase, stop: StopSignal) -> None:
        """Runs a phase to its end, or until a signal or a lack of patience stops the run."""
        while True:
            try:
                return self._run_steps(phase, stop)
            except RollbackDue as due:
                self.state = self.recovery.roll_back(due.bad, self.state)

    def _run_steps(self, phase: Phase, stop: StopSignal) -> None:
        """Runs the steps of a phase that are left."""
        spec, tracker = self.spec, self.tracker
        meter = Meter(flops_per_row=phase.flops_per_row)
        if phase.watch:
            self.display.say(phase.watch.expectation, style="dim")
        lower = functools.partial(lower_train_step, spec.step, accumulation=phase.accumulation)
        step_fn = phase.step or StepPrograms(lower, shapes=phase.shapes)
        running: RunningStep | None = None
        with phase.loader.batches(
            first_step=tracker.first_batch(), with_examples=spec.example_log
        ) as rows:
            batches = prefetch_to_device(rows, spec.mesh, shares=spec.share.count)
            for step, batch in enumerate(batches, start=tracker.progress.step + 1):
                # Step N is dispatched; while the devices compute it, step N−1 is read.
                previous, running = running, self._dispatch(step_fn, step, batch)
                if previous is not None and not self._finish_step(phase, previous, meter):
                    # Step N−1 was bad and froze the state: step N has changed nothing.
                    running = self._dispatch(step_fn, step, batch)
                due = tracker.due_after_next(stop_requested=stop.due(tracker.progress.step + 1))
                if not (due.evaluate or due.save or self.replicas.due(step)):
                    continue

                self._finish_step(phase, running, meter)
                running, score = None, None
                self.replicas.check(self.state, step=step)
                if due.evaluate and phase.evaluate:
                    score = self._evaluate(phase, phase.evaluate)
                if due.save or tracker.out_of_patience:
                    self._save(score)
                    stop.saved(tracker.progress.step, spec.checkpoints.wait)
                if due.end_phase or due.stop or tracker.out_of_patience:
                    self._say_why(stopped=due.stop, end_phase=due.end_phase)
                    return
                meter.restart()

    def _dispatch(self, step_fn: TrainStep, step: int, batch: DeviceBatch) -> RunningStep:
        """Starts a step on the devices."""
        limits = self.recovery.limits(step)
        self.state, figures = step_fn(self.state, batch.batch, self.recovery.withheld(limits))
        return RunningStep(step, batch, limits, figures)

    def _finish_step(self, phase: Phase, running: RunningStep, meter: Meter) -> bool:
        """Reads a step's metrics, counts it, and reports when it is time.

        Returns:
            Whether its update was applied.
        """
        metrics = sums_of.to_host(running.figures.metrics)
        bad = self.recovery.judge(running, metrics)
        applied = metrics.pop(HEALTHY)[0] > 0
        self.tracker.finish_step(metrics if applied else {})
        self.watchdog.step_done()
        self.display.step_done(running.step)
        batch = running.batch
        self.output.examples.write(batch.examples, self.tracker.progress)
        meter.add(tokens=batch.tokens, rows=phase.batch_size, waited=batch.waited)
        self.watch.waited(batch.waited)
        if bad:
            self.state = self.recovery.respond(bad, running, self.state)
        if self.tracker.report_due:
            self._report(phase, meter)
        return applied

    def _report(self, phase: Phase, meter: Meter) -> None:
        """Writes and shows the scores and the speed since the last report."""
        step, window = self.tracker.progress.step, self.tracker.take_window()
        if not window:
            return  # all were skipped
        scores = self.spec.step.task.score(window) | sums_of.select(window, *STEP_METRICS)
        throughput = meter.read()
        self.writer.write("train", step, scores)
        speed = {name: value for name, value in throughput._asdict().items() if value is not None}
        self.writer.write("speed", step, speed)
        self.watch.write(self.writer, step=step)
        self.display.report(step, scores, throughput)
        if phase.watch and (warning := phase.watch.warn(step=step, scores=scores)):
            self.display.say(warning, style="yellow")

    def _evaluate(self, phase: Phase, evaluate: Evaluate) -> SelectionScore:
        """Evaluates, reports, and returns the selection score."""
        progress = self.tracker.progress
        with self.watch.on("evaluate"), doing("evaluating"):
            self.scores = scores = evaluate(self.state.params)
        self.writer.write("validation", progress.step, scores)
        remark = phase.watch.remark(scores) if phase.watch else ""
        self.display.evaluated(progress.step, scores, remark)
        score = self.spec.selection.score(scores, phase=progress.phase, data=phase.validation)
        progress.record_evaluation(score.value, comparison=score.comparison)
        return score

    def _save(self, selection_score: SelectionScore | None) -> None:
        """Starts saving state and progress together."""
        progress = self.tracker.progress
        self.output.flush()
        with self.watch.on("save"):
            self.spec.checkpoints.save(
                self.state,
                step=progress.step,
                progress=progress.to_json(),
                selection_score=selection_score,
            )
        self.watch.write(self.writer, step=progress.step)

    def _say_why(self, *, stopped: bool, end_phase: bool) -> None:
        """Says why the run ends before its last step, if it does."""
        progress = self.tracker.progress
        if self.tracker.out_of_patience:
            if not end_phase:
                self.display.say(
                    f"ended at step {progress.step}: {progress.without_better} evaluations without "
                    f"a better {self.spec.selection.metric}"
                )
        elif stopped:
            self.interrupted = True
            self.display.say(
                f"stopped at step {progress.step}, saved; the same command goes on from here"
            )
