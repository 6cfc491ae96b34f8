"""The report of a fine-tuning run."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bert_jax.model.config import ProblemName, TaskName
from bert_jax.report.charts import STYLES, Series, line_chart
from bert_jax.report.finetuning import answers, choices, classification, tokens
from bert_jax.report.finetuning.attention import SCRIPT, AttentionExample, attention
from bert_jax.report.html import Element, Node, count, element, number
from bert_jax.report.page import facts, page, quiet, section, table

Record = Mapping[str, Any]


class ReportInputs(NamedTuple):
    """All that a report is made of."""

    title: str
    kind: TaskName
    problem: ProblemName | None  # of sequence classification
    labels: Sequence[str]  # of the model, in its order
    best_metric: str  # the key of `scores` by which checkpoints were ranked
    scores: Mapping[str, Mapping[str, float]]  # of each split, by metric
    records: Mapping[str, Sequence[Record]]  # of each split; unlabelled ones are counted only
    settings: Mapping[str, Any]  # what was set, nested as in its file
    metrics: Sequence[Mapping[str, Any]] = ()  # lines of metrics.jsonl
    notes: Sequence[str] = ()  # what was found in the data
    run: Mapping[str, Any] = {}  # step, checkpoint, device, seconds, versions, …
    attention: Sequence[AttentionExample] = ()
    # One row for each run of a grid: seed, learning_rate, epochs, score, degenerate.
    seeds: Sequence[Mapping[str, Any]] = ()
    # Token classification: figures of each type of entity, by split; empty for other labels.
    entities: Mapping[str, Mapping[str, Mapping[str, float]]] = {}
    # Question answering: F1 of each record, 0 to 1, by split.
    f1: Mapping[str, Sequence[float]] = {}


def render(inputs: ReportInputs) -> str:
    """Returns the report as one HTML document that loads nothing from anywhere.

    Args:
        inputs: what to tell.

    Raises:
        ValueError: question answering without an F1 for each labelled record.
    """
    sections = [
        _notes(inputs.notes),
        _curves(inputs),
        _scores(inputs.scores),
        *(_split(inputs, split, records) for split, records in inputs.records.items()),
        _seeds(inputs.seeds),
        _attention(inputs.attention),
        section("Settings", table(("key", "value"), _flat(inputs.settings), caption="As set")),
        section("Run", table(("fact", "value"), _flat(inputs.run), caption="Where and how")),
    ]
    return page(
        title=inputs.title,
        header=_header(inputs),
        sections=[each for each in sections if each is not None],
        footer="Written by bert_jax. This file needs no network and no other file.",
        script=SCRIPT if inputs.attention else "",
    )


def _header(inputs: ReportInputs) -> list[Node]:
    task = inputs.kind.replace("_", " ")
    if inputs.kind == "sequence_classification" and inputs.problem is not None:
        task = inputs.problem.replace("_", " ").replace("single label", "classification")
    figures: list[tuple[str, Node]] = [
        (f"{inputs.best_metric}, {split}", number(scores[inputs.best_metric]))
        for split, scores in inputs.scores.items()
        if inputs.best_metric in scores
    ]
    figures += [(f"examples, {split}", f"{len(own):,}") for split, own in inputs.records.items()]
    if "step" in inputs.run:
        figures.append(("step", number(inputs.run["step"])))
    if "seconds" in inputs.run:
        figures.append(("time", _duration(float(inputs.run["seconds"]))))
    about = task if inputs.kind == "question_answering" else f"{task}, {_labels(inputs.labels)}"
    return [element("p", about, class_="quiet"), facts(figures, class_="figures")]


def _labels(labels: Sequence[str]) -> str:
    if not labels or len(labels) > 8:
        return count(len(labels), "label")
    return f"{count(len(labels), 'label')} ({', '.join(labels)})"


def _notes(notes: Sequence[str]) -> Element | None:
    if not notes:
        return None
    return section("Notes on the data", element("ul", *(element("li", note) for note in notes)))


def _curves(inputs: ReportInputs) -> Element | None:
    """Loss, the metric that ranks and learning rate, by step."""
    training = _series(inputs.metrics, "train", loss="training", learning_rate="rate")
    ranked = _ranked(inputs)
    dev = _series(inputs.metrics, "validation", loss="dev", **{key: key for key in ranked})
    charts = [
        _chart("Loss", [training["loss"], dev["loss"]]),
        _chart(f"{inputs.best_metric} on dev", [_best(dev[key]) for key in ranked][:STYLES]),
        _chart("Learning rate", [training["learning_rate"]]),
    ]
    charts = [chart for chart in charts if chart is not None]
    evaluations = _evaluations(inputs, ranked)
    if not charts and evaluations is None:
        return None
    return section("Training", element("div", *charts, class_="charts"), evaluations)


def _ranked(inputs: ReportInputs) -> list[str]:
    """The dev figures that are the metric that ranks: ``["dev_matched/accuracy", …]``."""
    names = dict.fromkeys(key for line in inputs.metrics for key in line)
    return [name for name in names if name.rpartition("/")[2] == inputs.best_metric]


def _chart(title: str, series: Sequence[Series]) -> Element | None:
    found = [each for each in series if any(math.isfinite(y) for _, y in each.points)]
    return line_chart(title, found) if found else None


def _series(lines: Sequence[Mapping[str, Any]], kind: str, **names: str) -> dict[str, Series]:
    """The figures of one kind by key, each under the name to show."""
    own = [line for line in lines if line["kind"] == kind]
    return {
        key: Series(
            name,
            [(float(line["step"]), float(line[key])) for line in own if line.get(key) is not None],
        )
        for key, name in names.items()
    }


def _best(series: Series) -> Series:
    finite = [at for at, (_, y) in enumerate(series.points) if math.isfinite(y)]
    if not finite:
        return series
    return series._replace(best=max(finite, key=lambda at: series.points[at][1]))


def _evaluations(inputs: ReportInputs, ranked: Sequence[str]) -> Element | None:
    """What every evaluation gave, the best one bold."""
    lines = [line for line in inputs.metrics if line["kind"] == "validation"]
    names = dict.fromkeys(key for line in lines for key in line if key not in ("kind", "step"))
    if not names:
        return None
    caption = "Every evaluation"
    marks: list[str | None] = []
    if ranked:
        values = [float(line.get(ranked[0], -math.inf)) for line in lines]
        best = max(range(len(lines)), key=lambda at: (values[at] == values[at], values[at]))
        marks = ["best" if at == best else None for at in range(len(lines))]
        caption += f"; the best by {ranked[0]} is bold"
    rows = [[int(line["step"]), *(_figure(line.get(name)) for name in names)] for line in lines]
    return table(("step", *names), rows, caption=caption, marks=marks)


def _scores(scores: Mapping[str, Mapping[str, float]]) -> Element | None:
    if not scores:
        return None
    names = list(dict.fromkeys(name for own in scores.values() for name in own))
    rows = [[name, *(_figure(own.get(name)) for own in scores.values())] for name in names]
    return section("Scores", table(("metric", *scores), rows, caption="Of the model kept"))


def _split(inputs: ReportInputs, split: str, records: Sequence[Record]) -> Element:
    """What the model got right and wrong in one split."""
    labelled = [record for record in records if record["label"] is not None]
    remark = None
    if len(labelled) < len(records):
        missing = count(len(records) - len(labelled), "example")
        remark = quiet(f"{missing} without a label, which nothing below counts.")
    heading = f"Predictions on {split}"
    if not records:
        return section(heading, quiet("No examples."))
    if not labelled:
        return section(heading, remark)
    return section(heading, remark, *_details(inputs, split, labelled))


def _details(inputs: ReportInputs, split: str, records: Sequence[Record]) -> list[Node]:
    if inputs.kind == "token_classification":
        entities = inputs.entities.get(split, {})
        return tokens.labelled_words(records, labels=inputs.labels, entities=entities)
    if inputs.kind == "question_answering":
        return answers.answers(records, f1=inputs.f1.get(split, ()))
    if inputs.kind == "multiple_choice":
        return choices.choices(records)
    if inputs.problem == "regression":
        return classification.regression(records)
    if inputs.problem == "multi_label":
        return classification.multi_label(records, labels=inputs.labels)
    return classification.single_label(records, labels=inputs.labels)


def _seeds(rows: Sequence[Mapping[str, Any]]) -> Element | None:
    """Every run of a grid, and mean and deviation of each of its settings."""
    if not rows:
        return None
    best = max(rows, key=lambda row: float(row["score"]))
    runs = [
        (
            str(row["seed"]),
            _plain(row["learning_rate"]),
            _plain(row["epochs"]),
            float(row["score"]),
            "degenerate" if row["degenerate"] else "",
        )
        for row in rows
    ]
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        key = (_plain(row["learning_rate"]), _plain(row["epochs"]))
        groups[key].append(float(row["score"]))
    means = [
        (
            f"{rate} · {epochs}",
            len(scores),
            statistics.fmean(scores),
            statistics.stdev(scores) if len(scores) > 1 else "–",
            max(scores),
        )
        for (rate, epochs), scores in groups.items()
    ]
    degenerate = sum(bool(row["degenerate"]) for row in rows)
    return section(
        "Seeds and settings tried",
        quiet(f"{count(len(rows), 'run')}, of which {degenerate} degenerate."),
        table(
            ("learning rate · epochs", "runs", "mean", "deviation", "best"),
            means,
            caption="Degenerate runs are counted too",
        ),
        table(
            ("seed", "learning rate", "epochs", "score", "remark"),
            runs,
            caption="Every run; the best is bold",
            marks=["best" if row is best else None for row in rows],
        ),
    )


def _attention(examples: Sequence[AttentionExample]) -> Element | None:
    if not examples:
        return None
    drawn = [attention(each, number_of=at) for at, each in enumerate(examples, start=1)]
    return section("Attention", *drawn)


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """``{"optimizer": {"lr": 1e-5}}`` → ``[("optimizer.lr", "1e-05")]``."""
    rows = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", _plain(value)))
    return rows


def _plain(value: Any) -> str:
    """A setting as it would be written in its file."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _figure(value: Any) -> str | float:
    return value if isinstance(value, int | float) else "–"


def _duration(seconds: float) -> str:
    """``75.2`` → ``1 min 15 s``."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
