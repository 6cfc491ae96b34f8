"""Figures of predictions, by scikit-learn and SciPy, and whether a model learnt anything.

A figure without a value is 0: the correlation of a constant, F1 without any positive.

The libraries take seconds to import, and the settings of every verb import this module: each
function imports what it needs.
"""

import json
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from bert_jax.tasks.family import Family, Record

# A regression whose answers have less than this share of the labels' deviation gives one answer: a
# collapsed regression answers the mean and some noise.
FLAT: Final = 0.01

CONSTANTS: Final = 3  # most frequent labels that are tried as constant answers

OUTSIDE: Final = "O"  # the tag of a token that is no part of an entity


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
    if isinstance(labels[0], float):
        return {key: number_figure(key, labels, predictions) for key in keys}
    return {key: label_figure(key, labels, predictions, positive) for key in keys}


def label_figure(
    key: str, labels: Sequence[str], predictions: Sequence[str], positive: str | None = None
) -> float:
    """Returns a figure of one label for each example.

    "f1" is 2·tp / (2·tp + fp + fn) of the `positive` label, "macro_f1" its mean over the labels
    that occur on either side. "matthews" is Matthews' correlation, −1 to 1: for two labels
    (tp·tn − fp·fn) / √((tp+fp)(tp+fn)(tn+fp)(tn+fn)), for more Gorodkin's R_K.
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
    """Returns "pearson", "spearman" (mean ranks for equals) or "mse" of one number per example."""
    from scipy import stats

    x, y = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
    if key == "mse":
        return float(np.square(x - y).mean())
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    function: Any = stats.pearsonr if key == "pearson" else stats.spearmanr
    with warnings.catch_warnings():
        # A warning about answers that hardly differ tells the user nothing new.
        warnings.simplefilter("ignore", stats.NearConstantInputWarning)
        return float(function(x, y).statistic)


def _f1(*arguments: Any, **options: Any) -> Any:
    from sklearn.metrics import f1_score

    function: Any = f1_score  # its annotation knows only the default of `zero_division`
    return function(*arguments, zero_division=0, **options)


def multi_label_figures(
    labels: Sequence[Sequence[str]], predictions: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Returns the figures of several labels for each example.

    `micro_f1` covers all decisions together, `macro_f1` is the mean of F1 over the labels that
    occur on either side, `subset_accuracy` the share of examples with all labels right.
    """
    names = sorted({name for found in (*labels, *predictions) for name in found})
    at = {name: number for number, name in enumerate(names)}

    def matrix(rows: Sequence[Sequence[str]]) -> np.ndarray:
        # scikit-learn takes a matrix of one column for one label of two kinds; an empty column
        # changes nothing.
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
    """A model's score beside the score of the best constant answer."""

    metric: str
    score: float
    constant: float  # score of the best constant answer
    only: str | None  # the model's answer to every example; None: its answers differ

    @property
    def failure(self) -> str | None:
        """The reason that the run counts as failed; None: it learnt something."""
        if self.only is not None:
            return f"predicts nothing but {self.only}"
        if self.score <= self.constant:
            return f"{self.metric} {self.score:.3f}, and {self.constant:.3f} without reading"
        return None


def baseline_of(family: Family, records: Sequence[Record]) -> Baseline | None:
    """Compares a score with the best constant answer; returns None if all labels are equal.

    Fine-tuning on little data fails with some seeds: the model ends no better than one that gives
    the most frequent label (arXiv 2006.04884, section 3). So a run has failed if, on its dev set,

    1. all predictions are equal (numbers: scatter less than a hundredth of the labels), or
    2. its score does not exceed the score of the best constant answer: a frequent label or set of
       labels, the labels' mean, no entity (or the most frequent tag, if the tags have no "O"), no
       answer to any question. Entity F1 and a correlation are 0 then.

    ``["yes", "yes", "yes"]`` predicted for yes, no, yes → accuracy 2/3, constant 2/3, only "yes"

    `records` are the labelled records of the first dev split.
    """
    labels = [record["label"] for record in records]
    predictions = [record["prediction"] for record in records]
    constants: list[list[Any]]  # answers that may be the best, each for every record
    if isinstance(labels[0], float):
        several = np.std(labels) > 0
        flat = np.std(predictions) < FLAT * np.std(labels)
        only = f"{np.mean(predictions):.3g}" if flat else None
        constants = [[float(np.mean(labels))] * len(records)]
    else:
        known, found = (_counted(answers, records) for answers in (labels, predictions))
        several = len(known) > 1
        only = _spelled(json.loads(next(iter(found)))) if len(found) == 1 else None
        # The best one by accuracy is the most frequent, by F1 the positive label.
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
    """Returns the answers as JSON, sorted, with their numbers: one a record, or one a token."""
    if "tokens" in records[0]:
        answers = [tag for tags in answers for tag in tags]
    return Counter(sorted(json.dumps(answer, sort_keys=True) for answer in answers))


def _spelled(answer: Any) -> str:
    if isinstance(answer, list):
        return ", ".join(map(str, answer)) or "no label"
    return str(answer) or "no answer"
