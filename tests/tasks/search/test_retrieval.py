"""Figures of a retrieval equal trec_eval's."""

from pathlib import Path

import numpy as np
import pytest
import pytrec_eval

from bert_jax.inference.comparison import comparison_of
from bert_jax.model.text_head import PoolingSection
from bert_jax.tasks.search.directory import read_retrieval
from bert_jax.tasks.search.retrieval import (
    CUTOFF,
    FIGURES,
    RECALLED,
    Retrieval,
    rank,
    retrieval_figures,
)
from tests.tasks.search.data import write_beir, write_qrels

QUERIES, PASSAGES, WIDTH = 30, 150, 4
BY_PRODUCT = comparison_of(PoolingSection(similarity="dot"))
TREC = {"ndcg@10": "ndcg_cut_10", "mrr": "recip_rank"}
MEASURES = {"ndcg_cut.10", "recip_rank", f"recall.{','.join(map(str, RECALLED))}"}
TREC |= {f"recall@{k}": f"recall_{k}" for k in RECALLED}


def retrieval_with_ties() -> tuple[Retrieval, np.ndarray, np.ndarray]:
    """Returns a retrieval with grades from −1 to 3. Vectors of small integers have equal products.

    Ids of some passages are ids of queries.
    """
    rng = np.random.default_rng(0)
    passages = [f"p{number}" for number in rng.permutation(PASSAGES - 5)]
    passages += [f"q{number}" for number in range(5)]
    relevance = {}
    for query in range(QUERIES):
        judged = rng.choice(passages, rng.integers(3, 40), replace=False)
        grades = {str(each): int(rng.integers(-1, 4)) for each in judged if each != f"q{query}"}
        relevance[f"q{query}"] = grades | {"p7": 2}
    data = Retrieval(
        {query: "a question" for query in relevance}, dict.fromkeys(passages, "text"), relevance
    )
    vectors = rng.integers(-2, 3, (QUERIES + PASSAGES, WIDTH)).astype(np.float32)
    return data, vectors[:QUERIES], vectors[QUERIES:]


def test_figures_equal_trec_eval() -> None:
    data, queries, passages = retrieval_with_ties()
    records = rank(data, queries, passages, comparison=BY_PRODUCT)
    products = queries @ passages.T
    run = {
        query: {
            passage: float(score)
            for passage, score in zip(data.passages, scores, strict=True)
            if passage != query
        }
        for query, scores in zip(data.queries, products, strict=True)
    }
    evaluator = pytrec_eval.RelevanceEvaluator(
        {query: dict(grades) for query, grades in data.relevance.items()}, MEASURES
    )
    by_query = evaluator.evaluate(run)
    for record in records:
        found = retrieval_figures([record])
        expected = {name: by_query[record["id"]][TREC[name]] for name in FIGURES}
        assert found == pytest.approx(expected, abs=1e-9)
    assert retrieval_figures(records) == pytest.approx(
        {name: np.mean([each[TREC[name]] for each in by_query.values()]) for name in FIGURES}
    )


def test_judgements_of_passages_outside_the_corpus_count_as_in_trec_eval(tmp_path: Path) -> None:
    beir = write_beir(tmp_path, [{"question": f"w{n}", "answer": f"w{n} x"} for n in range(5)])
    judged = [("q0", "p0", 1), ("q0", "p9", 2), ("q1", "p9", 1), ("q2", "p2", 0), ("q3", "p1", 1)]
    write_qrels(beir, [*judged, ("q9", "p0", 1)])
    data, notes = read_retrieval(str(beir), "dev")
    assert list(data.queries) == ["q0", "q1", "q2", "q3"]
    assert [note.split(": ")[1].split(" ")[0] for note in notes] == ["1", "2", "2"]
    queries = np.eye(4, 5, dtype=np.float32)
    passages = np.eye(5, dtype=np.float32) + np.linspace(0, 0.5, 5, dtype=np.float32)
    records = rank(data, queries, passages, comparison=BY_PRODUCT)
    scores = (queries @ passages.T).tolist()
    run = {
        query: dict(zip(data.passages, found, strict=True))
        for query, found in zip(data.queries, scores, strict=True)
    }
    qrels = {query: dict(grades) for query, grades in data.relevance.items()}
    by_query = pytrec_eval.RelevanceEvaluator(qrels, MEASURES).evaluate(run)
    assert retrieval_figures(records) == pytest.approx(
        {name: np.mean([each[TREC[name]] for each in by_query.values()]) for name in FIGURES}
    )


def test_records_list_the_best_passages() -> None:
    """Of equal products, the larger id is first. A passage with the query's id is left out."""
    data, queries, passages = retrieval_with_ties()
    for number, record in enumerate(rank(data, queries, passages, comparison=BY_PRODUCT)):
        products = dict(zip(data.passages, (passages @ queries[number]).tolist(), strict=True))
        products.pop(record["id"], None)
        ordered = sorted(products, key=lambda each: (products[each], each), reverse=True)
        assert record["prediction"] == ordered[:CUTOFF]
        assert record["scores"] == [products[each] for each in ordered[:CUTOFF]]
        relevant = {each for each, grade in data.relevance[record["id"]].items() if grade > 0}
        assert record["ranks"] == {each: ordered.index(each) + 1 for each in relevant}
