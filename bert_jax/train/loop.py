"""The one train loop: read `train`, then `_run_steps`, then the hooks in `hooks.py`.

The loop dispatches step N before it reads the metrics of step N−1, so that the devices do not wait
for the host. If an action is due after a step, the hooks run and the devices wait.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from etils import epath
from rich.console import Console

from bert_jax.narration import doing, narrator_of
from bert_jax.parallel.memory import out_of_memory
from bert_jax.parallel.mesh import process_share
from bert_jax.parallel.stop_signal import STOP
from bert_jax.train.evaluations import Evaluations, check_start
from bert_jax.train.goodput import Stopwatch
from bert_jax.train.hooks import Hook, Pause, check_replicas, save, stop_early, verdicts
from bert_jax.train.metrics_writer import METRICS, read_metrics
from bert_jax.train.output import PhaseReports, open_output
from bert_jax.train.prefetch import prefetch_to_device
from bert_jax.train.progress import StepTracker
from bert_jax.train.progress_display import warn_aloud
from bert_jax.train.restore import RollbackLog, restore_or_initialise
from bert_jax.train.spec import Phase, TrainSpec
from bert_jax.train.state import TrainState, abstract_state
from bert_jax.train.step_runner import RollbackDue, RunningStep, StepRunner


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of `train`."""

    step: int
    interrupted: bool  # whether a signal ended the run, after a save
    scores: Mapping[str, float]  # scores of the last evaluation
    path: epath.Path  # run directory

    @property
    def history(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: ``[{"kind": "train", "step": 100, "loss": 2.3, …}, …]``.

        A resumed run has the lines of all its processes.
        """
        return read_metrics(self.path) if (self.path / METRICS).exists() else []


def train(spec: TrainSpec, *, console: Console) -> Outcome:
    """Trains to the end; resumes from the run's last checkpoint if there is one.

    Raises:
        RunStopped: a step was bad, and the settings require a stop. The step is dumped.
        UserError: the checkpoint belongs to other data, another model or another seed.
    """
    watch = Stopwatch(spec.run_dir, started=spec.started)
    step = spec.first_step
    abstract = abstract_state(step.model, step.optimizer, spec.mesh, ema=step.ema is not None)
    with watch.on("restore"), doing("making or restoring the state"):
        rollbacks = RollbackLog(spec.run_dir)
        say = narrator_of(console).say
        state, progress = restore_or_initialise(spec, abstract, rollbacks, say=say, warn=warn_aloud)
    if progress.position is not None:
        check_start(spec, progress)
    if jax.process_index() == 0:
        spec.write_config(spec.run_dir)
    tracker = StepTracker(progress, phases=spec.phases, intervals=spec.intervals)
    first, last = progress.step, tracker.last_step
    output = open_output(spec, watch, console, progress=progress, last=last)
    try:
        runner = StepRunner(spec, tracker, output, rollbacks)
        evaluations = Evaluations(spec, tracker, output)
        hooks: list[Hook] = [
            functools.partial(check_replicas, spec),
            evaluations,
            functools.partial(stop_early, spec, tracker, output),
            functools.partial(save, spec, tracker, output),
        ]
        if first:
            output.display.say(f"resuming at step {first} of {last}")
        with (
            jax.set_mesh(spec.mesh),
            jax.transfer_guard_device_to_host("disallow"),
            STOP.listening(),
            watch.on("train"),
            runner.watchdog,
            runner.profile,
        ):
            STOP.saved(first, spec.checkpoints.wait)
            if spec.milestones is not None:
                runner.compile_ahead(spec.phases[tracker.progress.phase], state)
            output.milestones.started()
            interrupted = evaluations.make_up(state)
            for line in verdicts(spec, tracker):
                output.display.say(line, style="" if tracker.ended_early else "bold yellow")
            for phase in () if interrupted else tracker.remaining_phases():
                state, interrupted = _run_phase(spec, phase, state, runner, hooks)
                if interrupted:
                    break
        with watch.on("save"), doing("saving the last checkpoint"):
            spec.checkpoints.wait()
        if not interrupted:
            output.milestones.ended(tracker.progress.step, target_reached=tracker.target_reached)
        if tracker.progress.step > first:
            output.tell_time(step=tracker.progress.step, finished=not interrupted)
    finally:
        output.close()
    return Outcome(tracker.progress.step, interrupted, evaluations.scores, spec.run_dir)


def _run_phase(
    spec: TrainSpec, phase: Phase, state: TrainState, runner: StepRunner, hooks: Sequence[Hook]
) -> tuple[TrainState, bool]:
    """Runs the remaining steps of a phase.

    Returns the state, and whether a signal interrupted the phase.
    """
    while True:
        try:
            return _run_steps(spec, phase, state, runner, hooks)
        except RollbackDue as due:
            state = runner.roll_back(due.bad, due.state)
        except Exception as error:
            memory, full = runner.programs(phase).memory, out_of_memory(error)
            if full is not None and memory is not None:
                raise full.followed_by(f" {memory.describe()}") from error
            raise


def _run_steps(
    spec: TrainSpec, phase: Phase, state: TrainState, runner: StepRunner, hooks: Sequence[Hook]
) -> tuple[TrainState, bool]:
    """Like `_run_phase`, but raises RollbackDue if a bad step requires a rollback."""
    tracker, output = runner.tracker, runner.output
    reports = PhaseReports(phase, phase.step.task, tracker, output)
    step_fn = runner.programs(phase)
    first = tracker.first_batch()
    ahead = range(tracker.progress.step, tracker.last_step)
    output.milestones.training(tracker.progress.step, until=tracker.next_evaluation)
    with phase.loader.batches(first_step=first, run=ahead) as rows:
        shares = process_share(spec.mesh).count
        batches = prefetch_to_device(rows, spec.mesh, shares=shares, watch=output.watch)
        running: RunningStep | None = None
        for step, batch in enumerate(batches, start=tracker.progress.step + 1):
            # Dispatch step N; while the devices compute it, read the metrics of step N−1.
            previous = running
            state, running = runner.dispatch(step_fn, step, state, batch)
            if previous is not None:
                state, applied = runner.finish(previous, state, reports)
                if not applied:  # step N−1 was bad and froze the state, so step N had no effect
                    state, running = runner.dispatch(step_fn, step, state, batch)
            due = tracker.due_after_next(stop_requested=STOP.due())
            if not due.anything:
                continue

            state, _ = runner.finish(running, state, reports)
            running = None
            pause = Pause(step, phase, state, due, interrupted=due.stop)
            for hook in hooks:
                hook(pause)
            if due.end_phase or pause.ends_run:
                reports.ended()
                return state, pause.interrupted and not pause.ended_early
            if due.evaluate:
                output.milestones.training(step, until=tracker.next_evaluation)
            reports.restart()
    return state, False
