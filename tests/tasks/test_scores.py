"""Compares scores with scikit-learn, SciPy and fractions computed by hand."""

import math
import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics

from bert_jax.tasks import scores

# Of four "yes", three are predicted as "yes"; of two "no", one is.
#            tp     tp     tp     fn    fp     tn
LABELS = ["yes", "yes", "yes", "yes", "no", "no"]
FOUND = ["yes", "yes", "yes", "no", "yes", "no"]


def close(found: float, expected: Fraction | float) -> None:
    assert math.isclose(found, expected, rel_tol=1e-12, abs_tol=1e-12), (found, expected)


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (LABELS, ["yes"] * 6),
        (["no"] * 6, FOUND),
        (["no"] * 6, ["no"] * 6),
        (["no"] * 6, ["yes"] * 6),
        (["no"], ["yes"]),
    ],
)
def test_matthews_of_a_constant_is_0_without_a_warning(labels: list[str], found: list[str]) -> None:
    assert scores.label_figure("matthews", labels, found) == 0.0


@pytest.mark.parametrize("key", ["pearson", "spearman"])
def test_correlation_of_a_constant_is_0_without_a_warning(key: str) -> None:
    assert scores.number_figure(key, [1.0, 2.0, 3.0], [2.5, 2.5, 2.5]) == 0.0
    assert scores.number_figure(key, [2.5, 2.5, 2.5], [1.0, 2.0, 3.0]) == 0.0
    assert scores.number_figure(key, [1.0], [2.0]) == 0.0
    nearly = [1.0, 1.0 + 1e-15, 1.0]
    assert -1.0 <= scores.number_figure(key, [1.0, 2.0, 3.0], nearly) <= 1.0


def test_scores_of_several_labels() -> None:
    labels = [["a", "b"], ["b"], [], ["c"]]
    found = [["a"], ["b"], ["b"], ["a", "c"]]
    a = Fraction(2 * 1, 2 * 1 + 1 + 0)
    b = Fraction(2 * 1, 2 * 1 + 1 + 1)
    c = Fraction(1)
    figures = scores.multi_label_figures(labels, found)
    close(figures["micro_f1"], Fraction(2 * 3, 2 * 3 + 2 + 1))
    close(figures["macro_f1"], (a + b + c) / 3)
    close(figures["subset_accuracy"], Fraction(1, 4))


def test_one_of_several_labels_is_not_a_binary_label() -> None:
    figures = scores.multi_label_figures([["a"], [], []], [["a"], ["a"], []])
    # tp 1, fp 1. The third example is correctly empty: it counts only in `subset_accuracy`.
    close(figures["micro_f1"], Fraction(2 * 1, 2 * 1 + 1))
    close(figures["macro_f1"], Fraction(2 * 1, 2 * 1 + 1))
    close(figures["subset_accuracy"], Fraction(2, 3))


def test_f1_of_several_labels_without_matches_is_0() -> None:
    figures = scores.multi_label_figures([[], []], [[], []])
    assert figures == {"micro_f1": 0.0, "macro_f1": 0.0, "subset_accuracy": 1.0}


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1))
def test_scores_of_classes_equal_scikit_learns(pairs: list[tuple[str, str]]) -> None:
    labels, found = zip(*pairs, strict=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = (
            metrics.accuracy_score(labels, found),
            metrics.f1_score(labels, found, labels=["a"], average="macro"),
            metrics.f1_score(labels, found, average="macro"),
            metrics.matthews_corrcoef(labels, found),
        )
    close(scores.label_figure("accuracy", labels, found), expected[0])
    close(scores.label_figure("f1", labels, found, "a"), expected[1])
    close(scores.label_figure("macro_f1", labels, found), expected[2])
    close(scores.label_figure("matthews", labels, found), expected[3])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=3))
def test_scores_of_numbers_equal_scipys(pairs: list[tuple[int, int]]) -> None:
    labels, found = (list(map(float, side)) for side in zip(*pairs, strict=True))
    close(scores.number_figure("mse", labels, found), metrics.mean_squared_error(labels, found))
    assume(len(set(labels)) > 1 < len(set(found)))
    close(scores.number_figure("pearson", labels, found), np.corrcoef(labels, found)[0, 1])
    close(
        scores.number_figure("spearman", labels, found),
        np.corrcoef(*map(stats.rankdata, (labels, found)))[0, 1],
    )
