"""Every figure against one worked by hand in fractions."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.tasks import scores

# Six answers of two kinds: of four that are "yes" three are found; one "no" is taken for "yes".
#            tp     tp     tp     fn    fp     tn
LABELS = ["yes", "yes", "yes", "yes", "no", "no"]
FOUND = ["yes", "yes", "yes", "no", "yes", "no"]

# And of three kinds.
#         a right 1 of 2, b right 2 of 2, c right 0 of 1
THREE = ["a", "a", "b", "b", "c"]
THREE_FOUND = ["a", "b", "b", "b", "a"]


def close(found: float, expected: Fraction | float) -> None:
    assert math.isclose(found, expected, rel_tol=1e-12, abs_tol=1e-12), (found, expected)


def test_accuracy() -> None:
    close(scores.accuracy(LABELS, FOUND), Fraction(4, 6))
    close(scores.accuracy(THREE, THREE_FOUND), Fraction(3, 5))


def test_f1_is_of_the_positive_label() -> None:
    precision, recall = Fraction(3, 4), Fraction(3, 4)
    expected = 2 * precision * recall / (precision + recall)
    close(scores.f1(LABELS, FOUND, positive="yes"), expected)
    # tp 1, fp 1, fn 1
    close(scores.f1(LABELS, FOUND, positive="no"), Fraction(2 * 1, 2 * 1 + 1 + 1))
    close(scores.f1(["no", "no"], ["no", "no"], positive="yes"), 0.0)


def test_macro_f1_is_the_mean_over_the_labels_that_occur() -> None:
    a = Fraction(2 * 1, 2 * 1 + 1 + 1)  # tp 1, fp 1 (the c), fn 1
    b = Fraction(2 * 2, 2 * 2 + 1 + 0)  # tp 2, fp 1, fn 0
    c = Fraction(0)  # fn 1
    close(scores.macro_f1(THREE, THREE_FOUND), (a + b + c) / 3)


def test_matthews_of_two_labels() -> None:
    tp, fn, fp, tn = 3, 1, 1, 1
    below = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    close(scores.matthews(LABELS, FOUND), (tp * tn - fp * fn) / math.sqrt(below))


def test_matthews_of_three_labels() -> None:
    # Gorodkin: (c·s − Σ pₖtₖ) / √((s² − Σ pₖ²)(s² − Σ tₖ²)), c right of s, pₖ predicted, tₖ there.
    right, total = 3, 5
    predicted, there = (2, 3, 0), (2, 2, 1)
    above = right * total - sum(p * t for p, t in zip(predicted, there, strict=True))
    below = (total**2 - sum(p * p for p in predicted)) * (total**2 - sum(t * t for t in there))
    close(scores.matthews(THREE, THREE_FOUND), above / math.sqrt(below))


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
    assert scores.matthews(labels, found) == 0.0


X, Y = (1.0, 2.0, 3.0, 5.0), (2.0, 1.0, 4.0, 9.0)


def test_pearson() -> None:
    x, y = [Fraction(value) for value in X], [Fraction(value) for value in Y]
    mean_x, mean_y = sum(x) / 4, sum(y) / 4
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    below = sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y)
    close(scores.pearson(X, Y), float(above) / math.sqrt(below))


def test_spearman() -> None:
    # Ranks 1 2 3 4 and 2 1 3 4: 1 − 6·Σd² / (n(n² − 1)), d = 1, 1, 0, 0
    close(scores.spearman(X, Y), 1 - Fraction(6 * 2, 4 * 15))


def test_spearman_gives_equals_their_mean_rank() -> None:
    # Ranks 1.5 1.5 3 and 1 2 3: covariance 1.5, variances 1.5 and 2
    close(scores.spearman([7, 7, 9], [1, 2, 3]), 1.5 / math.sqrt(1.5 * 2))


def test_mean_squared_error() -> None:
    close(scores.mean_squared_error(X, Y), Fraction(1 + 1 + 1 + 16, 4))


@pytest.mark.parametrize("function", [scores.pearson, scores.spearman])
def test_correlation_of_a_constant_is_0_without_a_warning(
    function: Callable[[Sequence[float], Sequence[float]], float],
) -> None:
    assert function([1.0, 2.0, 3.0], [2.5, 2.5, 2.5]) == 0.0
    assert function([2.5, 2.5, 2.5], [1.0, 2.0, 3.0]) == 0.0
    assert function([1.0], [2.0]) == 0.0
    nearly = [1.0, 1.0 + 1e-15, 1.0]
    assert -1.0 <= function([1.0, 2.0, 3.0], nearly) <= 1.0


def test_a_column_against_a_row_is_refused_and_not_broadcast() -> None:
    rng = np.random.default_rng(0)
    labels = rng.uniform(0, 5, 32)
    column = (labels + rng.normal(0, 0.1, 32))[:, None]
    # What it would have been: errors of every answer against every label.
    assert np.square(labels - column).mean() > 1
    for function in (scores.pearson, scores.spearman, scores.mean_squared_error):
        with pytest.raises(ValueError, match=r"found shape \(32, 1\), allowed: \(32,\)"):
            function(labels.tolist(), column.tolist())
        with pytest.raises(ValueError, match="found shape"):
            function(labels.tolist(), column[:31, 0].tolist())
        assert np.isfinite(function(labels.tolist(), column[:, 0].tolist()))


def test_figures_of_several_labels() -> None:
    labels = [["a", "b"], ["b"], [], ["c"]]
    found = [["a"], ["b"], ["b"], ["a", "c"]]
    a = Fraction(2 * 1, 2 * 1 + 1 + 0)
    b = Fraction(2 * 1, 2 * 1 + 1 + 1)
    c = Fraction(1)
    figures = scores.multi_label_figures(labels, found)
    close(figures["micro_f1"], Fraction(2 * 3, 2 * 3 + 2 + 1))
    close(figures["macro_f1"], (a + b + c) / 3)
    close(figures["subset_accuracy"], Fraction(1, 4))


def test_a_single_name_among_several_labels_is_no_yes_or_no() -> None:
    figures = scores.multi_label_figures([["a"], [], []], [["a"], ["a"], []])
    # tp 1, fp 1; the third, rightly empty, counts in the exact ones alone.
    close(figures["micro_f1"], Fraction(2 * 1, 2 * 1 + 1))
    close(figures["macro_f1"], Fraction(2 * 1, 2 * 1 + 1))
    close(figures["subset_accuracy"], Fraction(2, 3))


def test_nothing_of_several_labels_right_or_found_is_0() -> None:
    figures = scores.multi_label_figures([[], []], [[], []])
    assert figures == {"micro_f1": 0.0, "macro_f1": 0.0, "subset_accuracy": 1.0}


def test_figures_are_of_records_alone() -> None:
    records = [
        {"label": label, "prediction": found} for label, found in zip(LABELS, FOUND, strict=True)
    ]
    found = scores.figures(records, ("f1", "accuracy"), positive="yes")
    assert list(found) == ["f1", "accuracy"]
    close(found["f1"], Fraction(3, 4))
    numbers = [{"label": x, "prediction": y} for x, y in zip(X, Y, strict=True)]
    assert set(scores.figures(numbers, ("spearman", "mse"))) == {"spearman", "mse"}
    several = [{"label": ["a"], "prediction": ["a"]}]
    assert scores.figures(several, ("micro_f1",)) == {"micro_f1": 1.0}


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abc")), min_size=1))
def test_figures_do_not_depend_on_the_order_of_examples(pairs: list[tuple[str, str]]) -> None:
    records = [{"label": label, "prediction": found} for label, found in pairs]
    keys = ("accuracy", "macro_f1", "matthews", "f1")
    forward = scores.figures(records, keys, positive="a")
    assert forward == pytest.approx(scores.figures(records[::-1], keys, positive="a"))
    assert all(-1 <= value <= 1 for value in forward.values())
