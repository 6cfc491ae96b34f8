"""Figures of predictions, by scikit-learn and SciPy, and whether a model learnt anything.

Every figure takes what was right first and what was predicted second. Where it has no value, it is
0: the correlation of a constant, F1 without any positive.

The libraries take seconds to import, and the settings of every verb lead here: each function
imports what it needs.
"""

import functools
import json
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from bert_jax.tasks.family import Family, Record

# Answers that scatter less than this, by the labels' own deviation, are one answer: a collapsed
# regression answers the mean and some noise.
FLAT: Final = 0.01

CONSTANTS: Final = 3  # most frequent labels that are tried as constant answers

OUTSIDE: Final = "O"  # the tag of a token that is no part of an entity


def accuracy(labels: Sequence[str], predictions: Sequence[str]) -> float:
    """Returns the share of predictions that are right: ``aab`` against ``abb`` → 2/3."""
    from sklearn.metrics import accuracy_score

    return float(accuracy_score(labels, predictions))


def f1(labels: Sequence[str], predictions: Sequence[str], *, positive: str) -> float:
    """Returns 2·tp / (2·tp + fp + fn) of one label; 0 where it neither is nor is predicted."""
    return float(_f1_score(labels, predictions, labels=[positive], average="macro"))


def _f1_score(*arguments: Any, **options: Any) -> Any:
    from sklearn.metrics import f1_score

    function: Any = f1_score  # its annotation knows only the default of `zero_division`
    return function(*arguments, zero_division=0, **options)


def macro_f1(labels: Sequence[str], predictions: Sequence[str]) -> float:
    """Returns the mean of `f1` over the labels that are there or are predicted."""
    return float(_f1_score(labels, predictions, average="macro"))


def matthews(labels: Sequence[str], predictions: Sequence[str]) -> float:
    """Returns Matthews' correlation, −1 to 1, of two labels or more.

    0 where all labels or all predictions are the same. For two it is
    (tp·tn − fp·fn) / √((tp+fp)(tp+fn)(tn+fp)(tn+fn)); for more, Gorodkin's R_K.
    """
    from sklearn.metrics import matthews_corrcoef

    if len(set(labels)) < 2 or len(set(predictions)) < 2:
        return 0.0
    return float(matthews_corrcoef(labels, predictions))


def pearson(labels: Sequence[float], predictions: Sequence[float]) -> float:
    """Returns the correlation of the numbers; 0 where either are all the same.

    Raises ValueError: either is not a plain sequence of numbers, or they differ in length. A column
    [n, 1] against [n] would broadcast to [n, n] and give a figure of something else.
    """
    from scipy.stats import pearsonr

    return _correlation(pearsonr, labels, predictions)


def spearman(labels: Sequence[float], predictions: Sequence[float]) -> float:
    """Returns the correlation of the numbers' ranks; of equals the mean rank. Else as `pearson`."""
    from scipy.stats import spearmanr

    return _correlation(spearmanr, labels, predictions)


def _correlation(function: Any, labels: Sequence[float], predictions: Sequence[float]) -> float:
    from scipy.stats import NearConstantInputWarning

    x, y = _numbers(labels, predictions)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    with warnings.catch_warnings():
        # That a model's answers differ little is no news for its user as a warning.
        warnings.simplefilter("ignore", NearConstantInputWarning)
        return float(function(x, y).statistic)


def mean_squared_error(labels: Sequence[float], predictions: Sequence[float]) -> float:
    """Returns the mean of (prediction − label)²; raises as `pearson`."""
    x, y = _numbers(labels, predictions)
    return float(np.square(x - y).mean())


def _numbers(
    labels: Sequence[float], predictions: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
    if x.ndim != 1 or x.shape != y.shape:
        raise ValueError(f"predictions: found shape {y.shape}, allowed: {x.shape[:1]} as labels")
    return x, y


def multi_label_figures(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Returns the figures of several labels for each example.

    `micro_f1` is of all decisions together, `macro_f1` the mean of F1 over the labels that are
    there or are predicted, `subset_accuracy` the share of examples with all labels right.
    """
    names = sorted({name for found in (*labels, *predictions) for name in found})
    at = {name: number for number, name in enumerate(names)}

    def matrix(rows: Sequence[Sequence[str]]) -> np.ndarray:
        # A matrix of one column would be taken for one label of two kinds; an empty one adds
        # nothing.
        made = np.zeros((len(rows), max(len(names), 2)), np.int8)
        for number, row in enumerate(rows):
            made[number, [at[name] for name in row]] = 1
        return made

    x, y = matrix(labels), matrix(predictions)
    per_label = _f1_score(x, y, average=None)
    return {
        "micro_f1": float(_f1_score(x, y, average="micro")),
        "macro_f1": float(per_label[: len(names)].mean()) if names else 0.0,
        "subset_accuracy": float((x == y).all(axis=1).mean()),
    }


_FIGURES: Final[Mapping[str, Callable[..., float]]] = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
    "mse": mean_squared_error,
}


def figures(
    records: Sequence[Record], keys: Sequence[str], *, positive: str | None = None
) -> dict[str, float]:
    """Returns figures of one record or more, all labelled, by their keys.

    Keys: "accuracy", "f1" (of the label that is `positive`), "macro_f1", "matthews" for one label;
    "micro_f1", "macro_f1", "subset_accuracy" for several (a list); "pearson", "spearman", "mse" for
    a number.
    """
    labels = [record["label"] for record in records]
    predictions = [record["prediction"] for record in records]
    if isinstance(labels[0], list):
        several = multi_label_figures(labels, predictions)
        return {key: several[key] for key in keys}
    functions = dict(_FIGURES)
    if positive is not None:
        functions["f1"] = functools.partial(f1, positive=positive)
    return {key: functions[key](labels, predictions) for key in keys}


class Baseline(NamedTuple):
    """A model's score beside the score of the best constant answer."""

    metric: str
    score: float
    constant: float  # score of the best constant answer
    only: str | None  # the answer of the model to every example; None: its answers differ

    @property
    def failure(self) -> str | None:
        """The reason that the run counts as failed; None: it learnt something."""
        if self.only is not None:
            return f"predicts nothing but {self.only}"
        if self.score <= self.constant:
            return f"{self.metric} {self.score:.3f}, and {self.constant:.3f} without reading"
        return None


def baseline_of(family: Family, records: Sequence[Record]) -> Baseline | None:
    """Compares a score with the best constant answer; None if all labels are the same.

    Fine-tuning on little data fails with some seeds: the model ends no better than one that gives
    the most frequent label (arXiv 2006.04884, section 3). So a run has failed if, on its dev set,

    1. all predictions are the same (of numbers: scatter less than a hundredth of what the labels
       do), or
    2. its score is not above that of the best constant answer: a frequent label or set of labels,
       the labels' mean, no entity (without "O" among the tags the most frequent one for every
       token), no answer to any question. Entity F1 and a correlation are 0 then.

    ``["yes", "yes", "yes"]`` predicted for yes, no, yes → accuracy 2/3, constant 2/3, only "yes"

    The records are those of the first dev split, all labelled.
    """
    labels = [record["label"] for record in records]
    numbers = isinstance(labels[0], float)
    if np.std(labels) == 0 if numbers else len(set(map(_key, _parts(labels, records)))) < 2:
        return None
    metric = family.best_metric
    constant = [
        family.score([record | {"prediction": answer} for record, answer in blind])[metric]
        for blind in _blind(labels, records)
    ]
    own = family.score(records)[metric]
    return Baseline(metric, own, constant=max(constant), only=_only(labels, records))


def _only(labels: list[Any], records: Sequence[Record]) -> str | None:
    predictions = [record["prediction"] for record in records]
    if isinstance(labels[0], float):
        flat = np.std(predictions) < FLAT * np.std(labels)
        return f"{np.mean(predictions):.3g}" if flat else None
    found = {_key(part): part for part in _parts(predictions, records)}
    return _spelled(*found.values()) if len(found) == 1 else None


def _blind(labels: list[Any], records: Sequence[Record]) -> list[list[tuple[Record, Any]]]:
    """Returns the constant answers that may be the best, each with every record."""
    if isinstance(labels[0], float):
        return [[(record, float(np.mean(labels))) for record in records]]
    if "nbest" in records[0]:
        return [[(record, "") for record in records]]
    parts = _parts(labels, records)
    # The best one by accuracy is the most frequent, by F1 the positive label.
    usual = [json.loads(key) for key, _ in Counter(sorted(map(_key, parts))).most_common(CONSTANTS)]
    if "tokens" in records[0]:
        tag = OUTSIDE if OUTSIDE in parts else usual[0]
        return [[(record, [tag] * len(record["tokens"])) for record in records]]
    return [[(record, label) for record in records] for label in usual]


def _parts(answers: list[Any], records: Sequence[Record]) -> list[Any]:
    """Returns the single answers: one a record, or one a token."""
    return [tag for tags in answers for tag in tags] if "tokens" in records[0] else answers


def _key(answer: Any) -> str:
    return json.dumps(answer, sort_keys=True)


def _spelled(answer: Any) -> str:
    if isinstance(answer, list):
        return ", ".join(map(str, answer)) or "no label"
    return str(answer) or "no answer"
