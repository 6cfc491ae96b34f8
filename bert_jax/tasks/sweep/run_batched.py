"""The runs of a sweep with one number of epochs, trained side by side."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from etils import epath
from rich.console import Console

from bert_jax.errors import RunStopped
from bert_jax.runs.checkpoints import write_checkpoints
from bert_jax.runs.directory import CHECKPOINTS, write_run
from bert_jax.runs.parameters import load_params
from bert_jax.tasks.degenerate import degenerate
from bert_jax.tasks.parameter_transfer import graft
from bert_jax.tasks.predictor import Predictor, predict_splits, score_splits
from bert_jax.tasks.sweep.batched import SideBySide, keep_better
from bert_jax.tasks.sweep.grid import Point, Result, best_of
from bert_jax.tasks.training.settings import FinetuneSettings
from bert_jax.tasks.training.setup import Prepared
from bert_jax.train import metrics as sums_of
from bert_jax.train.progress_display import ProgressDisplay, make_display
from bert_jax.train.spec import Selection
from bert_jax.train.state import TrainState
from bert_jax.train.step import choose_rng
from bert_jax.train.stop_signal import StopSignal
from bert_jax.train.throughput import Meter
from bert_jax.train.writer import RunWriter


def run_together(
    prepared: Prepared,
    points: Sequence[Point],
    *,
    root: epath.Path,
    predictor: Predictor,
    console: Console,
) -> list[Result] | None:
    """Trains points of one number of epochs as one program.

    Every run's curves are written to its directory under `root`, and the best run's best
    parameters and configuration besides. A run whose loss or gradient is not finite is left where
    it stands, and the others go on. Nothing is saved before the end: a group that was stopped
    starts again.

    Args:
        prepared: a run of these epochs; its seed and learning rate do not count.
        points: the runs.
        root: where their directories are.
        predictor: of the model.
        console: where progress is shown.

    Returns:
        The result of each point; None if a signal stopped them.
    """
    started = time.monotonic()
    runs = side_by_side(prepared, points)
    steps = next(iter(runs.batches.values())).plan.steps
    progress = make_display(console, first_step=0, total_steps=steps * prepared.section.epochs)
    with contextlib.ExitStack() as stack:
        stack.callback(progress.close)
        writers = [RunWriter(root / point.name, resume_step=0) for point in points]
        for writer in writers:
            stack.callback(writer.close)
        stop = stack.enter_context(StopSignal())
        group = _Group(prepared, runs, points, predictor, progress, writers)
        if not group.train(steps_per_epoch=steps, stop=stop):
            return None
    seconds = (time.monotonic() - started) / len(points)
    results = [each._replace(seconds=seconds) for each in group.results]
    if best := best_of(results):
        params = runs.params_of(group.best, list(points).index(best.point))
        _write_best(prepared, best, params, root / best.point.name)
    return results


def side_by_side(prepared: Prepared, points: Sequence[Point]) -> SideBySide:
    """Returns points of one number of epochs as one program, nothing of it begun."""
    section = prepared.section
    seeds = dict.fromkeys(point.seed for point in points)
    batches = {seed: prepared.batches(seed=seed) for seed in seeds}
    steps = batches[points[0].seed].plan.steps
    return SideBySide(
        task=prepared.task,
        make_optimizer=lambda peak: prepared.optimizer(steps_per_epoch=steps, peak=peak),
        seeds=[point.seed for point in points],
        learning_rates=[point.learning_rate for point in points],
        batches=batches,
        accumulation=section.accumulation,
        rng=choose_rng(section.rng),
        mesh=prepared.mesh,
    )


def point_settings(settings: FinetuneSettings, point: Point, *, run_dir: str) -> FinetuneSettings:
    """Returns the settings of an ordinary run that is a sweep's point.

    Args:
        settings: of the sweep.
        point: of it.
        run_dir: where that run lies.
    """
    optimizer = settings.finetune.optimizer.model_copy(
        update={"learning_rate": point.learning_rate}
    )
    own = settings.with_finetune(optimizer=optimizer, epochs=point.epochs, sweep=None)
    return dataclasses.replace(own, seed=point.seed, run_dir=run_dir)


def first_state(prepared: Prepared, runs: SideBySide) -> TrainState:
    """Returns what all runs begin with: the origin's parameters, and a fresh head by seed."""
    loaded = load_params(prepared.origin, checkpoint="auto", mesh=prepared.mesh)
    heads = {"ours": prepared.family.heads, "theirs": prepared.origin.heads}
    return runs.start(lambda fresh: graft(fresh, loaded.params, **heads))


class _Group:
    """Runs in motion."""

    def __init__(
        self,
        prepared: Prepared,
        runs: SideBySide,
        points: Sequence[Point],
        predictor: Predictor,
        progress: ProgressDisplay,
        writers: Sequence[RunWriter],
    ) -> None:
        self.prepared, self.runs, self.predictor = prepared, runs, predictor
        self.progress, self.writers = progress, writers
        self.selection = Selection(metric=prepared.family.best_metric, larger_is_better=True)
        self.ranks: list[float | None] = [None] * len(points)
        self.results = [Result(point, None, 0, {}, None, 0.0) for point in points]
        self.going = list(range(len(points)))  # the runs that are finite
        self.best: Any = None  # parameters [R, …]
        self.window: list[Any] = []  # metrics on the devices, of steps not read
        self.sums: list[dict[str, tuple[float, float]]] = [{} for _ in points]
        plan = next(iter(runs.batches.values())).plan
        self.meter = Meter(flops_per_row=prepared.flops_per_row(plan))

    def train(self, *, steps_per_epoch: int, stop: StopSignal) -> bool:
        """Runs to the end, and returns False if a signal came before it."""
        section = self.prepared.section
        last = steps_per_epoch * section.epochs
        every = section.evaluate_every(steps_per_epoch)
        state = first_state(self.prepared, self.runs)
        step_fn = self.runs.programs()
        with contextlib.closing(self.runs.feed()) as batches:
            for step, fed in zip(range(1, last + 1), batches, strict=False):
                state, metrics = step_fn(state, fed.batch)
                self.window.append(metrics)
                self.meter.add(
                    tokens=fed.tokens,
                    rows=section.batch_size * len(self.results),
                    waited=fed.waited,
                )
                due = step % every == 0 or step == last
                report = step % section.log_every == 0
                if due or report:
                    self._read(step)
                if report:
                    self._report(step)
                if due and self.going:
                    self._evaluate(step, state.params)
                    self.meter.restart()
                if stop.requested and step < last:
                    self.progress.say(
                        f"stopped at step {step}; runs side by side are saved when they are done: "
                        f"the same command starts these again"
                    )
                    return False
                if not self.going:
                    break
        return True

    def _read(self, step: int) -> None:
        """Reads the metrics of the steps since the last time, and finds runs that broke."""
        window: list[dict[str, Any]] = jax.device_get(self.window)
        self.window = []
        for number, metrics in enumerate(window, start=step - len(window) + 1):
            for run in list(self.going):
                own = {name: (float(s[run]), float(c[run])) for name, (s, c) in metrics.items()}
                self.sums[run] = sums_of.add(self.sums[run], own)
                if not metrics["healthy"][0][run]:
                    self._break_off(run, number)

    def _report(self, step: int) -> None:
        """Writes and shows what the steps since the last report came to."""
        losses = []
        for run in self.going:
            scores = self.runs.task.score(self.sums[run])
            losses.append(scores["loss"])
            more = sums_of.select(self.sums[run], "learning_rate", "gradient_norm")
            self.writers[run].write("train", step, scores | more)
            self.sums[run] = {}
        if losses:
            self.progress.report(step, {"mean loss": float(np.mean(losses))}, self.meter.read())

    def _break_off(self, run: int, step: int) -> None:
        point = self.results[run].point
        self.going.remove(run)
        self.results[run] = Result(point, None, step, {}, f"not finite at step {step}", 0.0)
        self.progress.say(f"{point.name}: not finite at step {step}: left there", style="yellow")

    def _evaluate(self, step: int, params: Any) -> None:
        """Computes the dev figures of every run, and keeps the parameters of those at their best.

        Of equal figures the later counts, as for the checkpoints of a single run.
        """
        better = np.zeros(len(self.results), np.bool_)
        for run in list(self.going):
            try:
                result = self._scored(run, step, params)
            except RunStopped:  # a logit was not finite
                self._break_off(run, step)
                continue
            self.writers[run].write("validation", step, result.scores)
            rank, before = self.selection.score(result.scores), self.ranks[run]
            if before is None or rank <= before:
                self.ranks[run], self.results[run], better[run] = rank, result, True
        if self.best is None:
            self.best = jax.tree.map(jnp.copy, params)
        else:
            self.best = keep_better(self.best, params, better)
        scores = [self.results[run].score or 0.0 for run in self.going]
        if scores:
            name = self.selection.metric
            found = {f"least {name}": min(scores), f"most {name}": max(scores)}
            self.progress.evaluated(step, found, f"{len(scores)} runs, each at its best so far")

    def _scored(self, run: int, step: int, params: Any) -> Result:
        prepared = self.prepared
        records = predict_splits(
            self.predictor, self.runs.params_of(params, run), prepared.family, prepared.dev
        )
        scores = score_splits(prepared.family, records)
        why = degenerate(prepared.family, records[prepared.dev[0]])
        return self.results[run]._replace(
            score=scores[self.selection.metric], step=step, scores=scores, degenerate=why
        )


def _write_best(prepared: Prepared, best: Result, params: Any, directory: epath.Path) -> None:
    """Writes the best run as a run directory with its best parameters."""
    if (directory / CHECKPOINTS).exists():
        (directory / CHECKPOINTS).rmtree()  # of a group that was killed before it was recorded
    write_run(
        directory,
        point_settings(prepared.settings, best.point, run_dir=str(directory)).to_config(),
        run_dir=str(directory),
        model=prepared.model_section,
        architecture=prepared.architecture,
        tokenizer=prepared.origin.tokenizer,
        origin={"init_from": str(prepared.origin.directory)},
    )
    with write_checkpoints(directory) as checkpoints:
        checkpoints.save_params(params, step=best.step, selection_score=0.0)
