"""Computes scores, and compares a model with constant predictions.

Undefined scores, such as the correlation of a constant, are 0. Functions import scikit-learn and
SciPy themselves: the imports take seconds, and every verb imports this module.
"""

import json
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from bert_jax.tasks.family import Family, Record

# A collapsed regression predicts a constant plus noise: the standard deviation of its predictions
# is below this fraction of the standard deviation of the labels.
FLAT: Final = 0.01

CONSTANTS: Final = 3  # number of most frequent labels to try as constant predictions

OUTSIDE: Final = "O"  # tag of a token outside entities


def figures(
    records: Sequence[Record], keys: Sequence[str], *, positive: str | None = None
) -> dict[str, float]:
    """Returns the scores `keys` of labelled records.

    Keys of single-label data: "accuracy", "f1" (of the label `positive`), "macro_f1", "matthews".
    Keys of multi-label data: "micro_f1", "macro_f1", "subset_accuracy". Keys of a regression:
    "pearson", "spearman", "mse".
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
    """Returns the score `key` of single-label data.

    "f1" is 2·tp / (2·tp + fp + fn) of the label `positive`. "macro_f1" is the mean F1 over the
    labels that occur in `labels` or `predictions`. "matthews" is Matthews' correlation, −1 to 1:
    (tp·tn − fp·fn) / √((tp+fp)(tp+fn)(tn+fp)(tn+fn)) for two labels, and Gorodkin's R_K for more
    labels.
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
    """Returns the score "pearson", "spearman" (ties get their mean rank) or "mse"."""
    from scipy import stats

    x, y = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
    if key == "mse":
        return float(np.square(x - y).mean())
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    function: Any = stats.pearsonr if key == "pearson" else stats.spearmanr
    with warnings.catch_warnings():
        # `baseline_of` reports nearly constant predictions.
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        return float(function(x, y).statistic)


def _f1(*arguments: Any, **options: Any) -> Any:
    from sklearn.metrics import f1_score

    function: Any = f1_score  # typed, since pyright infers str for `zero_division`
    return function(*arguments, zero_division=0, **options)


def multi_label_figures(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Returns the scores of multi-label data.

    "micro_f1" pools the decisions of all labels. "macro_f1" is the mean F1 over the labels that
    occur in `labels` or `predictions`. "subset_accuracy" is the fraction of examples with exactly
    the correct labels.
    """
    names = sorted({name for found in (*labels, *predictions) for name in found})
    at = {name: number for number, name in enumerate(names)}

    def matrix(rows: Sequence[Sequence[str]]) -> np.ndarray:
        # scikit-learn treats a matrix with one column as single-label data. An empty second column
        # prevents this and leaves the scores unchanged.
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
    """Compares a model with the best constant prediction."""

    metric: str
    score: float
    constant: float  # score of the best constant prediction
    only: str | None  # the model's only prediction; None if it has several

    @property
    def failure(self) -> str | None:
        """Reason why the run counts as failed. If the model learnt something, None."""
        if self.only is not None:
            return f"predicts nothing but {self.only}"
        if self.score <= self.constant:
            return f"{self.metric} {self.score:.3f}, best constant answer {self.constant:.3f}"
        return None


def baseline_of(family: Family, records: Sequence[Record]) -> Baseline | None:
    """Compares a model with the best constant prediction. Returns None if all labels are equal.

    Fine-tuning on little data fails with some seeds: the model is no better than the most frequent
    label (arXiv 2006.04884, section 3). A run of any family counts as failed if one of these is
    true on the first dev split:

    1. All predictions are equal. In a regression, the standard deviation of the predictions is less
       than `FLAT` times the standard deviation of the labels.
    2. The score does not exceed the score of the best constant prediction, see `_constants`.

    ``["yes", "yes", "yes"]`` predicted for yes, no, yes → score 2/3, constant 2/3, only "yes"

    `records` are the labelled records of the first dev split.
    """
    labels = [record["label"] for record in records]
    predictions = [record["prediction"] for record in records]
    only = None
    if isinstance(labels[0], float):
        several = np.std(labels) > 0
        if np.std(predictions) < FLAT * np.std(labels):
            only = f"{np.mean(predictions):.3g}"
    else:
        several = len(_counted(labels, records)) > 1
        found = _counted(predictions, records)
        if len(found) == 1:
            ranked = "ranks" in records[0]
            only = "one order of passages" if ranked else _spelled(json.loads(next(iter(found))))
    if not several:
        return None

    def score(made: Sequence[Record]) -> float:
        return family.score(made)[family.best_metric]

    constant = max(map(score, _constants(family, records)))
    return Baseline(family.best_metric, score(records), constant, only)


def _constants(family: Family, records: Sequence[Record]) -> Iterator[list[Record]]:
    """Yields records with constant predictions.

    The predictions are frequent labels or sets of labels, the mean label (regression), the tag "O"
    and frequent tags for every token, no answer or the whole context to every question, or as in
    `Family.constant`.
    """
    labels = [record["label"] for record in records]
    if family.constant is not None:
        yield family.constant(records)
        return
    answers: list[list[Any]]
    if isinstance(labels[0], float):
        answers = [[float(np.mean(labels))] * len(records)]
    elif "nbest" in records[0]:
        answers = [[""] * len(records), [record["context"] for record in records]]
    else:
        # The most frequent label maximises accuracy, another one F1: try several labels.
        counted = _counted(labels, records)
        usual = [json.loads(key) for key, _ in counted.most_common(CONSTANTS)]
        answers = [[label] * len(records) for label in usual]
        if "tokens" in records[0]:
            tags = [*usual, OUTSIDE] if json.dumps(OUTSIDE) in counted else usual
            answers = [[[tag] * len(record["tokens"]) for record in records] for tag in tags]
    for answer in answers:
        pairs = zip(records, answer, strict=True)
        yield [record | {"prediction": each} for record, each in pairs]


def _counted(answers: list[Any], records: Sequence[Record]) -> Counter[str]:
    """Counts the answers, as JSON; for token classification, the tags of all tokens."""
    if "tokens" in records[0]:
        answers = [tag for tags in answers for tag in tags]
    return Counter(sorted(json.dumps(answer, sort_keys=True) for answer in answers))


def _spelled(answer: Any) -> str:
    if isinstance(answer, list):
        return ", ".join(map(str, answer)) or "no label"
    return str(answer) or "no answer"
