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
    """The runs of a sweep that are done; written after each, so that none is run twice."""

    def __init__(
        self,
        root: epath.Path,
        *,
        settings: Mapping[str, Any],
        metric: str,
        check_lock: Callable[[], None],
    ) -> None:
        """Reads what there is; `settings` are all that decides the sweep's numbers, nested.

        `check_lock` raises RunStopped when another process has taken the directory. Raises
        UserError: it holds a sweep of other settings, or a run that is no sweep; a result is not
        what was written.
        """
        self._root, self._settings, self._metric = root, dict(settings), metric
        self._check_lock = check_lock
        self.done = False  # whether the best run has been written
        self._results: dict[SweepPoint, RunResult] = {}
        if (root / SWEEP).exists():
            found = read_json_object(root / SWEEP)
            try:
                held, self.done = found["settings"], found["done"]
                results = [self._result(row) for row in found["runs"]]
            except (KeyError, TypeError, AttributeError) as error:
                raise UserError(f"{root / SWEEP}: no whole record of a sweep ({error!r})") from None
            refuse_other_settings(root, held=held, asked=self._settings, free=FREE, what="sweep")
            self._results = {result.point: result for result in results}
        elif (root / "config.yaml").exists():
            raise UserError(f"run_dir: {root} holds a single run; allowed: a new run_dir")

    @property
    def results(self) -> list[RunResult]:
        """Those done, in the order in which they were."""
        return list(self._results.values())

    def __contains__(self, point: SweepPoint) -> bool:
        return point in self._results

    def add(self, result: RunResult) -> None:
        """Adds a result and writes all, as `write` does."""
        self._results[result.point] = result
        self.write()

    def finish(self) -> None:
        """Says that the best run is in the sweep's directory, and writes `sweep.csv` too."""
        self.done = True
        self.write()

    def write(self) -> None:
        """Writes `sweep.json`; each process must call it.

        Raises RunStopped: another process has taken the directory, and nothing is written.
        """
        self._check_lock()
        if jax.process_index() != 0:
            return
        if self.done:
            rows = [_flat(result) for result in self.results]
            write_csv(self._root / TABLE, pa.Table.from_pylist(rows))
        best = best_of(self.results)
        content = {
            "settings": self._settings,
            "metric": self._metric,
            "done": self.done,
            "best": None if best is None else best.point.name,
            "runs": [sealed(result.to_json()) for result in self.results],
            "cells": [_plain(cell) for cell in cells_of(self.results)],
        }
        write_whole(self._root / SWEEP, json.dumps(content, indent=2).encode())

    def _result(self, row: Mapping[str, Any]) -> RunResult:
        refuse_changed(row, where=f"{self._root / SWEEP}: run {row.get('name')}")
        return RunResult.from_json(row)

    def show(self, console: Console) -> None:
        """Shows a line for each learning rate and number of epochs, and the best run."""
        if jax.process_index() == 0:
            console.print(_table(self.results, self._metric))
            best = best_of(self.results)
            if best is not None:
                console.print(
                    f"best run: {best.point.name}, {format_scores(best.scores)}, step {best.step}",
                    markup=False,
                    highlight=False,
                    soft_wrap=True,
                )


def _flat(result: RunResult) -> dict[str, Any]:
    row = result.to_json()
    row["degenerate"] = row["degenerate"] or ""
    return {name: value for name, value in row.items() if name != "scores"}


def _plain(cell: Any) -> dict[str, Any]:
    parts = cell._asdict()
    return {name: v._asdict() if isinstance(v, Spread) else v for name, v in parts.items()}


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
