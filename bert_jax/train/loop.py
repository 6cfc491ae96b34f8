"""The one train loop.

Read `train` from top to bottom: set up, abstract state, restore or initialise, then for each
phase and step: take the next batch (already on the devices), dispatch step N, and only then read
the metrics of step N−1, so that the devices never wait for the host.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from bert_jax.errors import UserError
from bert_jax.task import StepBatch, Task
from bert_jax.train import metrics as sums_of
from bert_jax.train.compiled import StepPrograms, compile_evaluation, lower_train_step
from bert_jax.train.dump import StopSignal, dump_non_finite
from bert_jax.train.prefetch import Fed, feed
from bert_jax.train.progress import IMPORTED, Cursor
from bert_jax.train.progress_display import Progress
from bert_jax.train.spec import HostBatches, Job, Phase
from bert_jax.train.state import (
    ModelDefinition,
    TrainState,
    abstract_state,
    initialise,
)
from bert_jax.train.throughput import Meter
from bert_jax.train.writer import Writer


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    step: int
    interrupted: bool  # by a signal, and saved
    scores: Mapping[str, float]  # of the last evaluation


def train(
    job: Job,
    *,
    make_writer: Callable[[int], Writer],
    make_progress: Callable[[int, int], Progress],
) -> Outcome:
    """Runs a job to its end, from its last checkpoint where there is one.

    Args:
        job: everything that decides the numbers.
        make_writer: from the step resumed at.
        make_progress: from the step resumed at and the step the run ends at.

    Raises:
        RunStopped: the loss or a gradient was not finite; what led there has been written out.
        UserError: the checkpoint belongs to other data, another model or another seed.
    """
    abstract = abstract_state(job.model, job.optimizer, job.mesh)
    state, cursor = _restore_or_initialise(job, abstract)
    _check_cursor(job, cursor)
    job.write_config()
    writer = make_writer(cursor.step)
    progress = make_progress(cursor.step, _last_step(job, cursor))
    run = _Run(job, writer, progress, state, cursor)
    if cursor.step:
        progress.say(f"resuming at step {cursor.step} of {_last_step(job, cursor)}")
    try:
        with (
            jax.set_mesh(job.mesh),
            jax.transfer_guard_device_to_host("disallow"),
            StopSignal() as stop,
        ):
            for index, phase in enumerate(job.phases):
                if index < cursor.phase or run.interrupted or run.ended:
                    continue
                if index > cursor.phase:
                    cursor.phase, cursor.phase_step, cursor.position = index, 0, None
                run.phase(phase, stop)
        job.checkpointer.wait()
    finally:
        progress.close()
        writer.close()
    return Outcome(cursor.step, run.interrupted, run.scores)


class _Run:
    """A run in motion: the state, where it stands, and who is told."""

    def __init__(
        self,
        job: Job,
        writer: Writer,
        progress: Progress,
        state: TrainState,
        cursor: Cursor,
    ) -> None:
        self.job, self.writer, self.progress = job, writer, progress
        self.state, self.cursor = state, cursor
        self.interrupted = False
        self.ended = self.out_of_patience  # before its last step
        self.scores: Mapping[str, float] = {}

    @property
    def out_of_patience(self) -> bool:
        """Whether so many evaluations in a row were no better that the run should end."""
        patience = self.job.pace.patience
        return patience is not None and self.cursor.without_better >= patience

    def phase(self, phase: Phase, stop: StopSignal) -> None:
        """Runs one phase from where the cursor stands to its end."""
        job, cursor, steps = self.job, self.cursor, phase.steps
        if cursor.phase_step >= steps:
            return
        # Batches are counted in rows: after a change of batch size the two counts differ.
        first_batch = phase.loader.check(cursor.position) if cursor.position else 0
        offset = first_batch - cursor.phase_step
        meter = Meter(flops_per_row=phase.flops_per_row)
        if phase.plateau:
            self.progress.say(phase.plateau.expectation(), style="dim")
        step_fn = phase.step or StepPrograms(
            functools.partial(self._lower, phase), shapes=phase.shapes
        )
        running: tuple[Fed, Any] | None = None
        with phase.loader.batches(first_step=first_batch) as rows:
            for fed in feed(rows, job.mesh, shares=job.share.count):
                previous, (self.state, metrics) = running, step_fn(self.state, fed.batch)
                running = (fed, metrics)
                if previous is not None:
                    self._finish_step(phase, previous, meter, offset)
                due = cursor.phase_step + 1
                stopping = self._must_stop(stop)
                if self._wants_pause(due, cursor.step + 1, steps) or stopping:
                    self._finish_step(phase, running, meter, offset)
                    running = None
                    self._pause(phase, last=due >= steps, stopping=stopping)
                    meter.restart()
                    if self.interrupted or self.ended or cursor.phase_step >= steps:
                        return

    def _lower(self, phase: Phase, state: TrainState, batch: StepBatch) -> jax.stages.Lowered:
        job = self.job
        return lower_train_step(
            job.task,
            job.model,
            job.optimizer,
            job.schedule,
            state,
            batch,
            accumulation=phase.accumulation,
            rng=job.rng,
        )

    def _must_stop(self, stop: StopSignal) -> bool:
        """Says whether to save and stop. Processes must agree, so several ask their coordinator."""
        if jax.process_count() == 1:
            return stop.requested
        return self.job.checkpointer.reached_preemption(self.cursor.step)

    def _wants_pause(self, phase_step: int, step: int, steps: int) -> bool:
        return (
            phase_step >= steps
            or step % self.job.pace.checkpoint_every == 0
            or self._evaluation_due(step)
        )

    def _evaluation_due(self, step: int) -> bool:
        every = self.job.pace.evaluate_every
        return every is not None and step % every == 0

    def _finish_step(
        self, phase: Phase, running: tuple[Fed, Any], meter: Meter, offset: int
    ) -> None:
        """Reads a step's metrics, moves the cursor past it and reports when it is time."""
        job, cursor = self.job, self.cursor
        fed, on_device = running
        metrics = sums_of.to_host(on_device)
        if not metrics.pop("healthy")[0]:
            dump_non_finite(job.run_dir, cursor.step + 1, self.state, fed.batch, metrics)
        cursor.step += 1
        cursor.phase_step += 1
        cursor.position = phase.loader.position(cursor.phase_step + offset)
        cursor.window = sums_of.add(cursor.window, metrics)
        meter.add(tokens=fed.tokens, rows=phase.batch_size, waited=fed.waited)
        if cursor.step % job.pace.log_every == 0:
            self._report(phase, meter)

    def _report(self, phase: Phase, meter: Meter) -> None:
        cursor, window = self.cursor, self.cursor.window
        extra = sums_of.select(window, "learning_rate", "gradient_norm")
        scores = self.job.task.score(window) | extra
        throughput = meter.read()
        self.writer.write("train", cursor.step, scores)
        speed = {name: value for name, value in throughput._asdict().items() if value is not None}
        self.writer.write("speed", cursor.step, speed)
        self.progress.report(cursor.step, scores, throughput)
        if phase.plateau and (
            warning := phase.plateau.warn(step=cursor.step, mlm_loss=scores["mlm_loss"])
        ):
            self.progress.say(warning, style="yellow")
        cursor.window = {}

    def _pause(self, phase: Phase, *, last: bool, stopping: bool) -> None:
        """Evaluates and saves, each when it is due; both at the end of a phase."""
        step = self.cursor.step
        rank = None
        if phase.evaluate is not None and (last or self._evaluation_due(step)):
            rank = self._evaluate(phase, phase.evaluate)
        self.ended = not last and self.out_of_patience
        if last or stopping or self.ended or step % self.job.pace.checkpoint_every == 0:
            self.job.checkpointer.save(
                self.state, step=step, progress=self.cursor.to_json(), rank=rank
            )
        if self.ended:
            self.progress.say(
                f"ended at step {step}: {self.cursor.without_better} evaluations without a better "
                f"{self.job.ranking.metric}"
            )
        elif stopping and not last:
            self.interrupted = True
            self.progress.say(f"stopped at step {step}, saved; the same command goes on from here")

    def _evaluate(
        self, phase: Phase, evaluate_params: Callable[[Any], Mapping[str, float]]
    ) -> float:
        """Evaluates, reports, and returns the rank."""
        self.scores = scores = evaluate_params(self.state.params)
        self.writer.write("validation", self.cursor.step, scores)
        place = phase.plateau.place(scores["mlm_loss"]) if phase.plateau else None
        self.progress.evaluated(self.cursor.step, scores, place)
        rank = self.job.ranking.rank(scores)
        self.cursor.evaluated(rank)
        return rank


def make_evaluation(
    task: Task,
    model: ModelDefinition,
    open_batches: Callable[[], HostBatches],
    mesh: Mesh,
    *,
    shares: int,
) -> Callable[[Any], dict[str, float]]:
    """Returns what evaluates parameters on a split; it compiles at the first call.

    Args:
        task: gives the metrics.
        model: structure of the task's model.
        open_batches: opens one pass over the split.
        mesh: of all processes.
        shares: number of different shares of a batch that processes hold.
    """
    evaluation = compile_evaluation(task, model, mesh)

    def scores(params: Any) -> dict[str, float]:
        return task.score(evaluate(evaluation, params, open_batches, mesh, shares=shares))

    return scores


def evaluate(
    evaluation: Callable[[Any, Any], Any],
    params: Any,
    open_batches: Callable[[], HostBatches],
    mesh: Mesh,
    *,
    shares: int,
) -> dict[str, tuple[float, float]]:
    """Returns the summed metrics of one pass over an evaluation split, every example once.

    Args:
        evaluation: from `compile_evaluation`.
        params: on the mesh.
        open_batches: opens the pass.
        mesh: of all processes.
        shares: number of different shares of a batch that processes hold.
    """
    totals: dict[str, tuple[float, float]] = {}
    with open_batches() as rows:
        for fed in feed(rows, mesh, shares=shares):
            totals = sums_of.add(totals, sums_of.to_host(evaluation(params, fed.batch)))
    return totals


def _restore_or_initialise(job: Job, abstract: TrainState) -> tuple[TrainState, Cursor]:
    step = job.checkpointer.latest_step()
    if step is not None:
        restored = job.checkpointer.restore(abstract, step=step)
        if IMPORTED in restored.progress:
            return restored.state, _after_import(job, step)
        return restored.state, Cursor.from_json(restored.progress)
    with jax.set_mesh(job.mesh):
        state = initialise(job.task, job.optimizer, abstract, seed=job.seed)
    if job.initial_params is not None:
        state = state._replace(params=job.initial_params(state.params))
    return state, Cursor()


def _after_import(job: Job, step: int) -> Cursor:
    steps = [phase.steps for phase in job.phases]
    if step >= sum(steps):
        raise UserError(
            f"train.phases: found {sum(steps)} steps in all, but the imported checkpoint stands at "
            f"step {step}; allowed: more, or a new run_dir with --init-from"
        )
    return Cursor.at(step, steps)


def _check_cursor(job: Job, cursor: Cursor) -> None:
    """Refuses a checkpoint of other phases or other data, before anything is written."""
    if cursor.phase >= len(job.phases):
        raise UserError(
            f"train.phases: found {len(job.phases)}, but the checkpoint stands in phase "
            f"{cursor.phase} (counted from 0); allowed: the phases it was made with, or more"
        )
    phase = job.phases[cursor.phase]
    if cursor.position and cursor.phase_step < phase.steps:
        phase.loader.check(cursor.position)


def _last_step(job: Job, cursor: Cursor) -> int:
    ahead = job.phases[cursor.phase :]
    return cursor.step - cursor.phase_step + sum(phase.steps for phase in ahead)
