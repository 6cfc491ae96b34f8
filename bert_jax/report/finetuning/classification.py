"""Classes, several labels at once, and numbers: what was told apart and what was not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from bert_jax.report.charts import heat_map, scatter
from bert_jax.report.html import Element, Node, clip, element, number, showing
from bert_jax.report.page import SHOWN, TEXT_LIMIT, examples, facts, quiet, table

Record = Mapping[str, Any]

MATRIX: Final = 20  # labels that a matrix has room for
OTHERS: Final = "(all others)"


def single_label(records: Sequence[Record], *, labels: Sequence[str]) -> list[Node]:
    """Returns per-class figures, the confusion matrix and the most confident errors.

    Args:
        records: labelled ones.
        labels: the model's, in its order.
    """
    gold = [str(record["label"]) for record in records]
    predicted = [str(record["prediction"]) for record in records]
    wrong = [record for record in records if record["label"] != record["prediction"]]
    wrong.sort(key=_confidence, reverse=True)
    return [
        class_table(gold, predicted, labels=labels, noun="class"),
        *confusion(gold, predicted, labels=labels, noun="class"),
        element("h3", "Most confident errors"),
        quiet(showing(min(SHOWN, len(wrong)), len(wrong), "error")),
        examples(_single_error(record) for record in wrong[:SHOWN]),
    ]


def multi_label(records: Sequence[Record], *, labels: Sequence[str]) -> list[Node]:
    """Returns per-label figures and the examples with most labels wrong.

    Args:
        records: labelled ones.
        labels: the model's, in its order.
    """
    from sklearn.preprocessing import MultiLabelBinarizer

    binarizer = MultiLabelBinarizer(classes=list(labels))
    gold = np.asarray(binarizer.fit_transform([record["label"] for record in records]))
    predicted = np.asarray(binarizer.transform([record["prediction"] for record in records]))
    wrong = [record for record in records if set(record["label"]) != set(record["prediction"])]
    wrong.sort(key=_wrong_labels, reverse=True)
    return [
        _figures_table(labels, _figures(gold, predicted), noun="label"),
        element("h3", "Examples with most labels wrong"),
        quiet(showing(min(SHOWN, len(wrong)), len(wrong), "example", " with a wrong label")),
        examples(_multi_error(record) for record in wrong[:SHOWN]),
    ]


def regression(records: Sequence[Record]) -> list[Node]:
    """Returns predictions against labels, and those farthest off.

    Args:
        records: labelled ones.
    """
    points = [(float(record["label"]), float(record["prediction"])) for record in records]
    worst = sorted(records, key=_distance, reverse=True)[:SHOWN]
    distances = np.array([_distance(record) for record in records])
    cloud = scatter(
        "Predictions against labels",
        points,
        x_label="label",
        y_label="prediction",
        worst=len(worst),
    )
    return [
        cloud,
        quiet(
            "On the diagonal a prediction is right; the examples below are ringed. "
            f"Mean distance {number(float(distances.mean()))}, "
            f"median {number(float(np.median(distances)))}."
        ),
        element("h3", "Farthest off"),
        quiet(showing(len(worst), len(records), "example")),
        examples(
            _item(
                record,
                ("label", number(float(record["label"]))),
                ("prediction", number(float(record["prediction"]))),
                ("distance", number(_distance(record))),
            )
            for record in worst
        ),
    ]


def class_table(
    gold: Sequence[str], predicted: Sequence[str], *, labels: Sequence[str], noun: str
) -> Element:
    """Returns precision, recall, F1 and support of every label, and their means.

    Args:
        gold: the gold labels.
        predicted: the predicted labels.
        labels: the rows, in order.
        noun: what a label is.
    """
    return _figures_table(labels, _figures(gold, predicted, labels), noun=noun)


def confusion(
    gold: Sequence[str], predicted: Sequence[str], *, labels: Sequence[str], noun: str
) -> list[Node]:
    """Returns the confusion matrix; of many labels that of the most frequent, and the rest listed.

    Args:
        gold: the gold labels.
        predicted: the predicted labels.
        labels: rows and columns, in order.
        noun: what a label is.
    """
    from sklearn.metrics import confusion_matrix

    shown = list(labels)
    if len(labels) > MATRIX:
        frequent = {name for name, _ in Counter(gold).most_common(MATRIX)}
        shown = [name for name in labels if name in frequent]
    caption = (
        f"Rows: the gold {noun}. Columns: the predicted one. Below a count, its share of the row."
    )
    made: list[Node] = [element("h3", "Confusion matrix")]
    counts = confusion_matrix(gold, predicted, labels=list(labels))
    kept = [at for at, name in enumerate(labels) if name in shown]
    matrix, columns = counts[np.ix_(kept, kept)], list(shown)
    if len(shown) < len(labels):
        others = counts[kept].sum(1) - matrix.sum(1)
        matrix, columns = np.column_stack([matrix, others]), [*shown, OTHERS]
    made.append(
        heat_map(matrix, rows=shown, columns=columns, corner="gold \\ predicted", caption=caption)
    )
    if len(shown) < len(labels):
        made.append(quiet(f"The {len(shown)} most frequent of {len(labels)} labels."))
        pairs = Counter((a, b) for a, b in zip(gold, predicted, strict=True) if a != b)
        rows = [(a, b, times) for (a, b), times in pairs.most_common(SHOWN)]
        caption = "Most frequent confusions of all labels"
        made.append(table(("gold", "predicted", "times"), rows, caption=caption))
    return made


def _figures(gold: Any, predicted: Any, labels: Sequence[str] | None = None) -> np.ndarray:
    """Precision, recall, F1 and support as float64 [4, labels]; 0 where nothing was counted."""
    from sklearn.metrics import precision_recall_fscore_support

    nothing: Any = 0  # the annotation knows only the default
    figures = precision_recall_fscore_support(
        gold,
        predicted,
        labels=None if labels is None else list(labels),
        average=None,
        zero_division=nothing,
    )
    return np.stack([np.asarray(column, np.float64) for column in figures])


def _figures_table(labels: Sequence[str], figures: np.ndarray, *, noun: str) -> Element:
    """A row for each label and two means; `figures` is [4, labels]."""
    support = figures[3]
    rows: list[Sequence[str | float]] = [
        (name, *map(float, column[:3]), int(column[3]))
        for name, column in zip(labels, figures.T, strict=True)
    ]
    total = int(support.sum())
    weights = support / total if total else np.zeros_like(support)
    rows.append(("macro average", *map(float, figures[:3].mean(1)), total))
    rows.append(("weighted average", *map(float, figures[:3] @ weights), total))
    return table(
        (noun, "precision", "recall", "F1", "support"),
        rows,
        caption=f"Figures by {noun}",
        marks=[*([None] * len(labels)), "total"],
    )


def _item(record: Record, *pairs: tuple[str, Node]) -> Element:
    """An example: its texts, and what is to be said of it."""
    texts = [element("p", clip(str(record["text"]), limit=TEXT_LIMIT))]
    if record.get("pair") is not None:
        texts.append(element("p", clip(str(record["pair"]), limit=TEXT_LIMIT)))
    return element("li", *texts, facts((*pairs, ("id", str(record["id"])))))


def _single_error(record: Record) -> Element:
    probabilities = record["probabilities"]
    return _item(
        record,
        ("gold", _with_share(record["label"], probabilities)),
        ("predicted", _with_share(record["prediction"], probabilities)),
    )


def _multi_error(record: Record) -> Element:
    gold, predicted = set(record["label"]), set(record["prediction"])
    probabilities = record["probabilities"]

    def names(chosen: set[str]) -> str:
        listed = [name for name in probabilities if name in chosen]
        return ", ".join(_with_share(name, probabilities) for name in listed) or "none"

    return _item(
        record,
        ("found", names(gold & predicted)),
        ("missed", names(gold - predicted)),
        ("wrongly predicted", names(predicted - gold)),
    )


def _with_share(name: str, probabilities: Mapping[str, float]) -> str:
    return f"{name} ({probabilities[name]:.3f})" if name in probabilities else name


def _confidence(record: Record) -> float:
    return float(record["probabilities"][record["prediction"]])


def _wrong_labels(record: Record) -> tuple[int, float]:
    """How many labels are wrong, and how wrong in all."""
    wrong = set(record["label"]) ^ set(record["prediction"])
    off = (abs((name in record["label"]) - p) for name, p in record["probabilities"].items())
    return len(wrong), float(sum(off))


def _distance(record: Record) -> float:
    return abs(float(record["label"]) - float(record["prediction"]))
