"""Runs of sentence embeddings: training, evaluation, predictions, vectors."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from transformers import AutoModel, AutoTokenizer

import bert_jax
from bert_jax.config import parse_config
from bert_jax.train.metrics_writer import read_metrics
from tests.project import ok, refused, says, write_config
from tests.report.strict_html import Document, items, read, words
from tests.tasks.search.data import embedding_config, pairs, write_beir, write_jsonl, write_nano

pytestmark = pytest.mark.slow

TEXTS = ["word1 word2 good1", "word3", "bad1 word7 word8 word9 word1"]
GROUPS = ("first texts", "second texts")
PREFIXES = {"query_prefix": "word30 ", "passage_prefix": "word31 "}


class Trained(NamedTuple):
    directory: Path
    config: Path
    said: str

    @property
    def run(self) -> Path:
        return self.directory / "tuned"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run on triplets in two chunks, with a learned temperature; its dev set has no scores."""
    directory = tmp_path_factory.mktemp("embedding")
    changes = {
        "negatives": ["wrong"],
        "loss": {"learn_temperature": True, "symmetric": True, "matryoshka": [64, 16]},
        **PREFIXES,
    }
    values = embedding_config(directory, **changes)
    values["finetune"]["accumulation"] = 2
    config = write_config(directory / "config.yaml", values)
    return Trained(directory, config, ok("finetune", config))


def test_a_run_learns_and_is_evaluated_again(trained: Trained) -> None:
    metrics = read_metrics(trained.run)
    found = [each["ndcg@10"] for each in metrics if each["kind"] == "validation"]
    assert found[-1] > found[0] > 0.2
    *_, last = (each for each in metrics if each["kind"] == "train")
    assert last["temperature"] != pytest.approx(0.05, rel=1e-3)
    evaluation = json.loads((trained.run / "evaluation.json").read_text())
    assert evaluation["scores"]["ndcg@10"] == max(found)
    # One order of the 40 passages for all queries: each has another rank.
    constant = sum(1 / math.log2(rank + 1) for rank in range(1, 11)) / 40
    assert evaluation["constant_score"] == pytest.approx(constant)
    ok("evaluate", trained.run)
    assert evaluation == json.loads((trained.run / "evaluation.json").read_text())
    heads = yaml.safe_load((trained.run / "config.yaml").read_text())["model"]["heads"]
    assert heads["embedding"] == {
        "pool": "mean",
        "normalize": True,
        "projection": None,
        "dimensions": None,
        "similarity": None,
        "temperature": 0.05,
        "default_prefix": "",
        "max_length": None,
        **PREFIXES,
    }


def report_of(run: Path) -> tuple[Document, dict[str, Any]]:
    """Returns the report, and the specifications of its charts by title."""
    document = read((run / "report.html").read_text())
    charts = {
        words(figure[0]): json.loads(figure[2].text or "")
        for figure in document.root.iter("figure")
    }
    return document, charts


def test_the_report_shows_neighbours_cosines_and_a_map(trained: Trained) -> None:
    """The figures equal a computation with `encode` on the dev set: 40 queries, 80 passages."""
    document, charts = report_of(trained.run)
    rows, model = pairs(40, 2), bert_jax.load(trained.run)
    queries = model.encode([row["question"] for row in rows], prompt="query")
    answers = model.encode([row["answer"] for row in rows], prompt="passage")
    (cosines,) = (spec for title, spec in charts.items() if title == "Cosines")
    assert cosines["encoding"]["color"]["scale"]["domain"] == ["texts that fit", "random texts"]
    bars = [bar for bar in cosines["data"]["values"] if bar["group"] == "texts that fit"]
    edges = [bar["x"] for bar in bars]
    counts, _ = np.histogram((queries * answers).sum(1), [*edges[:-1], 1.1])
    found = 40 * np.asarray([bar["share"] for bar in bars[:-1]])
    assert np.abs(np.cumsum(found) - np.cumsum(counts)).max() < 1.01  # rounding moves one at most
    (name,) = (title for title in charts if title.startswith("Map of the vectors"))
    points = charts[name]["layer"][1]["data"]["values"]
    groups = {group: sum(each["group"] == group for each in points) for group in GROUPS}
    assert groups == {"first texts": 40, "second texts": 80}
    listed = items(document.root)
    assert len(listed) == 14  # every third of 40
    best = json.loads((trained.run / "predictions" / "dev.jsonl").read_text().splitlines()[0])
    assert listed[0].startswith(best["text"])
    assert f"{best['prediction'][0]} {best['scores'][0]:.3f}" in listed[0]


def test_vectors_equal_transformers(trained: Trained, tmp_path: Path) -> None:
    """`encode` and `features` pool as trained, without further settings."""
    exported = tmp_path / "exported"
    ok("export", trained.run, exported, "--to", "hf")
    tokenizer = AutoTokenizer.from_pretrained(exported)
    torch_model = AutoModel.from_pretrained(exported).eval()
    inputs = tokenizer([PREFIXES["query_prefix"] + text for text in TEXTS], padding=True)
    tensors = {name: torch.tensor(ids) for name, ids in inputs.items()}
    with torch.no_grad():
        states = torch_model(**tensors).last_hidden_state
    mask = tensors["attention_mask"][..., None]
    means = (states * mask).sum(1) / mask.sum(1)
    expected = torch.nn.functional.normalize(means, dim=-1).numpy()
    model = bert_jax.load(trained.run)
    np.testing.assert_allclose(model.encode(TEXTS, prompt="query"), expected, atol=1e-5)
    assert model.encode(TEXTS, layers="last", pool="mean").shape == expected.shape
    lines = (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    assert lines
    said = ok("features", trained.run, tmp_path / "texts.txt", tmp_path / "v.npz", "--prompt=query")
    assert "trained pooling" in said
    assert "without the prefix" not in said
    bare = ok("features", trained.run, tmp_path / "texts.txt", tmp_path / "bare.npz")
    assert "without the prefix that --prompt query or --prompt passage adds" in bare
    np.testing.assert_allclose(np.load(tmp_path / "v.npz")["vectors"], expected, atol=1e-5)


def test_predictions_are_cosines_or_rankings(trained: Trained, tmp_path: Path) -> None:
    rows = pairs(6, 9)
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    ok("predict", trained.run, tmp_path / "p.jsonl", "--input", path)
    records = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    model = bert_jax.load(trained.run)
    queries = model.encode([row["question"] for row in rows], prompt="query")
    passages = model.encode([row["answer"] for row in rows], prompt="passage")
    expected = (queries * passages).sum(axis=1)
    np.testing.assert_allclose([each["prediction"] for each in records], expected, atol=1e-5)
    best = np.argsort(-passages @ queries[0])[:3].tolist()
    ranking = model.rank(rows[0]["question"], [row["answer"] for row in rows], top_k=3)
    assert [each.document for each in ranking] == best
    theirs = model.similarity(
        [row["question"] for row in rows], {"text": [row["answer"] for row in rows]}
    )
    np.testing.assert_allclose(theirs, queries @ passages.T, atol=1e-5)
    nano = write_nano(tmp_path / "nano", rows, [])
    assert "ndcg@10" in ok("predict", trained.run, tmp_path / "n.jsonl", "--input", nano)
    ranked = [json.loads(line) for line in (tmp_path / "n.jsonl").read_text().splitlines()]
    orders = [[f"p{at}" for at in order] for order in np.argsort(-theirs, axis=1)]
    assert [each["prediction"] for each in ranked] == orders
    assert [each["id"] for each in records] == [row["id"] for row in rows]
    found = model.predict([(row["question"], row["answer"]) for row in rows])
    np.testing.assert_allclose([each["prediction"] for each in found], expected, atol=1e-5)


def test_scored_pairs_in_memory_continue_a_run(trained: Trained, tmp_path: Path) -> None:
    """The second run keeps the prefixes and the pooling of the first. Its dev set is held out."""
    frame = pd.DataFrame(pairs(96, 7))
    task = {
        "kind": "embedding",
        "anchor": "question",
        "positive": "similar",
        "score": "rating",
        "score_range": [1, 4],
        "loss": {"kind": "cosent"},
        "projection": 16,
    }
    finetune: dict[str, Any] = {
        "init_from": str(trained.run),
        "task": task,
        "max_length": 8,
        "batch_size": 32,
        "epochs": 1,
        "optimizer": {"learning_rate": 1e-3},
    }
    values = {"run_dir": str(tmp_path / "scored"), "finetune": finetune}
    outcome = bert_jax.finetune(parse_config(values), data={"train": frame})
    assert outcome.scores is not None
    assert outcome.scores["spearman"] > 0.2
    document, charts = report_of(tmp_path / "scored")
    shown = charts["Cosines"]["encoding"]["color"]["scale"]["domain"]
    assert shown == ["score 0 to 0.25", "score 0.75 to 1"]
    assert "score 1" in document.text
    model = bert_jax.load(tmp_path / "scored")
    assert model.encode(TEXTS).shape == (3, 16)
    embedding = model.heads.embedding
    assert embedding is not None
    assert (embedding.query_prefix, embedding.temperature) == (PREFIXES["query_prefix"], None)


def test_single_texts_learn_from_dropout(tmp_path: Path) -> None:
    values = embedding_config(
        tmp_path, dev=str(write_beir(tmp_path / "beir", pairs(12, 2))), loss={"kind": "simcse"}
    )
    values["finetune"] |= {"epochs": 1, "dropout": 0.2}
    ok("finetune", write_config(tmp_path / "config.yaml", values))
    (loss, *_) = (each["loss"] for each in read_metrics(tmp_path / "tuned") if "loss" in each)
    assert 0.01 < loss < np.log(32)


def test_a_model_learns_the_vectors_of_a_teacher(trained: Trained, tmp_path: Path) -> None:
    """`features` writes the table that the student reads."""
    texts = write_jsonl(tmp_path / "texts.jsonl", pairs(64, 4))
    copy = ("--column=question", "--copy=question", "--prompt=query")
    ok("features", trained.run, texts, tmp_path / "vectors", *copy)
    (table,) = (tmp_path / "vectors").glob("*.parquet")
    changes = {
        "train": str(table),
        "dev": str(write_beir(tmp_path / "beir", pairs(12, 2))),
        "positive": None,
        "query_prefix": PREFIXES["query_prefix"],
        "projection": 64,
        "loss": {"kind": "mse"},
        "teacher_vector": "vector",
    }
    values = embedding_config(tmp_path, **changes)
    values["finetune"] |= {"epochs": 8, "log_every": 2, "optimizer": {"learning_rate": 5e-3}}
    config = write_config(tmp_path / "config.yaml", values)
    line = refused("finetune", config, "finetune.task.projection=24")
    says(line, key="embedding.teacher_width", place="finetune.task.projection", widths=[24, 64])
    ok("finetune", config)
    losses = [each["loss"] for each in read_metrics(tmp_path / "tuned") if "loss" in each]
    assert 0 < losses[-1] < losses[0] / 2
    # The mean loss is a mean over the numbers of a vector, and vectors have length 1.
    student = bert_jax.load(tmp_path / "tuned", checkpoint="last")
    teacher = bert_jax.load(trained.run)
    questions = [row["question"] for row in pairs(64, 4)]
    ours, theirs = (model.encode(questions, prompt="query") for model in (student, teacher))
    assert np.square(ours - theirs).mean() < losses[0] / 2


@pytest.mark.parametrize(
    ("overrides", "key", "place"),
    [
        (
            ["finetune.task.train={table}"],
            "embedding.empty_text",
            '{table}: line 2: column "answer"',
        ),
        (["finetune.task.anchor=Question"], "table.column_unknown", "task.anchor"),
        (["finetune.task.dev={beir}"], "file.missing", "{beir}/qrels/dev.tsv"),
        (["finetune.batch_size=1"], "embedding.batch_size", "finetune.batch_size"),
        (
            ["finetune.task.loss={{kind: simcse}}", "finetune.task.negatives=[]"],
            "embedding.no_dropout",
            "finetune.dropout",
        ),
        (["finetune.task.loss.matryoshka=[65]"], "embedding.matryoshka", "finetune.task.loss"),
        (["finetune.task.score=rating"], "embedding.score_ignored", "task.score"),
        (
            ["finetune.task.dev={row}", "finetune.task.negatives=[]"],
            "embedding.dev_undecided",
            "task.dev",
        ),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_the_command_names_what_is_wrong(
    trained: Trained, tmp_path: Path, overrides: list[str], key: str, place: str
) -> None:
    rows = pairs(2, 1)
    rows[1]["answer"] = " "
    paths = {
        "table": str(write_jsonl(tmp_path / "table.jsonl", rows)),
        "beir": str(write_beir(tmp_path / "beir", pairs(4, 1), "test")),
        "row": str(write_jsonl(tmp_path / "row.jsonl", pairs(1, 1))),
    }
    found = [override.format(**paths) for override in overrides]
    line = refused("finetune", trained.config, f"run_dir={tmp_path}/run", *found)
    assert (line.key, place.format(**paths) in line) == (key, True)
    assert not (tmp_path / "run").exists()


def test_prompts_need_a_model_of_embeddings(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("word1\n")
    arguments = (trained.directory / "run", tmp_path / "texts.txt", tmp_path / "v.npz")
    assert refused("features", *arguments, "--prompt", "query").key == "features.prompt"
