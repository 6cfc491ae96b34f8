"""Single-label and multi-label classification, regression, and multiple choice."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np

from bert_jax.report.charts import Chart, scatter
from bert_jax.report.finetuning.selection import Record, Selection, confidence, select
from bert_jax.report.rendering import SHOWN, number

MATRIX: Final = 20  # labels that fit a matrix
CORRECT: Final = 5  # correct examples of a multiple-choice task to show
OTHERS: Final = "(all others)"

Row = tuple[str | float, ...]


class Matrix(NamedTuple):
    """Counts by row and column."""

    rows: Sequence[str]
    columns: Sequence[str]
    counts: Sequence[Sequence[int]]


class Confusion(NamedTuple):
    """A confusion matrix; of many labels that of the most frequent, and the top confusions."""

    matrix: Matrix
    labels: int
    frequent: Sequence[tuple[str, str, int]]
    """Gold, predicted, times; empty if the matrix shows every label."""


@dataclass(frozen=True)
class SingleLabel:
    """Metrics per class, the confusion matrix and the most confident errors."""

    template: ClassVar = "finetuning/single_label.html"
    metrics: Sequence[Row]
    confusion: Confusion
    errors: Selection


@dataclass(frozen=True)
class MultiLabel:
    """Metrics per label and the examples with the most wrong labels."""

    template: ClassVar = "finetuning/multi_label.html"
    metrics: Sequence[Row]
    errors: Selection


@dataclass(frozen=True)
class Regression:
    """Predictions against labels, and the largest errors."""

    template: ClassVar = "finetuning/regression.html"
    chart: Chart
    mean_error: str
    median_error: str
    errors: Selection


def single_label(records: Sequence[Record], *, labels: Sequence[str]) -> SingleLabel:
    """Returns the section of a single-label task from labelled records and the model's labels."""
    gold = [str(record["label"]) for record in records]
    predicted = [str(record["prediction"]) for record in records]
    wrong = (record for record in records if record["label"] != record["prediction"])
    return SingleLabel(
        metrics=label_metrics(gold, predicted, labels=labels),
        confusion=confusion(gold, predicted, labels=labels),
        errors=select(wrong, largest=confidence),
    )


def multi_label(records: Sequence[Record], *, labels: Sequence[str]) -> MultiLabel:
    """Returns the section of a multi-label task from labelled records and the model's labels."""
    from sklearn.preprocessing import MultiLabelBinarizer

    binarizer = MultiLabelBinarizer(classes=list(labels))
    gold = np.asarray(binarizer.fit_transform([record["label"] for record in records]))
    predicted = np.asarray(binarizer.transform([record["prediction"] for record in records]))
    wrong = (record for record in records if set(record["label"]) != set(record["prediction"]))
    return MultiLabel(
        metrics=_metric_rows(labels, _metrics(gold, predicted)),
        errors=select(wrong, largest=_wrong_labels),
    )


def regression(records: Sequence[Record]) -> Regression:
    """Returns the section of a regression task, of labelled records."""
    points = [(float(record["label"]), float(record["prediction"])) for record in records]
    errors = np.array([_error(record) for record in records])
    worst = select(({**record, "error": _error(record)} for record in records), largest=_error)
    return Regression(
        chart=scatter(
            "Predictions against labels",
            points,
            x_label="label",
            y_label="prediction",
            worst=len(worst.records),
        ),
        mean_error=number(float(errors.mean())),
        median_error=number(float(np.median(errors))),
        errors=worst,
    )


def label_metrics(
    gold: Sequence[str], predicted: Sequence[str], *, labels: Sequence[str]
) -> list[Row]:
    """Returns precision, recall, F1 and support of every label, and their two averages."""
    return _metric_rows(labels, _metrics(gold, predicted, labels))


def confusion(gold: Sequence[str], predicted: Sequence[str], *, labels: Sequence[str]) -> Confusion:
    """Returns the confusion matrix, rows and columns in the order of `labels`."""
    from sklearn.metrics import confusion_matrix

    counts = confusion_matrix(gold, predicted, labels=list(labels))
    if len(labels) <= MATRIX:
        return Confusion(Matrix(labels, labels, counts.tolist()), len(labels), ())
    most = {name for name, _ in Counter(gold).most_common(MATRIX)}
    kept = [at for at, name in enumerate(labels) if name in most]
    shown = [labels[at] for at in kept]
    matrix = counts[np.ix_(kept, kept)]
    others = counts[kept].sum(1) - matrix.sum(1)
    pairs = Counter((a, b) for a, b in zip(gold, predicted, strict=True) if a != b)
    return Confusion(
        Matrix(shown, [*shown, OTHERS], np.column_stack([matrix, others]).tolist()),
        len(labels),
        [(a, b, times) for (a, b), times in pairs.most_common(SHOWN)],
    )


def _metrics(gold: Any, predicted: Any, labels: Sequence[str] | None = None) -> np.ndarray:
    """Precision, recall, F1 and support as float64 [4, labels]; 0 where nothing was counted."""
    from sklearn.metrics import precision_recall_fscore_support

    nothing: Any = 0  # the annotation knows only the default
    columns = precision_recall_fscore_support(
        gold,
        predicted,
        labels=None if labels is None else list(labels),
        average=None,
        zero_division=nothing,
    )
    return np.stack([np.asarray(column, np.float64) for column in columns])


def _metric_rows(labels: Sequence[str], metrics: np.ndarray) -> list[Row]:
    """A row for each label and two averages; `metrics` is [4, labels]."""
    support = metrics[3]
    total = int(support.sum())
    weights = support / total if total else np.zeros_like(support)
    return [
        *(
            (name, *map(float, column[:3]), int(column[3]))
            for name, column in zip(labels, metrics.T, strict=True)
        ),
        ("macro average", *map(float, metrics[:3].mean(1)), total),
        ("weighted average", *map(float, metrics[:3] @ weights), total),
    ]


def _wrong_labels(record: Record) -> tuple[int, float]:
    """How many labels are wrong, and the sum of their errors."""
    wrong = set(record["label"]) ^ set(record["prediction"])
    off = (abs((name in record["label"]) - p) for name, p in record["probabilities"].items())
    return len(wrong), float(sum(off))


def _error(record: Record) -> float:
    return abs(float(record["label"]) - float(record["prediction"]))


@dataclass(frozen=True)
class Choices:
    """Positions of right and chosen answers, the most confident errors, a few correct examples."""

    template: ClassVar = "finetuning/choices.html"
    positions: Matrix
    errors: Selection
    correct: Selection


def choices(records: Sequence[Record]) -> Choices:
    """Returns the section of a multiple-choice task, of labelled records."""
    size = max(len(record["choices"]) for record in records)
    counts = np.zeros((size, size), np.int64)
    for record in records:
        counts[record["label"], record["prediction"]] += 1
    names = [str(position + 1) for position in range(size)]
    wrong = (record for record in records if record["label"] != record["prediction"])
    right = (record for record in records if record["label"] == record["prediction"])
    return Choices(
        positions=Matrix(names, names, counts.tolist()),
        errors=select(wrong, largest=confidence),
        correct=select(right, limit=CORRECT),
    )
