"""Scores of predictions, and the comparison with a constant answer.

Undefined scores are 0, such as the correlation of a constant, or F1 without positives. Scores come
from scikit-learn and SciPy, which take seconds to import. The settings of every verb import this
module, so each function imports these libraries itself.
"""

import json
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from bert_jax.tasks.family import Family, Record

# A collapsed regression answers the mean plus some noise: the deviation of its answers is less than
# this fraction of the deviation of the labels.
FLAT: Final = 0.01

CONSTANTS: Final = 3  # number of most frequent labels to try as constant answers

OUTSIDE: Final = "O"  # tag of a token outside entities


def figures(
    records: Sequence[Record], keys: Sequence[str], *, positive: str | None = None
) -> dict[str, float]:
    """Returns the scores of labelled records by key.

    One label has the keys "accuracy", "f1" (of the label `positive`), "macro_f1" and "matthews". A
    list of labels has "micro_f1", "macro_f1" and "subset_accuracy". A number has "pearson",
    "spearman" and "mse".
    """
    labels = [record["label"] for record in records]
    predictions = [record["prediction"] for record in records]
    if isinstance(labels[0], list):
        several = multi_label_figures(labels, predictions)
        return {key: several[key] for key in keys}
    if isinstance(labels[0], float):
        return {key: number_figure(key, labels, predictions) for key in keys}
    return {key: label_figure(key, labels, predictions, positive) for key in keys}


def label_figure(
    key: str, labels: Sequence[str], predictions: Sequence[str], positive: str | None = None
) -> float:
    """Returns a score of single-label data.

    "f1" is 2·tp / (2·tp + fp + fn) of the label `positive`. "macro_f1" is the mean F1 of all labels
    that occur in labels or predictions. "matthews" is Matthews' correlation, −1 to 1:
    (tp·tn − fp·fn) / √((tp+fp)(tp+fn)(tn+fp)(tn+fn)) for two labels, Gorodkin's R_K for more.
    """
    from sklearn import metrics

    if key == "accuracy":
        return float(metrics.accuracy_score(labels, predictions))
    if key == "f1":
        return float(_f1(labels, predictions, labels=[positive], average="macro"))
    if key == "macro_f1":
        return float(_f1(labels, predictions, average="macro"))
    if len(set(labels)) < 2 or len(set(predictions)) < 2:
        return 0.0
    return float(metrics.matthews_corrcoef(labels, predictions))


def number_figure(key: str, labels: Sequence[float], predictions: Sequence[float]) -> float:
    """Returns "pearson", "spearman" (equal numbers have their mean rank) or "mse" of numbers."""
    from scipy import stats

    x, y = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
    if key == "mse":
        return float(np.square(x - y).mean())
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    function: Any = stats.pearsonr if key == "pearson" else stats.spearmanr
    with warnings.catch_warnings():
        # `baseline_of` already reports answers that hardly differ.
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        return float(function(x, y).statistic)


def _f1(*arguments: Any, **options: Any) -> Any:
    from sklearn.metrics import f1_score

    function: Any = f1_score  # its annotation allows only the default of `zero_division`
    return function(*arguments, zero_division=0, **options)


def multi_label_figures(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Returns the scores of multi-label data.

    `micro_f1` is the F1 of all decisions together. `macro_f1` is the mean F1 of all labels that
    occur in labels or predictions. `subset_accuracy` is the fraction of examples whose labels are
    all right.
    """
    names = sorted({name for found in (*labels, *predictions) for name in found})
    at = {name: number for number, name in enumerate(names)}

    def matrix(rows: Sequence[Sequence[str]]) -> np.ndarray:
        # scikit-learn treats a matrix with one column as single-label data. A second, empty column
        # prevents this and does not change the scores.
        made = np.zeros((len(rows), max(len(names), 2)), np.int8)
        for number, row in enumerate(rows):
            made[number, [at[name] for name in row]] = 1
        return made

    x, y = matrix(labels), matrix(predictions)
    per_label = _f1(x, y, average=None)
    return {
        "micro_f1": float(_f1(x, y, average="micro")),
        "macro_f1": float(per_label[: len(names)].mean()) if names else 0.0,
        "subset_accuracy": float((x == y).all(axis=1).mean()),
    }


class Baseline(NamedTuple):
    """A comparison of a model with the best constant answer."""

    metric: str
    score: float
    constant: float  # score of the best constant answer
    only: str | None  # the model's only answer, None if it gives several

    @property
    def failure(self) -> str | None:
        """The reason why the run failed, or None if the model learnt something."""
        if self.only is not None:
            return f"predicts nothing but {self.only}"
        if self.score <= self.constant:
            return f"{self.metric} {self.score:.3f}, best constant answer {self.constant:.3f}"
        return None


def baseline_of(family: Family, records: Sequence[Record]) -> Baseline | None:
    """Compares a model with the best constant answer. Returns None if all labels are equal.

    Fine-tuning on little data fails with some seeds: the model is no better than the most frequent
    label (arXiv 2006.04884, section 3). So a run has failed if one of these is true on its dev set:

    1. All predictions are equal, or the deviation of predicted numbers is less than a hundredth of
       the deviation of the labels.
    2. The score does not exceed the score of the best constant answer. Constant answers are the
       frequent labels or sets of labels, the mean of the labels, no entity (or the most frequent
       tag, if no tag is "O"), and no answer to any question. The F1 of no entity is 0, and so is
       the correlation of a constant.

    ``["yes", "yes", "yes"]`` predicted for yes, no, yes → accuracy 2/3, constant 2/3, only "yes"

    `records` are the labelled records of the first dev split.
    """
    labels = [record["label"] for record in records]
    predictions = [record["prediction"] for record in records]
    constants: list[list[Any]]  # possible best answers, each with one answer per record
    if isinstance(labels[0], float):
        several = np.std(labels) > 0
        flat = np.std(predictions) < FLAT * np.std(labels)
        only = f"{np.mean(predictions):.3g}" if flat else None
        constants = [[float(np.mean(labels))] * len(records)]
    else:
        known, found = (_counted(answers, records) for answers in (labels, predictions))
        several = len(known) > 1
        only = _spelled(json.loads(next(iter(found)))) if len(found) == 1 else None
        # The best answer is the most frequent label for accuracy, and the positive label for F1.
        usual = [json.loads(key) for key, _ in known.most_common(CONSTANTS)]
        if "nbest" in records[0]:
            constants = [[""] * len(records)]
        elif "tokens" in records[0]:
            tag = OUTSIDE if json.dumps(OUTSIDE) in known else usual[0]
            constants = [[[tag] * len(record["tokens"]) for record in records]]
        else:
            constants = [[label] * len(records) for label in usual]
    if not several:
        return None

    def score(answers: Sequence[Any]) -> float:
        pairs = zip(records, answers, strict=True)
        made = [record | {"prediction": answer} for record, answer in pairs]
        return family.score(made)[family.best_metric]

    return Baseline(family.best_metric, score(predictions), max(map(score, constants)), only)


def _counted(answers: list[Any], records: Sequence[Record]) -> Counter[str]:
    """Returns how often each answer occurs, as JSON. An answer belongs to a record or a token."""
    if "tokens" in records[0]:
        answers = [tag for tags in answers for tag in tags]
    return Counter(sorted(json.dumps(answer, sort_keys=True) for answer in answers))


def _spelled(answer: Any) -> str:
    if isinstance(answer, list):
        return ", ".join(map(str, answer)) or "no label"
    return str(answer) or "no answer"
