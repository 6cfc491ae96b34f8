"""The report of a pretraining run, and of several runs that are compared."""

import dataclasses
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from bert_jax.errors import commas
from bert_jax.report.charts import LINES, Mark, Series, line_chart, path_chart
from bert_jax.report.rendering import (
    Cell,
    Chart,
    Part,
    Share,
    Table,
    is_share,
    number,
    percentage,
    render_page,
    score_cell,
)
from bert_jax.train.metrics_writer import GOODPUT, VALIDATION
from bert_jax.train.time_account import Goodput, goodput_of

MOST_RUNS: Final = LINES  # maximum number of runs in a comparison
_HELD_OUT: Final = "held out"  # source of the scores of a held-out set without a name
_TRAINING: Final = "training data"  # source of the scores of training rows
_AVERAGED: Final = "ema"  # prefix of the scores of averaged parameters
_PATH: Final = "Since the start at (0, 0). Down is a gain, right is forgetting."
_CURVES: Final = ("train", VALIDATION, "speed")  # kinds of lines with curves
_LOSSES: Final = ("mlm_loss", "next_token_loss")  # losses to compare, best first
_RESPONSES: Final = ("warn", "skip", "rollback", "stop")  # responses to a bad step
_SYMBOLS: Final = {"restart": "↻", "bad step": "✕"}
_EVENTS: Final = 200  # maximum number of events of a run

Points: TypeAlias = list[tuple[float, float]]
Values: TypeAlias = Mapping[str, Cell]


class FilledText(NamedTuple):
    """A held-out text with masks, and the model's answers."""

    source: str  # name of the held-out set, or ""
    text: str
    masks: Sequence[tuple[str, Sequence[tuple[str, float]]]]  # truth, and pieces with probabilities


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunRecord:
    """The facts and metrics of a run."""

    name: str
    facts: Values  # what was trained
    data: Sequence[Values]  # rows of the table of phases and datasets
    phases: Mapping[str, int]  # step before each later phase, by name
    metrics: Sequence[Mapping[str, Any]]  # lines of metrics.jsonl
    settings: Values  # by dotted key
    kept: Sequence[str] = ()  # names of the held-out sets that must not be forgotten
    filled: Sequence[FilledText] = ()

    @functools.cached_property
    def curves(self) -> dict[tuple[str, str], Points]:
        """Points (step, value) by (score, source), such as ("mlm_loss", "held out").

        The source of a held-out score is its prefix in metrics.jsonl. Omits the total loss if
        it always equals one of its terms, such as the loss of the phase's objective.
        """
        found: dict[tuple[str, str], Points] = defaultdict(list)
        for line in self.metrics:
            for key, value in line.items() if line["kind"] in _CURVES else ():
                if key not in ("kind", "step"):
                    source, _, score = key.rpartition(".")
                    source = source or (_HELD_OUT if line["kind"] == VALIDATION else _TRAINING)
                    found[score, source].append((float(line["step"]), float(value)))
        for source in {source for _, source in found}:
            names = [score for score, of in found if of == source and score.endswith("_loss")]
            terms = {point for score in names for point in found[score, source]}
            if terms.issuperset(found.get(("loss", source), ())):
                found.pop(("loss", source), None)
        return found

    @functools.cached_property
    def loss(self) -> str:
        """Name of the loss that shows gain and forgetting, even if objectives change."""
        scores = {score for score, _ in self.curves}
        return next((name for name in _LOSSES if name in scores), "loss")

    @functools.cached_property
    def goodput(self) -> Goodput | None:
        """The account of the wall time, if there is one."""
        lines = [line for line in self.metrics if line["kind"] == GOODPUT]
        return goodput_of(dict(lines[-1])) if lines else None

    @functools.cached_property
    def events(self) -> list[tuple[int, str, str]]:
        """The step, the name and details of each restart and bad step."""
        found, starts = [], 1
        for line in self.metrics:
            if line["kind"] == GOODPUT and line["starts"] > starts:
                starts = int(line["starts"])
                found.append((int(line["step"]), "restart", f"start {starts}"))
            if line["kind"] == "bad_step":
                names = [key for key in line if key.startswith(("loss", "gradient_norm"))]
                words = [key for key in _RESPONSES if key in line]
                words += [f"{key} {number(line[key])}" for key in names]
                found.append((int(line.get("at", line["step"])), "bad step", ", ".join(words)))
        return found[:_EVENTS]


def render(runs: Sequence[RunRecord], *, footer: str) -> str:
    """Returns the report of one run, or the comparison of several, as one HTML document.

    `runs` are at most `MOST_RUNS`, with different names.
    """
    first, several = runs[0], len(runs) > 1
    settings = _by_run("Configuration", runs, [run.settings for run in runs])
    if several:
        rows = [row for row in settings.rows if len(set(row[1:])) > 1]
        settings = settings._replace(title="Settings that differ", rows=rows)
    facts = _by_run("Model and run", runs, [run.facts for run in runs])
    data = _listed("Phases and their data", runs, lambda run: run.data)
    seen = () if several else dict.fromkeys(name for _, name, _ in first.events)
    symbols = ", ".join(f"{_SYMBOLS[name]} {name}" for name in seen)
    parts = [
        Part("What was trained", [facts, data]),
        Part("Curves", charts=_curve_charts(runs), note=symbols),
        Part("Scores", [_listed("Scores on held-out data", runs, _scores)]),
        Part("Gain and forgetting", charts=_path_charts(runs), is_wide=True),
        Part(
            "Filled masks",
            examples=() if several else [_example(filled) for filled in first.filled],
            note="Masked pieces of held-out texts, each with the model's most probable pieces.",
        ),
        Part("Wall time", [_by_run("Shares of the wall time", runs, list(map(_wall_time, runs)))]),
        Part("Restarts and bad steps", [_listed("In order of time", runs, _events)]),
        Part("Settings", [settings]),
    ]
    parts = [part._replace(tables=[table for table in part.tables if table.rows]) for part in parts]
    return render_page(
        "parts.html",
        title=f"{len(runs)} runs" if several else first.name,
        about=", ".join(run.name for run in runs) if several else "Pretraining",
        figures=[] if several else _figures(first),
        footer=footer,
        parts=[part for part in parts if part.tables or part.charts or part.examples],
        notes=[],
    )


def _by_run(title: str, runs: Sequence[RunRecord], values: Sequence[Values]) -> Table:
    """Returns a table with one column for the values of each run."""
    keys = dict.fromkeys(key for own in values for key in own)
    names = [run.name for run in runs] if len(runs) > 1 else ["value"]
    return Table(
        title, ["", *names], [[key, *(own.get(key, "–") for own in values)] for key in keys]
    )


def _listed(
    title: str, runs: Sequence[RunRecord], rows_of: Callable[[RunRecord], Sequence[Values]]
) -> Table:
    """Returns a table of all rows of all runs, ordered by the first cell if there are several."""
    rows = [(run.name, row) for run in runs for row in rows_of(run)]
    if len(runs) > 1:
        rows = [(name, {**dict([*row.items()][:1]), "run": name, **row}) for name, row in rows]
        rows.sort(key=lambda named: _order(next(iter(named[1].values()))))
    return Table(title, list(rows[0][1]) if rows else [], [list(row.values()) for _, row in rows])


def _order(cell: Cell) -> tuple[float, str]:
    return (cell, "") if isinstance(cell, int | float) else (0.0, str(cell))


def _figures(run: RunRecord) -> list[tuple[str, str]]:
    account, step = run.goodput, max((line["step"] for line in run.metrics), default=0)
    figures = [("step", number(step))]
    for (score, source), points in run.curves.items():
        if score == run.loss and source.partition(".")[0] not in (_TRAINING, _AVERAGED):
            figures.append((f"{score}, {source}", number(points[-1][1])))
        if score in ("tokens_per_second", "mfu"):
            text = percentage(points[-1][1]) if is_share(score) else number(points[-1][1])
            figures.append((score.replace("_", " "), text))
    return [
        *figures,
        *([("of the time in steps", f"{account.shares['train']:.1%}")] if account else []),
    ]


def _curve_charts(runs: Sequence[RunRecord]) -> list[Chart]:
    """Returns a chart for each score; of several runs, a chart for each score and source."""
    lines: dict[tuple[str, str], list[Series]] = defaultdict(list)
    for run in runs:
        for (score, source), points in run.curves.items():
            if any(math.isfinite(y) for _, y in points):
                of_runs = score if source == _TRAINING else f"{score}, {source}"
                title, name = (of_runs, run.name) if len(runs) > 1 else (score, source)
                lines[score, title].append(Series(name, points))
    events, phases = ([], {}) if len(runs) > 1 else (runs[0].events, runs[0].phases)
    marks = [Mark(step, name) for name, step in phases.items()]
    marks += [Mark(step, _SYMBOLS[name], f"{name}: {text}") for step, name, text in events]
    charts = []
    for (score, title), series in lines.items():
        starts: dict[float, str] = {}
        for each in series:
            if each.points[0][0] == 0 and math.isfinite(each.points[0][1]):
                starts.setdefault(each.points[0][1], each.name)
        is_common = len(starts) == 1
        levels = [(y, "start" if is_common else f"start, {name}") for y, name in starts.items()]
        shown = levels if is_common or len(runs) == 1 else []
        percent = is_share(score)
        series.sort(key=lambda each: each.name.startswith(f"{_AVERAGED}."))
        chart = line_chart(title, series[:LINES], percent=percent, marks=marks, levels=shown)
        charts.append(chart._replace(remarks=[*chart.remarks, *_not_shown(series)]))
    return charts


def _scores(run: RunRecord) -> list[Values]:
    rows = []
    for (score, source), points in run.curves.items():
        finite = [point for point in points if math.isfinite(point[1])]
        if source == _TRAINING or not finite:
            continue
        better = min if score.endswith(("loss", "perplexity")) else max
        step, best = better(finite, key=lambda point: point[1])
        start = points[0][1] if points[0][0] == 0 else None
        figures = {"start": start, "last": points[-1][1], "best": best}
        cells = {name: score_cell(score, value) for name, value in figures.items()}
        rows.append({"score": f"{score}, {source}", **cells, "at step": int(step)})
    return rows


def _path_charts(runs: Sequence[RunRecord]) -> list[Chart]:
    """Returns charts of the change of one held-out set's loss against the changes of the others.

    Only a run with several sets and an evaluation before the first step has a path.
    """
    paths: dict[tuple[str, str], list[Series]] = defaultdict(list)
    for run in runs:
        curves, loss = run.curves, run.loss
        starts = {
            source: points[0][1]
            for (score, source), points in curves.items()
            if score == loss
            and source.partition(".")[0] not in (_TRAINING, _HELD_OUT, _AVERAGED)
            and points[0][0] == 0
        }
        gained = next((name for name in starts if name not in run.kept), None)
        for name in starts if gained is not None else ():
            for prefix in ("", f"{_AVERAGED}.") if name != gained else ():
                kept, learnt = (
                    {step: y - starts[each] for step, y in curves.get((loss, prefix + each), ())}
                    for each in (name, str(gained))
                )
                both = [(kept[step], learnt[step]) for step in kept if step in learnt]
                if points := [point for point in both if all(map(math.isfinite, point))]:
                    title = (run.name if len(runs) > 1 else loss) + (" (EMA)" if prefix else "")
                    paths[str(gained), name].append(Series(title, points))
    return [
        path_chart(
            f"{gained} against {kept}",
            series[:LINES],
            x_label=f"change of the loss on {kept}",
            y_label=f"change of the loss on {gained}",
            remark=" ".join([_PATH, *_not_shown(series)]),
        )
        for (gained, kept), series in paths.items()
    ]


def _not_shown(series: Sequence[Series]) -> list[str]:
    left_out = [each.name for each in series[LINES:]]
    return [f"Not shown: {commas(left_out)}."] if left_out else []


def _example(filled: FilledText) -> tuple[str, list[tuple[str, str]]]:
    pairs = []
    for truth, candidates in filled.masks:
        shown = " · ".join(f"{piece} {chance:.1%}" for piece, chance in candidates)
        pairs.append((truth, f"✓ {shown}" if candidates[0][0] == truth else shown))
    return (f"{filled.source}: " if filled.source else "") + filled.text, pairs


def _wall_time(run: RunRecord) -> Values:
    if (account := run.goodput) is None:
        return {}
    shares = {kind: Share(share, share) for kind, share in account.shares.items() if share}
    total = timedelta(seconds=round(account.total))
    return {**shares, "in all": f"{total}", "starts of the run": f"{account.starts}"}


def _events(run: RunRecord) -> list[Values]:
    return [{"step": step, "event": name, "details": text} for step, name, text in run.events]
