"""A cross-encoder from its table to a ranking, here and in sentence-transformers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import pytrec_eval
from huggingface_hub import constants
from sentence_transformers import CrossEncoder

import bert_jax
from bert_jax.config import parse_config
from bert_jax.train.metrics_writer import read_metrics
from tests.interop.hub_server import COMMIT, go_online, serve
from tests.interop.test_sentence_transformers import tensors
from tests.project import ok, refused, write_config
from tests.report.strict_html import read
from tests.tasks.rerank.data import candidates_of, lists, rerank_config, write_candidates
from tests.tasks.runs import FILLERS
from tests.tasks.search.data import pairs, write_jsonl, write_nano

pytestmark = pytest.mark.slow

PREFIX = "word3 "
TEACHER = ["finetune.task.loss.kind=kl", "finetune.task.teacher_score=scores"]
TREC = {
    "ndcg@10": "ndcg_cut_10",
    "mrr@10": "recip_rank",
    "recall@10": "recall_10",
    "map": "map",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rerank")
    values = rerank_config(directory, query_prefix=PREFIX)
    values["finetune"]["accumulation"] = 2
    ok("finetune", write_config(directory / "config.yaml", values))
    return directory / "tuned"


def texts(count: int, seed: int) -> list[tuple[str, str]]:
    """Returns pairs of 1 to 20 words; some exceed the limit of 16 pieces."""
    rng = np.random.default_rng(seed)
    made = (" ".join(rng.choice(FILLERS, rng.integers(1, 21))) for _ in range(2 * count))
    return list(zip(made, made, strict=False))


def records_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_learns_to_rerank_and_reports_it(trained: Path) -> None:
    found = [each["ndcg@10"] for each in read_metrics(trained) if each["kind"] == "validation"]
    assert found[-1] > found[0]
    assert found[-1] > 0.8
    ok("evaluate", trained)
    evaluation = json.loads((trained / "evaluation.json").read_text())
    assert evaluation["scores"]["ndcg@10"] == max(found)
    page = read((trained / "report.html").read_text()).text
    best = records_of(trained / "predictions" / "dev.jsonl")[0]
    assert best["prediction"][0] in page
    assert f"{best['scores'][0]:.3f}, was" in page


def test_scores_equal_sentence_transformers_both_ways(trained: Path, tmp_path: Path) -> None:
    exported, back = tmp_path / "exported", tmp_path / "back"
    assert "differ by at most 0" in ok("export", trained, exported)
    assert "pipeline_tag: text-ranking" in (exported / "README.md").read_text()
    asked = texts(500, 3)
    theirs = CrossEncoder(str(exported), device="cpu")
    expected = theirs.predict(asked)
    ok("import", exported, back)
    for source in (trained, exported, back):
        found = bert_jax.load(source).predict(asked)
        np.testing.assert_allclose([each["prediction"] for each in found], expected, atol=1e-5)
    ok("export", back, tmp_path / "again")
    assert tensors(tmp_path / "again") == tensors(exported)
    for name in ("config.json", "config_sentence_transformers.json", "modules.json"):
        assert (tmp_path / "again" / name).read_bytes() == (exported / name).read_bytes()
    query, documents = asked[0][0], [document for _, document in asked[:9]]
    ranking = bert_jax.load(back).rank(query, documents, top_k=4)
    reference = theirs.rank(query, documents, top_k=4)
    assert [each.document for each in ranking] == [each["corpus_id"] for each in reference]
    scores = [each["score"] for each in reference]
    np.testing.assert_allclose([each.score for each in ranking], scores, atol=1e-5)


def test_score_adds_scores_to_a_corpus_of_pairs(trained: Path, tmp_path: Path) -> None:
    asked = texts(20, 6)
    rows = [{"id": str(at), "q": query, "d": text} for at, (query, text) in enumerate(asked)]
    corpus = write_jsonl(tmp_path / "corpus" / "part.jsonl", rows)
    section = {"model": str(trained), "input": [str(corpus)], "output": str(tmp_path / "out")}
    section |= {"text": "q", "pair": "d"}
    ok("score", write_config(tmp_path / "score.yaml", {"score": section}))
    (part,) = (tmp_path / "out").rglob("*.parquet")
    expected = [each["prediction"] for each in bert_jax.load(trained).predict(asked)]
    np.testing.assert_allclose(pq.read_table(part)["score"].to_pylist(), expected, atol=1e-5)


@pytest.mark.parametrize("activation", ["Sigmoid", "Identity"])
def test_a_model_that_they_saved_is_imported(
    trained: Path, tmp_path: Path, activation: str
) -> None:
    """Version 6 saves settings of its own, versions 4 and 5 save them in config.json."""
    import torch

    ok("export", trained, tmp_path / "exported")
    model = CrossEncoder(
        str(tmp_path / "exported"), device="cpu", activation_fn=getattr(torch.nn, activation)()
    )
    expected = model.predict(texts(20, 4))
    saved = tmp_path / "saved"
    model.save_pretrained(str(saved), create_model_card=False)
    found = [bert_jax.load(saved)]
    config = json.loads((saved / "config.json").read_text())
    name = config.pop("sentence_transformers", {}) and model.activation_fn.__class__
    config["sentence_transformers"] = {"activation_fn": f"{name.__module__}.{name.__name__}"}
    (saved / "config.json").write_text(json.dumps(config))
    older = ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json")
    prompts = {file: (saved / file).rename(tmp_path / file) for file in older}
    assert prompts
    found.append(bert_jax.load(saved))
    for each, prefix in zip(found, ("", PREFIX), strict=True):
        rows = [(prefix + query, document) for query, document in texts(20, 4)]
        scores = [record["prediction"] for record in each.predict(rows)]
        np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_candidates_of_directories_are_reranked(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dev set has BEIR's layout, the same test set NanoBEIR's, in a dataset on a hub."""
    rows = pairs(12, 5)
    write_nano(tmp_path / "nano", rows, candidates_of(rows))
    config = yaml_of(trained)
    config["finetune"]["task"]["dev"] = str(write_candidates(tmp_path / "beir", rows))
    config["finetune"]["task"]["test"] = "hf://datasets/someone/nano/NanoMade"
    config["finetune"] |= {"epochs": 1, "init_from": str(trained)}
    config["run_dir"] = str(tmp_path / "again")
    with serve({"datasets/someone/nano": tmp_path / "nano"}) as hub:
        go_online(hub, monkeypatch, tmp_path / "cache", "hf_token")
        outcome = bert_jax.finetune(parse_config(config))
    record = json.loads((tmp_path / "again" / "provenance.json").read_text())["files"]["test"]
    assert record["hub"] == f"hf://datasets/someone/nano@{COMMIT}/NanoMade"
    # From here on, the server is down.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    ok("predict", tmp_path / "again", tmp_path / "p.jsonl")
    records = records_of(tmp_path / "p.jsonl")
    assert [len(each["prediction"]) for each in records] == [5] * 12
    judged = {f"q{at}": {f"p{at}": 1} for at in range(12)}
    run = {
        each["id"]: dict(zip(each["prediction"], each["scores"], strict=True)) for each in records
    }
    evaluator = pytrec_eval.RelevanceEvaluator(judged, {*TREC.values()})
    by_query = evaluator.evaluate(run).values()
    expected = {ours: np.mean([each[name] for each in by_query]) for ours, name in TREC.items()}
    found = bert_jax.evaluate(tmp_path / "again", split="test").scores
    assert found == pytest.approx(expected, abs=1e-9)
    assert outcome.scores == pytest.approx(expected, abs=1e-9)
    said = ok("predict", trained, tmp_path / "other.jsonl", "--input", tmp_path / "nano/NanoOther")
    assert "ndcg@10" in said
    assert len(records_of(tmp_path / "other.jsonl")) == 12


def yaml_of(run: Path) -> dict[str, Any]:
    import yaml

    values = yaml.safe_load((run / "config.yaml").read_text())
    return {name: values[name] for name in ("seed", "run_dir", "finetune")}


def test_pairs_and_negatives_in_memory(trained: Path, tmp_path: Path) -> None:
    """Graded labels, columns of negatives, and a teacher's margins; the dev set is held out."""
    rows = pairs(96, 7)
    single = [
        {"query": row["question"], "document": row[name], "label": grade}
        for row in rows
        for name, grade in (("answer", 2), ("wrong", 1), ("similar", 0))
    ]
    tables: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
        "single": (
            single,
            {"document": "document", "label": "label", "label_range": [0, 2]},
        ),
        "negatives": (
            [{"query": row["question"], **row} for row in rows],
            {"document": "answer", "negatives": ["wrong", "similar"]},
        ),
        "margins": (
            [{"query": row["question"], "m1": 3, "m2": 2.5, **row} for row in rows],
            {
                "document": "answer",
                "negatives": ["wrong", "similar"],
                "teacher_score": ["m1", "m2"],
                "loss": {"kind": "margin_mse"},
            },
        ),
    }
    for name, (table, task) in tables.items():
        finetune: dict[str, Any] = {
            "init_from": str(trained),
            "task": {"kind": "rerank", "query": "query", **task},
            "max_length": 16,
            "epochs": 1,
        }
        values = {"run_dir": str(tmp_path / name), "finetune": finetune}
        outcome = bert_jax.finetune(parse_config(values), data={"train": table})
        assert outcome.scores is not None
        assert outcome.scores["ndcg@10"] > 0.5
    path = write_jsonl(tmp_path / "rows.jsonl", single[:30])
    said = ok("predict", tmp_path / "single", tmp_path / "p.jsonl", "--input", path)
    assert "ndcg@10" in said
    records = records_of(tmp_path / "p.jsonl")
    model = bert_jax.load(tmp_path / "single")
    assert model.heads.cross_encoder is not None
    assert model.heads.cross_encoder.query_prefix == PREFIX
    found = model.predict([(row["query"], row["document"]) for row in single[:30]])
    scores = [each["prediction"] for each in found]
    np.testing.assert_allclose([each["prediction"] for each in records], scores, atol=1e-6)


def test_a_teacher_with_long_lists(tmp_path: Path) -> None:
    """Of 12 candidates, training reads 4. Two rows contradict each other, and the last counts."""
    rows = lists(160, 8)
    for number, row in enumerate(rows):
        others = [f"{FILLERS[number % 40]} {word}" for word in FILLERS[:9]]
        row["documents"] = others + row["documents"]
        row["scores"] = [-3.0] * len(others) + [4.0 * label for label in row.pop("labels")]
    rows += [rows[0] | {"scores": [1.0] * len(rows[0]["scores"])}]
    values = rerank_config(
        tmp_path,
        train=str(write_jsonl(tmp_path / "scored.jsonl", rows)),
        teacher_score="scores",
        loss={"kind": "kl", "teacher_temperature": 2.0},
        candidates_per_query=4,
    )
    said = ok("finetune", write_config(tmp_path / "config.yaml", values))
    assert "train: 160 of 160 queries have more than 4 candidates" in said
    assert "train: 11 documents have another label in a later row" in said
    run = tmp_path / "tuned"
    found = [each["ndcg@10"] for each in read_metrics(run) if each["kind"] == "validation"]
    assert max(found) > 0.8


@pytest.mark.parametrize(
    ("overrides", "key", "place"),
    [
        (["finetune.task.document=Documents"], "table.column_unknown", "task.document"),
        (["finetune.task.label=null"], "rerank.label_needed", "finetune.task.label"),
        (["finetune.task.loss.kind=kl"], "rerank.no_teacher", "task.teacher_score"),
        (["finetune.task.teacher_score=labels"], "setting.same_column", "task.teacher_score.0"),
        (["finetune.task.teacher_score=x"], "setting.ignored", "task.teacher_score"),
        (
            ["finetune.task.loss.kind=bce", "finetune.task.candidates_per_query=8"],
            "setting.ignored",
            "task.candidates_per_query",
        ),
        (
            [*TEACHER, "finetune.task.label=null", "finetune.task.dev=null"],
            "rerank.label_needed",
            "task.label",
        ),
        (
            [*TEACHER, "finetune.task.label=null", "finetune.task.train={scored}"],
            "rerank.no_dev_labels",
            "task.label",
        ),
        ([*TEACHER, "finetune.task.dev=null"], "table.column_unknown", "task.teacher_score"),
        (["finetune.task.train={twice}"], "rerank.document_twice", "{twice}: line 1"),
        (
            ["finetune.task.loss.kind=bce", "finetune.task.train={graded}"],
            "rerank.label",
            "{graded}",
        ),
        (
            ["finetune.task.loss.kind=bce", "finetune.task.label_range=[0, 0.5]"],
            "rerank.label_outside",
            "train.jsonl: line 1",
        ),
        (["finetune.task.dev={alone}"], "rerank.dev_undecided", "task.dev"),
        (["finetune.task.dev={nano}/NanoMud"], "search.no_set", "{nano}/NanoMud"),
        (["finetune.task.dev={beir}"], "file.missing", "{beir}/candidates/dev.tsv"),
        (["finetune.distill_from=x"], "finetune.distill_embedding", "finetune.distill_from"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_the_command_names_what_is_wrong(
    tmp_path: Path, overrides: list[str], key: str, place: str
) -> None:
    beir = write_candidates(tmp_path / "beir", pairs(6, 1))
    (beir / "candidates" / "dev.tsv").unlink()
    alone = [row | {"documents": row["documents"][:1], "labels": [1]} for row in lists(4, 1)]
    graded = [row | {"labels": ["good", "bad"]} for row in lists(4, 1)]
    twice = [row | {"documents": [row["documents"][0]] * len(row["labels"])} for row in lists(4, 1)]
    scored = [row | {"scores": row["labels"]} for row in lists(4, 1)]
    nano = write_nano(tmp_path / "nano", pairs(6, 1), [[0]] * 6)
    paths = {
        "nano": str(nano.parent),
        "scored": str(write_jsonl(tmp_path / "scored.jsonl", scored)),
        "twice": str(write_jsonl(tmp_path / "twice.jsonl", twice)),
        "beir": str(beir),
        "alone": str(write_jsonl(tmp_path / "alone.jsonl", alone)),
        "graded": str(write_jsonl(tmp_path / "graded.jsonl", graded)),
    }
    config = write_config(tmp_path / "config.yaml", rerank_config(tmp_path))
    found = [override.format(**paths) for override in overrides]
    line = refused("finetune", config, f"run_dir={tmp_path}/new", *found)
    assert (line.key, place.format(**paths) in line) == (key, True)
    assert not (tmp_path / "new").exists()
