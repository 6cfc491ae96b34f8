from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from bert_jax.tasks.squad import scores as squad_scores
from tests.tasks import reference_squad
from tests.tasks.squad_data import question, squad

WORDS = "a The an tower Tower's tower in 1889 U.S. a-b –a é ... the, than İ"
TEXT = st.lists(st.sampled_from([*WORDS.split(), "\n", "\u00a0"]), max_size=5).flatmap(
    lambda words: st.sampled_from([" ".join(words), "".join(words)])
)
ODDS = st.integers(-4, 4).map(lambda n: n / 2)  # with ties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  U.S. Army", "us army"),
        ("a an the", ""),
        ("another theatre", "another theatre"),
        ("–the–", "– –"),
        ("A.", ""),
        ("in\u00a01889", "in 1889"),
        ("it's", "its"),
    ],
)
def test_case_punctuation_and_articles_are_ignored(text: str, expected: str) -> None:
    assert squad_scores.normalize_answer(text) == expected
    assert reference_squad.bare(text) == expected


def _record(id: str, golds: list[str], text: str, odds: float, threshold: float) -> dict[str, Any]:
    answers = [{"text": gold, "start": 0} for gold in golds]
    nbest = [{"text": ""}, {"text": text}] if odds > 0 else [{"text": text}, {"text": ""}]
    return {
        "id": id,
        "label": answers,
        "prediction": "" if odds > threshold else text,
        "nbest": nbest,
        "null_score_difference": odds,
    }


@settings(deadline=None, max_examples=80)
@given(st.lists(st.tuples(st.lists(TEXT, min_size=1, max_size=3), TEXT), min_size=1, max_size=8))
def test_scores_1_1_equal_the_reference_exactly(
    pairs: list[tuple[list[str], str]],
) -> None:
    records = [_record(str(n), golds, text, 0, 0) for n, (golds, text) in enumerate(pairs)]
    dataset = squad(
        ("", [question(str(n), "", *((g, 0) for g in golds)) for n, (golds, _) in enumerate(pairs)])
    )
    predictions = {record["id"]: record["prediction"] for record in records}
    assert squad_scores.figures_1_1(records) == reference_squad.evaluate_1_1(dataset, predictions)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(st.lists(TEXT, max_size=3), TEXT.filter(bool), ODDS), min_size=1, max_size=12
    ),
    ODDS,
)
def test_scores_2_0_equal_the_reference_exactly(
    triples: list[tuple[list[str], str, float]], threshold: float
) -> None:
    records = [_record(str(n), *triple, threshold) for n, triple in enumerate(triples)]
    dataset = squad(
        ("", [question(str(n), "", *((g, 0) for g in t[0])) for n, t in enumerate(triples)])
    )
    predictions = {record["id"]: record["prediction"] for record in records}
    figures = squad_scores.figures_2_0(records)
    expected = reference_squad.evaluate_2_0(dataset, predictions)
    assert {key: figures[key] for key in expected} == expected
    texts = {str(n): text for n, (_, text, _) in enumerate(triples)}
    odds = {record["id"]: record["null_score_difference"] for record in records}
    best = reference_squad.best_thresholds(dataset, texts, odds)
    assert figures["best_exact"] == best["best_exact"]
    assert figures["best_f1"] == best["best_f1"]
    if best["best_f1"] > figures_of_no_answer(records):
        assert figures["null_threshold"] == best["best_f1_thresh"]
    else:
        assert figures["null_threshold"] < min(odds.values())


def figures_of_no_answer(records: list[dict[str, Any]]) -> float:
    return 100.0 * sum(not record["label"] for record in records) / len(records)
