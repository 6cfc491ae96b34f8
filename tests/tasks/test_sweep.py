import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bert_jax.config import parse_config
from bert_jax.tasks.scores import baseline_of, figures
from bert_jax.tasks.squad.scores import figures_2_0
from bert_jax.tasks.sweep_grid import (
    RunResult,
    SweepPoint,
    SweepSection,
    best_of,
    cells_of,
    points_of,
)
from bert_jax.tasks.tokens.entities import entity_scores
from tests.project import refuses


def result(
    score: float | None, *, seed: int = 0, rate: float = 1e-3, failed: bool = False
) -> RunResult:
    why = "predicts nothing but yes" if failed else None
    return RunResult(SweepPoint(seed, rate, 3), score, 10, {"accuracy": score or 0.0}, why, 1.5)


def test_a_grid_runs_every_combination() -> None:
    section = SweepSection(seeds=2, learning_rates=(2e-5, 5e-5), epochs=(2, 3))
    points = points_of(section, seed=7, learning_rate=1.0, epochs=9)
    assert [point.name for point in points] == [
        f"seed{seed}-lr{rate}-epochs{epochs}"
        for epochs in (2, 3)
        for rate in ("2e-05", "5e-05")
        for seed in (7, 8)
    ]


@pytest.mark.parametrize(
    ("sweep", "name", "key", "wanted"),
    [
        (
            {"learning_rates": [5e-5, 2e-5, 5e-5]},
            "learning_rates",
            "sweep.repeated_value",
            {"found": 5e-5},
        ),
        ({"seeds": 0}, "seeds", "setting.value", {"found": "0"}),
        ({"learning_rates": [0.0]}, "learning_rates.0", "setting.value", {"found": "0.0"}),
        ({"seed": 3}, "seed", "setting.unknown", {"hint": '; did you mean "seeds"?'}),
    ],
)
def test_an_invalid_sweep_is_one_line(
    sweep: dict[str, Any], name: str, key: str, wanted: dict[str, Any]
) -> None:
    task = {"kind": "table", "train": "t.csv", "text": "text", "label": "label"}
    values = {"finetune": {"init_from": "run", "task": task, "sweep": sweep}}
    with refuses(key, place=f"x.yaml: finetune.sweep.{name}", **wanted):
        parse_config(values, source="x.yaml")


def test_mean_and_deviation_equal_a_hand_computed_sample() -> None:
    # Mean 2.2/3, variance (0.0044 + 0.0278 + 0.0544) / 2.
    results = [result(0.8), result(0.9, seed=1), result(0.5, seed=2, failed=True)]
    (cell,) = cells_of(results)
    assert cell.every == pytest.approx((3, 2.2 / 3, math.sqrt(0.26 / 3 / 2)))
    assert cell.sound == pytest.approx((2, 0.85, math.sqrt(0.005)))
    assert (cell.least, cell.most, cell.best_seed, cell.degenerate) == (0.5, 0.9, 1, 1)


def test_an_interrupted_run_is_degenerate_and_not_averaged() -> None:
    (cell,) = cells_of([result(0.6), result(None, seed=1, failed=True)])
    assert (cell.runs, cell.degenerate) == (2, 1)
    assert cell.every == (1, 0.6, None)
    assert best_of([result(None, failed=True)]) is None


def test_the_best_run_has_the_largest_score_even_below_zero() -> None:
    assert best_of([result(-0.5), result(-0.1, seed=1), result(math.nan, seed=2)]) == result(
        -0.1, seed=1
    )


def family(metric: str, score: Any) -> Any:
    return SimpleNamespace(best_metric=metric, score=score, constant=None)


def records(labels: Sequence[Any], predictions: Sequence[Any], **more: Any) -> list[dict[str, Any]]:
    pairs = enumerate(zip(labels, predictions, strict=True))
    return [{"id": str(n), "label": y, "prediction": p, **more} for n, (y, p) in pairs]


CLASSES = family("accuracy", lambda found: figures(found, ("accuracy",)))
NUMBERS = family("spearman", lambda found: figures(found, ("spearman",)))


def degenerate(task: Any, found: list[dict[str, Any]]) -> str | None:
    baseline = baseline_of(task, found)
    return None if baseline is None else baseline.failure


def test_predicting_one_class_is_degenerate() -> None:
    matthews = family("matthews", lambda found: figures(found, ("matthews",)))
    found = records(["a", "b", "a"], ["a", "a", "a"])
    assert degenerate(matthews, found) == "predicts nothing but a"
    assert degenerate(CLASSES, found) == "predicts nothing but a"
    assert baseline_of(CLASSES, found) == ("accuracy", 2 / 3, 2 / 3, "a")


def test_scoring_like_the_majority_label_is_degenerate() -> None:
    labels = ["a", "a", "a", "b"]
    assert degenerate(CLASSES, records(labels, ["a", "a", "b", "b"])) == (
        "accuracy 0.750, best constant answer 0.750"
    )
    assert degenerate(CLASSES, records(labels, ["a", "a", "a", "b"])) is None


def test_the_best_constant_f1_is_the_positive_label() -> None:
    task = family("f1", lambda found: figures(found, ("f1",), positive="b"))
    found = records(["a", "a", "a", "b"], ["b", "b", "a", "b"])
    assert baseline_of(task, found) == ("f1", 0.5, 0.4, None)


def test_a_noisy_mean_regression_is_degenerate() -> None:
    labels = np.linspace(0, 5, 50).tolist()
    noise = np.random.default_rng(0).normal(2.5, 0.005, 50).tolist()
    assert degenerate(NUMBERS, records(labels, noise)) == "predicts nothing but 2.5"
    backwards = [5 - label for label in labels]
    assert "best constant answer" in (degenerate(NUMBERS, records(labels, backwards)) or "")
    assert degenerate(NUMBERS, records(labels, [0.1 * label for label in labels])) is None


def test_no_entity_found_is_degenerate() -> None:
    entities = family(
        "f1", lambda f: entity_scores([r["label"] for r in f], [r["prediction"] for r in f])
    )
    rest = ["O"] * 7
    tokens = {"tokens": ["Ann", "saw", "Bob", *["in", "a", "mill", "in", "a", "mill"], "."]}
    label = ["B-PER", "O", "B-PER", *rest]
    assert degenerate(entities, records([label], [["O"] * 10], **tokens)) == (
        "predicts nothing but O"
    )
    wrong = records([label], [["O", "B-PER", "O", *rest]], **tokens)
    # B-PER for every token: two of ten entities are right.
    assert degenerate(entities, wrong) == "f1 0.000, best constant answer 0.333"
    assert degenerate(entities, records([label], [["B-PER", "O", "O", *rest]], **tokens)) is None


def test_answers_that_score_like_none_are_degenerate() -> None:
    questions = family("f1", figures_2_0)
    more = {"nbest": [{"text": "the mill"}], "null_score_difference": 0.0, "context": "the mill"}
    labels = [[{"text": "the mill", "start": 0}], [], []]
    none = records(labels, ["", "", ""], **more)
    assert degenerate(questions, none) == "predicts nothing but no answer"
    # Two thirds: one wrong answer, or "no answer" to every question.
    wrong = records(labels, ["the mill", "the mill", ""], **more)
    assert degenerate(questions, wrong) == "f1 66.667, best constant answer 66.667"
    assert degenerate(questions, records(labels, ["the mill", "", ""], **more)) is None
