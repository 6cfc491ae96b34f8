"""The report of a fine-tuning run."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.errors import counted
from bert_jax.model.section import ProblemName
from bert_jax.report.charts import STYLES, Chart, Series, line_chart
from bert_jax.report.finetuning import classification
from bert_jax.report.finetuning.answers import answers
from bert_jax.report.finetuning.attention import SCALE, AttentionMaps
from bert_jax.report.finetuning.tokens import labelled_words
from bert_jax.report.rendering import (
    Cell,
    Record,
    Table,
    View,
    flat,
    is_share,
    number,
    percentage,
    plain,
    render_page,
    score_cell,
)


class ReportInputs(NamedTuple):
    """Contents of a report."""

    title: str
    kind: str  # name of the head, or title of the text head
    problem: ProblemName | None  # only for sequence classification
    labels: Sequence[str]  # labels in the model's order
    best_metric: str  # score that selects the best checkpoint
    scores: Mapping[str, Mapping[str, float]]  # {split: {metric: score}}
    records: Mapping[str, Sequence[Record]]  # {split: records}; unlabelled ones are not shown
    settings: Mapping[str, Any]  # settings, nested as in the configuration file
    metrics: Sequence[Mapping[str, Any]] = ()  # records of metrics.jsonl
    notes: Sequence[str] = ()  # remarks on the data
    warning: str | None = None  # warning at the top of the page
    run: Mapping[str, Any] = {}  # facts about the run, such as step and device
    attention: Sequence[AttentionMaps] = ()
    # Results of a sweep: mappings with seed, learning_rate, epochs, score and degenerate.
    seeds: Sequence[Mapping[str, Any]] = ()
    # {split: {entity type: metrics}}. Empty unless the labels are entities.
    entities: Mapping[str, Mapping[str, Mapping[str, float]]] = {}
    # Question answering only: {split: F1 of each record, 0 to 1}.
    f1: Mapping[str, Sequence[float]] = {}
    # {split: contents in place of a view of the head}.
    views: Mapping[str, View] = {}


def render(inputs: ReportInputs) -> str:
    """Returns the report as one self-contained HTML document."""
    keys = dict.fromkeys(key for line in inputs.metrics for key in line)
    ranked = [key for key in keys if key.rpartition("/")[2] == inputs.best_metric]
    names = list(dict.fromkeys(name for own in inputs.scores.values() for name in own))
    return render_page(
        "finetuning.html",
        title=inputs.title,
        about=_about(inputs),
        figures=_figures(inputs),
        footer="Written by bert_jax. This file is self-contained.",
        inputs=inputs,
        charts=_charts(inputs, ranked),
        evaluations=_evaluations(inputs, ranked),
        scores=[
            [name, *(score_cell(name, own.get(name)) for own in inputs.scores.values())]
            for name in names
        ],
        splits=[_split(inputs, name, records) for name, records in inputs.records.items()],
        sweep=_sweep(inputs.seeds, inputs.best_metric),
        attention=inputs.attention,
        scale=SCALE,
        settings=flat(inputs.settings),
        run=flat(inputs.run),
    )


def _about(inputs: ReportInputs) -> str:
    task = inputs.kind.replace("_", " ")
    if inputs.kind == "sequence_classification" and inputs.problem is not None:
        task = inputs.problem.replace("_", " ").replace("single label", "classification")
    if inputs.kind == "question_answering" or inputs.views:
        return task
    labels = counted(len(inputs.labels), "label")
    named = f" ({', '.join(inputs.labels)})" if 1 <= len(inputs.labels) <= 8 else ""
    return f"{task}, {labels}{named}"


def _figures(inputs: ReportInputs) -> list[tuple[str, str]]:
    shown = percentage if is_share(inputs.best_metric) else number
    figures = [
        (f"{inputs.best_metric}, {split}", shown(scores[inputs.best_metric]))
        for split, scores in inputs.scores.items()
        if inputs.best_metric in scores
    ]
    figures += [(f"examples, {split}", f"{len(own):,}") for split, own in inputs.records.items()]
    if "step" in inputs.run:
        figures.append(("step", number(inputs.run["step"])))
    return figures


def _charts(inputs: ReportInputs, ranked: Sequence[str]) -> list[Chart]:
    """Returns charts of the loss, `best_metric` and the learning rate over steps."""

    def line(kind: str, key: str, name: str, *, marks_best: bool = False) -> Series:
        own = [
            each for each in inputs.metrics if each["kind"] == kind and each.get(key) is not None
        ]
        points = [(float(each["step"]), float(each[key])) for each in own]
        return Series(name, points, marks_best, kept=inputs.run.get("step"))

    best = [line("validation", key, key, marks_best=True) for key in ranked[:STYLES]]
    lines = {
        "Loss": [line("train", "loss", "training"), line("validation", "loss", "dev")],
        f"{inputs.best_metric} on dev": best,
        "Learning rate": [line("train", "learning_rate", "rate")],
    }
    charts = []
    for title, series in lines.items():
        found = [each for each in series if any(math.isfinite(y) for _, y in each.points)]
        if found:
            percent = series is best and is_share(inputs.best_metric)
            charts.append(line_chart(title, found, percent=percent))
    return charts


def _evaluations(inputs: ReportInputs, ranked: Sequence[str]) -> Table | None:
    lines = [line for line in inputs.metrics if line["kind"] == "validation"]
    names = dict.fromkeys(key for line in lines for key in line if key not in ("kind", "step"))
    if not names:
        return None
    steps, best = [int(line["step"]) for line in lines], None
    if (kept := inputs.run.get("step")) in steps:
        best = steps.index(kept)
    elif ranked:
        values = [float(line.get(ranked[0], -math.inf)) for line in lines]
        best = max(range(len(lines)), key=lambda at: (values[at] == values[at], values[at]))
    rows = [
        [step, *(score_cell(name, line.get(name)) for name in names)]
        for step, line in zip(steps, lines, strict=True)
    ]
    title = "Evaluations during training"
    title += f"; the kept one, the best by {ranked[0]}, is bold" if ranked else ""
    return Table(title, ("step", *names), rows, best)


def _split(inputs: ReportInputs, name: str, records: Sequence[Record]) -> View:
    labelled = [record for record in records if record["label"] is not None]
    return {
        "name": name,
        "examples": len(records),
        "unlabelled": len(records) - len(labelled),
        "details": _details(inputs, name, labelled) if labelled else None,
    }


def _details(inputs: ReportInputs, split: str, records: Sequence[Record]) -> View:
    if split in inputs.views:
        return inputs.views[split]
    if inputs.kind == "token_classification":
        entities = inputs.entities.get(split, {})
        return labelled_words(records, labels=inputs.labels, entities=entities)
    if inputs.kind == "question_answering":
        return answers(records, f1=inputs.f1[split])
    if inputs.kind == "multiple_choice":
        return classification.choices(records)
    if inputs.problem == "regression":
        return classification.regression(records)
    if inputs.problem == "multi_label":
        return classification.multi_label(records, labels=inputs.labels)
    return classification.single_label(records, labels=inputs.labels)


def _sweep(seeds: Sequence[Mapping[str, Any]], metric: str) -> tuple[Table, Table] | None:
    """Returns a table of scores by learning rate and epochs, and a table of all runs."""
    if not seeds:
        return None
    groups: dict[str, list[float]] = defaultdict(list)
    runs: list[tuple[Cell, ...]] = []
    for row in seeds:
        rate, epochs, score = plain(row["learning_rate"]), plain(row["epochs"]), row["score"]
        groups[f"{rate} · {epochs}"].append(float(score))
        remark = "degenerate" if row["degenerate"] else ""
        runs.append((str(row["seed"]), rate, epochs, score_cell(metric, float(score)), remark))
    means: list[tuple[Cell, ...]] = []
    for name, scores in groups.items():
        deviation = statistics.stdev(scores) if len(scores) > 1 else None
        figures = (statistics.fmean(scores), deviation, max(scores))
        means.append((name, len(scores), *(score_cell(metric, figure) for figure in figures)))
    best = max(range(len(seeds)), key=lambda at: float(seeds[at]["score"]))
    return (
        Table(
            "By setting, degenerate runs included",
            ("learning rate · epochs", "runs", "mean", "deviation", "best"),
            means,
        ),
        Table(
            "Every run; the best is bold",
            ("seed", "learning rate", "epochs", "score", "remark"),
            runs,
            best,
        ),
    )
