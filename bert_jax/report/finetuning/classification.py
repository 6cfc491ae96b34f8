"""Single-label and multi-label classification, regression, and multiple choice."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from bert_jax.report.charts import scatter
from bert_jax.report.rendering import SHOWN, Record, View, number, select

MATRIX: Final = 20  # maximum number of labels in a confusion matrix
CORRECT: Final = 5  # number of correct multiple-choice examples to show
OTHERS: Final = "(all others)"

Row = tuple[str | float, ...]


class Matrix(NamedTuple):
    """A matrix of counts with the names of its rows and columns."""

    rows: Sequence[str]
    columns: Sequence[str]
    counts: Sequence[Sequence[int]]


class Confusion(NamedTuple):
    """A confusion matrix of the most frequent labels, and the most frequent errors."""

    matrix: Matrix  # counts of at most `MATRIX` labels
    labels: int  # number of labels, including omitted ones
    frequent: Sequence[tuple[str, str, int]]  # (gold, predicted, count); empty if all are shown


def single_label(records: Sequence[Record], *, labels: Sequence[str]) -> View:
    """Returns metrics per class, the confusion matrix and the most confident errors."""
    gold = [str(record["label"]) for record in records]
    predicted = [str(record["prediction"]) for record in records]
    return {
        "template": "finetuning/single_label.html",
        "metrics": label_metrics(gold, predicted, labels=labels),
        "confusion": confusion(gold, predicted, labels=labels),
        "errors": select(_wrong(records), largest=_confidence),
    }


def multi_label(records: Sequence[Record], *, labels: Sequence[str]) -> View:
    """Returns metrics per label and the examples with the most wrong labels."""
    from sklearn.preprocessing import MultiLabelBinarizer

    binarizer = MultiLabelBinarizer(classes=list(labels))
    gold = binarizer.fit_transform([record["label"] for record in records])
    predicted = binarizer.transform([record["prediction"] for record in records])
    wrong = (record for record in records if set(record["label"]) != set(record["prediction"]))
    return {
        "template": "finetuning/multi_label.html",
        "metrics": _metrics(gold, predicted, labels, range(len(labels))),
        "errors": select(wrong, largest=_wrong_labels),
    }


def regression(records: Sequence[Record]) -> View:
    """Returns a scatter plot of predictions against labels, and the largest errors."""
    points = np.array([(record["label"], record["prediction"]) for record in records], np.float64)
    errors = np.abs(points[:, 0] - points[:, 1])
    with_errors = (
        {**record, "error": error} for record, error in zip(records, errors.tolist(), strict=True)
    )
    worst = select(with_errors, largest=lambda record: record["error"])
    return {
        "template": "finetuning/regression.html",
        "chart": scatter(
            "Predictions against labels",
            points,
            x_label="label",
            y_label="prediction",
            worst=len(worst.records),
        ),
        "mean_error": number(float(errors.mean())),
        "median_error": number(float(np.median(errors))),
        "errors": worst,
    }


def choices(records: Sequence[Record]) -> View:
    """Returns a matrix of correct and predicted positions, errors, and a few correct examples."""
    size = max(len(record["choices"]) for record in records)
    counts = np.zeros((size, size), np.int64)
    for record in records:
        counts[record["label"], record["prediction"]] += 1
    names = [str(position + 1) for position in range(size)]
    right = (record for record in records if record["label"] == record["prediction"])
    return {
        "template": "finetuning/choices.html",
        "positions": Matrix(names, names, counts.tolist()),
        "errors": select(_wrong(records), largest=_confidence),
        "correct": select(right, limit=CORRECT),
    }


def label_metrics(
    gold: Sequence[str], predicted: Sequence[str], *, labels: Sequence[str]
) -> list[Row]:
    """Returns precision, recall, F1 and support per label, then macro and weighted averages."""
    return _metrics(gold, predicted, labels, list(labels))


def confusion(gold: Sequence[str], predicted: Sequence[str], *, labels: Sequence[str]) -> Confusion:
    """Returns the confusion matrix. Rows and columns are in the order of `labels`."""
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


def _metrics(gold: Any, predicted: Any, names: Sequence[str], labels: Sequence[Any]) -> list[Row]:
    """Returns a row per label, then the averages. Undefined metrics are 0."""
    from sklearn.metrics import classification_report

    # Use indices as keys: a label could be named "macro avg".
    keys = [str(at) for at in range(len(names))]
    nothing: Any = 0  # Any: pyright infers str for `zero_division`
    found: Any = classification_report(
        gold, predicted, labels=labels, target_names=keys, output_dict=True, zero_division=nothing
    )
    shown = dict(zip(keys, names, strict=True))
    shown |= {"macro avg": "macro average", "weighted avg": "weighted average"}
    columns = ("precision", "recall", "f1-score")
    return [
        (name, *(float(found[key][column]) for column in columns), int(found[key]["support"]))
        for key, name in shown.items()
    ]


def _wrong(records: Sequence[Record]) -> list[Record]:
    return [record for record in records if record["label"] != record["prediction"]]


def _confidence(record: Record) -> float:
    return float(record["probabilities"][record["prediction"]])


def _wrong_labels(record: Record) -> tuple[int, float]:
    """Returns the number of wrong labels, and the sum of |label − probability| over all labels."""
    wrong = set(record["label"]) ^ set(record["prediction"])
    off = (abs((name in record["label"]) - p) for name, p in record["probabilities"].items())
    return len(wrong), float(sum(off))
