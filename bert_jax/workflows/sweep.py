"""Runs a sweep: many fine-tuning runs as one job (`--seeds N` or `finetune.sweep`).

A sweep's directory is also the run directory of its best run, so that other verbs accept it::

    <run_dir>/config.yaml, checkpoints/, evaluation.json, …   the best run
    <run_dir>/sweep.json, sweep.csv                           the results of all runs
    <run_dir>/runs/seed1-lr5e-05-epochs3/                     the directory of one run

The runs train one after another. Each run saves checkpoints and handles signals, so a stopped sweep
resumes in the middle of a run. All runs share one predictor and the compiled train steps.
"""

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax
import pyarrow as pa
from etils import epath
from rich.console import Console
from rich.table import Table

from bert_jax.errors import Diverged, RunStopped, UserError
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object
from bert_jax.files.seal import refuse_changed, sealed
from bert_jax.runs.lock import hold_run
from bert_jax.runs.open_checkpoints import load_params, write_checkpoints
from bert_jax.runs.run_directory import claim_run, open_run
from bert_jax.runs.setting_changes import refuse_other_settings
from bert_jax.tasks.predictor import Predictor
from bert_jax.tasks.section import FinetuneSettings
from bert_jax.tasks.sweep_grid import (
    RunResult,
    Spread,
    SweepPoint,
    SweepSection,
    best_of,
    cells_of,
    check_seeds,
    points_of,
)
from bert_jax.train.agree_with_first_process import from_first_process
from bert_jax.train.checkpoint_manifest import SelectionScore
from bert_jax.train.loop import Outcome
from bert_jax.train.metrics_writer import copy_metrics
from bert_jax.train.progress_display import format_scores
from bert_jax.workflows.finetuning import FinishedRun, run_finetuning
from bert_jax.workflows.finetuning_scores import conclude, write_csv
from bert_jax.workflows.finetuning_setup import FREE, TrainingSetup, claim, prepare, show_data

SWEEP: Final = "sweep.json"
TABLE: Final = "sweep.csv"
RUNS: Final = "runs"


class SweepRecord:
    """The finished runs of a sweep. Saved after each run, so that a resumed sweep skips them."""

    def __init__(
        self,
        root: epath.Path,
        *,
        settings: Mapping[str, Any],
        metric: str,
        check_lock: Callable[[], None],
    ) -> None:
        """Reads the record if `root` has one.

        `settings` are those that determine the results. `check_lock` raises RunStopped if another
        process has taken `root`. Raises UserError if `root` has a single run or a sweep with other
        settings, or if a stored result was edited.
        """
        self._root, self._settings, self._metric = root, dict(settings), metric
        self._check_lock = check_lock
        self.done = False  # whether the best run was copied to `root`
        self.results: dict[SweepPoint, RunResult] = {}  # in order of completion
        path = root / SWEEP
        if path.exists():
            found = read_json_object(path)
            try:
                held, self.done = found["settings"], found["done"]
                for row in found["runs"]:
                    refuse_changed(row, where=f"{path}: run {row.get('name')}")
                    result = RunResult.from_json(row)
                    self.results[result.point] = result
            except (KeyError, TypeError, AttributeError) as error:
                raise UserError(
                    "sweep.record", f"damaged, or not the record of a sweep ({error!r})", place=path
                ) from None
            refuse_other_settings(root, held=held, asked=self._settings, free=FREE, what="sweep")
        elif (root / "config.yaml").exists():
            raise UserError(
                "sweep.single_run", f"{root} is a single run. Use another.", place="run_dir"
            )

    @property
    def best(self) -> RunResult | None:
        """The run with the largest score, or None if no run has a score."""
        return best_of(self.results.values())

    def write(self) -> None:
        """Writes `sweep.json`, and `sweep.csv` if the sweep is `done`. All processes must call it.

        If another process has taken `root`, raises RunStopped and writes nothing.
        """
        self._check_lock()
        if jax.process_index() != 0:
            return
        rows = [result.to_json() for result in self.results.values()]
        if self.done:
            columns = {key: [row[key] for row in rows] for key in rows[0] if key != "scores"}
            columns["degenerate"] = [reason or "" for reason in columns["degenerate"]]
            write_csv(self._root / TABLE, pa.table(columns))
        content = {
            "settings": self._settings,
            "metric": self._metric,
            "done": self.done,
            "best": self.best and self.best.point.name,
            "runs": list(map(sealed, rows)),
            "cells": [cell.to_json() for cell in cells_of(self.results.values())],
        }
        write_whole(self._root / SWEEP, json.dumps(content, indent=2))

    def show(self, console: Console) -> None:
        """Prints a table of scores by learning rate and epochs, and the best run."""
        if jax.process_index() == 0:
            console.print(_table([*self.results.values()], self._metric))
            if self.best is not None:
                name, scores = self.best.point.name, format_scores(self.best.scores)
                say(console, f"best run: {name}, {scores}, step {self.best.step}")


def say(console: Console, line: str) -> None:
    """Prints a line, without markup, on the first process."""
    if jax.process_index() == 0:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _table(results: Sequence[RunResult], metric: str) -> Table:
    cells, best = cells_of(results), best_of(results)
    failed = any(cell.degenerate for cell in cells)
    table = Table(title=f"{metric} on dev, {len(results)} runs")
    names = ["learning rate", "epochs", "runs", "mean ± deviation", "min", "max", "best seed"]
    for name in [*names, *(["degenerate", "mean without"] if failed else [])]:
        table.add_column(name, justify="right")
    for cell in cells:
        is_best = best is not None and best.point[1:] == (cell.learning_rate, cell.epochs)
        row = [
            f"{cell.learning_rate:g}",
            str(cell.epochs),
            str(cell.runs),
            _spread(metric, cell.every),
            _figure(metric, cell.least),
            _figure(metric, cell.most) + (" *" if is_best else ""),
            "–" if cell.best_seed is None else str(cell.best_seed),
        ]
        if failed:
            row += [str(cell.degenerate), _spread(metric, cell.sound)]
        table.add_row(*row, style="bold" if is_best else None)
    return table


def _spread(metric: str, spread: Spread) -> str:
    if spread.deviation is None:
        return _figure(metric, spread.mean)
    return f"{_figure(metric, spread.mean)} ± {_figure(metric, spread.deviation)}"


def _figure(metric: str, value: float | None) -> str:
    return "–" if value is None else format_scores({metric: value}).rpartition(" ")[2]


def plan(
    settings: FinetuneSettings, *, seeds: int | None
) -> tuple[FinetuneSettings, list[SweepPoint]]:
    """Sets `finetune.sweep.seeds` to `seeds`. Returns the settings and the runs of the sweep.

    If there is only one run, returns its settings. Raises UserError like `check_seeds`.
    """
    check_seeds(settings.finetune.sweep, seeds)
    if seeds is not None:
        held = settings.finetune.sweep or SweepSection()
        settings = settings.with_finetune(sweep=held.model_copy(update={"seeds": seeds}))
    section = settings.finetune
    points = points_of(
        section.sweep or SweepSection(),
        seed=settings.seed,
        learning_rate=section.optimizer.learning_rate,
        epochs=section.epochs,
    )
    if len(points) == 1:
        return point_settings(settings, points[0], run_dir=settings.run_dir), points
    return settings, points


def sweep(settings: FinetuneSettings, points: Sequence[SweepPoint], *, console: Console) -> Outcome:
    """Trains all unfinished points, prints the table, and copies the best run to the run directory.

    `settings` and `points` come from `plan`. Returns the step and the scores of the best run, or
    `interrupted` after a signal. Raises UserError if the configuration does not fit the data, the
    origin or the run directory. Raises RunStopped if no run has a score, or if a run stops for a
    reason other than bad steps. The same command resumes the sweep.
    """
    prepared = prepare(settings)
    root = claim_run(
        settings.run_dir,
        verb="finetune",
        architecture=prepared.architecture,
        tokenizer=prepared.origin.tokenizer,
    )
    with hold_run(root) as check_lock:
        return _sweep(prepared, root, points, check_lock=check_lock, console=console)


def _sweep(
    prepared: TrainingSetup,
    root: epath.Path,
    points: Sequence[SweepPoint],
    *,
    check_lock: Callable[[], None],
    console: Console,
) -> Outcome:
    record = SweepRecord(
        root,
        settings=prepared.decisive(),
        metric=prepared.family.best_metric,
        check_lock=check_lock,
    )
    if not record.done:
        show_data(prepared, console)
        record.write()
        done = f", {len(record.results)} of them done" if record.results else ""
        say(console, f"{len(points)} runs{done}")
        predictor = prepared.predictor()
        run = functools.partial(
            run_finetuning, predictor=predictor, check_lock=check_lock, console=console
        )
        for point in points:
            if point in record.results:
                continue
            say(console, point.name)
            run_dir = str(root / RUNS / point.name)
            asked = point_settings(prepared.settings, point, run_dir=run_dir)
            own = prepared._replace(settings=dataclasses.replace(asked, started=time.time()))
            result = _run_point(own, point, run, console)
            if result is None:
                return Outcome(0, True, {}, root)
            record.results[point] = result
            record.write()
        _promote(prepared, root, record, predictor, check_lock=check_lock, console=console)
    record.show(console)
    assert record.best is not None  # `_promote` raises RunStopped without a best run
    return Outcome(record.best.step, False, record.best.scores, root)


def point_settings(
    settings: FinetuneSettings, point: SweepPoint, *, run_dir: str
) -> FinetuneSettings:
    """Returns the settings of a point's run."""
    optimizer = settings.finetune.optimizer.model_copy(
        update={"learning_rate": point.learning_rate}
    )
    own = settings.with_finetune(optimizer=optimizer, epochs=point.epochs, sweep=None)
    return dataclasses.replace(own, seed=point.seed, run_dir=run_dir)


def _run_point(
    prepared: TrainingSetup, point: SweepPoint, run: Callable[..., FinishedRun], console: Console
) -> RunResult | None:
    """Trains or resumes one point. Returns None after a signal.

    A diverged run has a result too. It is not repeated, because it would diverge again.
    """
    started = time.monotonic()
    root = claim(prepared)
    try:
        best = run(prepared, root).best
    except Diverged as error:
        say(console, f"{point.name}: {error}")
        found = None, 0, {}, f"stopped: {error}"
    else:
        if best is None:
            return None
        score = best.scores[prepared.family.best_metric]
        found = score, best.step, best.scores, best.failure
    return RunResult(point, *found, time.monotonic() - started)


def _promote(
    prepared: TrainingSetup,
    root: epath.Path,
    record: SweepRecord,
    predictor: Predictor,
    *,
    check_lock: Callable[[], None],
    console: Console,
) -> None:
    """Copies the best run to the sweep's directory, and evaluates it."""
    best = record.best
    if best is None:
        raise RunStopped(
            "sweep.no_score", f"none of {len(record.results)} runs has a score. See {root / SWEEP}."
        )
    run = open_run(root / RUNS / best.point.name)
    loaded = load_params(run, checkpoint="auto", mesh=prepared.mesh)
    check_lock()
    with write_checkpoints(root) as checkpoints:
        # An earlier process may have saved the checkpoint before it was killed.
        if checkpoints.on_disk.newest() is None:
            score = SelectionScore(0.0, "best run of a sweep")
            checkpoints.save_params(loaded.params, step=loaded.step, selection_score=score)
    of_best = point_settings(prepared.settings, best.point, run_dir=str(root))
    own = prepared._replace(settings=of_best.with_finetune(sweep=prepared.section.sweep))

    def write() -> None:
        copy_metrics(run.directory, root)
        origin = {**prepared.origin_record(root), "best_of": SWEEP}
        own.write_run(root, root=root, origin=origin)

    from_first_process(write)  # before any process opens the run
    conclude(
        open_run(root),
        prepared.family,
        predictor,
        check_lock=check_lock,
        console=console,
        seeds=[each.to_json() for each in record.results.values() if each.score is not None],
    )
    record.done = True
    record.write()
