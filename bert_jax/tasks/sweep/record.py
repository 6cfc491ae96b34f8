"""The record of a sweep: `sweep.json`, `sweep.csv`, and the table on the screen."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax
import pyarrow as pa
from etils import epath
from rich.console import Console
from rich.table import Table

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_whole
from bert_jax.files.read import read_json_object
from bert_jax.files.seal import refuse_changed, sealed
from bert_jax.runs.resume_check import refuse_other_settings
from bert_jax.tasks.sweep.grid import RunResult, Spread, SweepPoint, best_of, cells_of
from bert_jax.tasks.training.evaluation import write_csv
from bert_jax.tasks.training.setup import FREE
from bert_jax.train.progress_display import format_scores

SWEEP: Final = "sweep.json"
TABLE: Final = "sweep.csv"


class SweepRecord:
    """The finished runs of a sweep; written after each, so that none is run twice."""

    def __init__(
        self,
        root: epath.Path,
        *,
        settings: Mapping[str, Any],
        metric: str,
        check_lock: Callable[[], None],
    ) -> None:
        """Reads the record, if there is one; `settings` decide the sweep's numbers, nested.

        `check_lock` raises RunStopped when another process has taken the directory. Raises
        UserError: it holds a sweep of other settings, or a run that is no sweep; a result was
        changed.
        """
        self._root, self._settings, self._metric = root, dict(settings), metric
        self._check_lock = check_lock
        self.done = False  # whether the best run has been written
        self.results: dict[SweepPoint, RunResult] = {}  # finished runs, in their order
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
                raise UserError(f"{path}: no whole record of a sweep ({error!r})") from None
            refuse_other_settings(root, held=held, asked=self._settings, free=FREE, what="sweep")
        elif (root / "config.yaml").exists():
            raise UserError(f"run_dir: {root} holds a single run; allowed: a new run_dir")

    @property
    def best(self) -> RunResult | None:
        """The run with the largest score; None if none has a score."""
        return best_of(self.results.values())

    def write(self) -> None:
        """Writes `sweep.json`, and `sweep.csv` once it is `done`; each process must call it.

        Raises RunStopped: another process has taken the directory, and nothing is written.
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
        """Shows a line for each learning rate and number of epochs, and the best run."""
        if jax.process_index() == 0:
            console.print(_table([*self.results.values()], self._metric))
            if self.best is not None:
                name, scores = self.best.point.name, format_scores(self.best.scores)
                say(console, f"best run: {name}, {scores}, step {self.best.step}")


def say(console: Console, line: str) -> None:
    """Prints a line as it is; of several processes the first does."""
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
