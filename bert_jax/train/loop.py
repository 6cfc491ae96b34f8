"""The one train loop: read `train`, `_run_steps` and then the hooks, from top to bottom.

The loop dispatches step N, and only then reads the metrics of step N−1, so that the devices never
wait for the host. They wait where something is due: `pauses.py` has what happens then.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import jax
from rich.console import Console

from bert_jax.narration import doing
from bert_jax.optim.schedule import Schedule
from bert_jax.parallel.rules import replicated
from bert_jax.parallel.stop_signal import STOP
from bert_jax.train import metrics as sums_of
from bert_jax.train.compiled import StepPrograms, lower_train_step
from bert_jax.train.evaluations import Evaluations
from bert_jax.train.goodput import Stopwatch
from bert_jax.train.output import Output, PhaseReports, open_output
from bert_jax.train.pauses import EarlyStopping, Hook, Pause, Saving, StopOnSignal
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
    evaluations = Evaluations(spec, tracker, output)
    try:
        run = _Run(
            spec=spec,
            tracker=tracker,
            output=output,
            recovery=Recovery(spec, tracker, output, rollbacks),
            watchdog=Watchdog(spec.watchdog, watch, spec.run_dir),
            profile=StepProfile(spec.profile, spec.run_dir, say=output.display.say),
            hooks=[
                ReplicaCheck(spec),
                evaluations,
                EarlyStopping(spec, tracker, output),
                Saving(spec, tracker, output),
                StopOnSignal(output),
            ],
            schedule=jax.make_array_from_process_local_data(replicated(spec.mesh), spec.schedule),
        )
        run.recovery.complete_figures()
        if first:
            output.display.say(f"resuming at step {first} of {last}")
        with (
            jax.set_mesh(spec.mesh),
            jax.transfer_guard_device_to_host("disallow"),
            STOP.listening(),
            watch.on("train"),
            run.watchdog,
            run.profile,
        ):
            STOP.saved(first, spec.checkpoints.wait)
            interrupted = evaluations.make_up(state.params)
            for phase in () if interrupted else tracker.remaining_phases():
                state, interrupted = _run_phase(run, phase, state)
                if interrupted:
                    break
        with watch.on("save"), doing("saving the last checkpoint"):
            spec.checkpoints.wait()
        if tracker.progress.step > first:
            output.tell_time(step=tracker.progress.step, finished=not interrupted)
    finally:
        output.close()
    return Outcome(tracker.progress.step, interrupted, evaluations.scores)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Run:
    """What all steps of a run share."""

    spec: TrainSpec
    tracker: StepTracker
    output: Output
    recovery: Recovery
    watchdog: Watchdog
    profile: StepProfile
    hooks: Sequence[Hook]  # called in this order where the devices wait
    schedule: Schedule


def _run_phase(run: _Run, phase: Phase, state: TrainState) -> tuple[TrainState, bool]:
    """Runs the steps of a phase that are left; returns whether a signal interrupted them."""
    while True:
        try:
            return _run_steps(run, phase, state)
        except RollbackDue as due:
            state = run.recovery.roll_back(due.bad, due.state)


def _run_steps(run: _Run, phase: Phase, state: TrainState) -> tuple[TrainState, bool]:
    """Does the same without rollbacks."""
    spec, tracker = run.spec, run.tracker
    reports = PhaseReports(phase, spec.step.task, tracker, run.output)
    lower = functools.partial(lower_train_step, spec.step, accumulation=phase.accumulation)
    step_fn = StepPrograms(lower, shapes=phase.shapes)
    with phase.loader.batches(
        first_step=tracker.first_batch(), with_examples=spec.example_log
    ) as rows:
        batches = prefetch_to_device(
            rows, spec.mesh, shares=spec.share.count, watch=run.output.watch
        )
        running: RunningStep | None = None
        for step, batch in enumerate(batches, start=tracker.progress.step + 1):
            # Step N is dispatched; while the devices compute it, step N−1 is read.
            previous = running
            state, running = _dispatch(run, step_fn, step, state, batch)
            if previous is not None:
                state, applied = _finish(run, previous, state, reports)
                if not applied:  # step N−1 was bad and froze the state: step N has changed nothing
                    state, running = _dispatch(run, step_fn, step, state, batch)
            due = tracker.due_after_next(stop_requested=STOP.due(step))
            if not due.anything:
                continue
            state, _ = _finish(run, running, state, reports)
            running = None
            pause = Pause(step, phase, state, due, interrupted=due.stop)
            for hook in run.hooks:
                hook(pause)
            if due.end_phase or pause.ends_run:
                return state, pause.interrupted and not pause.out_of_patience
            reports.restart()
    return state, False


def _dispatch(
    run: _Run, step_fn: TrainStep, step: int, state: TrainState, batch: DeviceBatch
) -> tuple[TrainState, RunningStep]:
    """Starts a step on the devices; the state's memory becomes the new state's."""
    limits = run.recovery.limits(step)
    withheld = run.recovery.guard.withheld(limits)
    with run.profile.step(step):
        state, figures = step_fn(state, batch.batch, withheld, run.schedule)
    return state, RunningStep(step, batch, limits, figures)


def _finish(
    run: _Run, running: RunningStep, state: TrainState, reports: PhaseReports
) -> tuple[TrainState, bool]:
    """Reads a step's metrics, counts and reports it; returns whether its update was applied."""
    metrics = sums_of.to_host(running.figures.metrics)
    bad = run.recovery.judge(running, metrics)
    applied = metrics.pop(HEALTHY)[0] > 0
    run.tracker.finish_step(metrics if applied else {})
    run.watchdog.step_done()
    run.output.display.step_done(running.step)
    run.profile.step_done(running.step)
    run.output.examples.write(running.batch.examples, run.tracker.progress)
    if bad:
        state = run.recovery.respond(bad, running, state)
    reports.add(running.batch)
    return state, applied
