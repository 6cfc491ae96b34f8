"""Every task family through the command line: fine-tune, evaluate, predict, submit."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bert_jax
from bert_jax.tasks import predictor
from bert_jax.train.metrics_writer import read_metrics
from tests.project import ok, refused, write_config
from tests.tasks.runs import BAD, FILLERS, GOOD, tiny_run
from tests.tasks.sequences import write_lines
from tests.tasks.squad_data import question, squad, write

pytestmark = pytest.mark.slow

Writer = Callable[[Path, np.random.Generator], dict[str, Any]]


def words(rng: np.random.Generator, size: int) -> list[str]:
    return rng.choice(FILLERS, size).tolist()


def write_rte(root: Path, rng: np.random.Generator) -> dict[str, Any]:
    for name, rows in (("train", 32), ("dev", 16), ("test", 8)):
        lines = ["index\tsentence1\tsentence2" + ("" if name == "test" else "\tlabel")]
        for row in range(rows):
            texts = [" ".join(words(rng, 4)), str(rng.choice(GOOD if row % 2 else BAD))]
            label = [] if name == "test" else [("not_entailment", "entailment")[row % 2]]
            lines.append("\t".join([str(row), *texts, *label]))
        write_lines(root / f"{name}.tsv", lines)
    return {"kind": "glue", "name": "rte", "data": str(root)}


def write_stsb(root: Path, rng: np.random.Generator) -> dict[str, Any]:
    header = "index genre filename year old_index source1 source2 sentence1 sentence2 score"
    for name, rows in (("train", 32), ("dev", 16), ("test", 8)):
        lines = ["\t".join(header.split()[: -1 if name == "test" else None])]
        for row in range(rows):
            first = words(rng, 5)
            same = row % 6
            second = [*first[:same], *words(rng, 5 - same)]
            texts = [" ".join(first), " ".join(second)]
            score = [] if name == "test" else [f"{same:.3f}"]
            lines.append("\t".join([str(row), *"abcdef", *texts, *score]))
        write_lines(root / f"{name}.tsv", lines)
    return {"kind": "glue", "name": "stsb", "data": str(root)}


def write_squad(root: Path, rng: np.random.Generator) -> dict[str, Any]:
    for name, questions in (("train", 24), ("dev", 8)):
        asked = []
        for number in range(questions):
            context = words(rng, 30)
            at = int(rng.integers(30))
            context[at] = str(rng.choice(GOOD))
            start = len(" ".join(context[:at])) + (at > 0)
            none = number % 4 == 0
            named = (f"{name}{number}", str(rng.choice(FILLERS)))
            answers = [] if none else [(context[at], start)]
            asked.append((" ".join(context), [question(*named, *answers, impossible=none)]))
        write(root / f"{name}.json", squad(*asked, version="v2.0"))
    paths = {name: str(root / f"{name}.json") for name in ("train", "dev")}
    return {"kind": "squad", "stride": 8, "max_query_length": 4, **paths}


def write_conll(root: Path, rng: np.random.Generator) -> dict[str, Any]:
    for name, sentences in (("train", 32), ("dev", 12)):
        lines = ["-DOCSTART- O", ""]
        for _ in range(sentences):
            for word in words(rng, 6):
                lines.append(f"{word} O")
            lines += [f"{rng.choice(GOOD)} B-GOOD", f"{rng.choice(GOOD)} I-GOOD", ""]
        write_lines(root / f"{name}.txt", lines)
    paths = {name: str(root / f"{name}.txt") for name in ("train", "dev")}
    return {"kind": "token_classification", **paths}


def write_choices(root: Path, rng: np.random.Generator) -> dict[str, Any]:
    for name, rows in (("train", 32), ("dev", 12)):
        lines = ["question,a,b,c,label"]
        for _ in range(rows):
            label = int(rng.integers(3))
            choices = [str(rng.choice(GOOD if at == label else BAD)) for at in range(3)]
            lines.append(",".join([" ".join(words(rng, 4)), *choices, str(label)]))
        write_lines(root / f"{name}.csv", lines)
    paths = {name: str(root / f"{name}.csv") for name in ("train", "dev")}
    columns = {"text": "question", "choices": ["a", "b", "c"], "label": "label"}
    return {"kind": "multiple_choice", **paths, **columns}


def write_labels(root: Path, rng: np.random.Generator) -> dict[str, Any]:
    lines = []
    for row in range(60):
        has = {"good": row % 2 == 0, "bad": row % 3 == 0}
        told = [str(rng.choice(GOOD))] * has["good"] + [str(rng.choice(BAD))] * has["bad"]
        labels = [name for name, there in has.items() if there]
        lines.append(json.dumps({"text": " ".join([*words(rng, 4), *told]), "labels": labels}))
    write_lines(root / "train.jsonl", lines)
    return {"kind": "table", "train": str(root / "train.jsonl"), "text": "text", "label": "labels"}


def in_rows(name: str, records: list[dict[str, Any]]) -> Any:
    """Returns records as the Python values that a user would pass to `predict`."""
    if name == "squad":
        return [(record["question"], record["context"]) for record in records]
    if name == "conll":
        return [record["tokens"] for record in records]
    if name == "choices":
        return [(record["text"], *record["choices"]) for record in records]
    if name == "labels":
        return {"text": [record["text"] for record in records]}
    return [(record["text"], record["pair"]) for record in records]


# By family: function that writes the data, ranking score, name of the benchmark's file.
FAMILIES: dict[str, tuple[Writer, str, str | None]] = {
    "rte": (write_rte, "accuracy", "RTE.tsv"),
    "stsb": (write_stsb, "spearman", "STS-B.tsv"),
    "squad": (write_squad, "f1", "predictions.json"),
    "conll": (write_conll, "f1", "input.conll"),
    "choices": (write_choices, "accuracy", "input.csv"),
    "labels": (write_labels, "micro_f1", None),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_goes_from_training_to_submission(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, metric, official = FAMILIES[name]
    data = tmp_path / "data"
    data.mkdir()
    task = write(data, np.random.default_rng(0))
    config = {
        "run_dir": str(tmp_path / "tuned"),
        "finetune": {
            "init_from": str(tiny_run(tmp_path)),
            "task": task,
            "max_length": 32,
            "batch_size": 8,
            "epochs": 1,
            "optimizer": {"learning_rate": 2e-3},
        },
    }
    ok("finetune", write_config(tmp_path / "config.yaml", config))
    run_dir = tmp_path / "tuned"
    concluded = json.loads((run_dir / "evaluation.json").read_text())["scores"]
    assert np.isfinite(concluded[metric])
    # A run with fewer steps than finetune.log_every also logs a loss.
    assert np.isfinite(read_metrics(run_dir, kind="train")[-1]["loss"])
    assert "</html>" in (run_dir / "report.html").read_text()
    said = ok("evaluate", run_dir, "--batch-size", 3)
    assert metric in said
    evaluated = json.loads((run_dir / "evaluation.json").read_text())["scores"]
    assert evaluated == pytest.approx(concluded, abs=1e-5)
    dev = task.get("dev") or task.get("train") or f"{task['data']}/dev.tsv"
    ok("predict", run_dir, tmp_path / "dev.jsonl", "--input", dev)
    written = [json.loads(line) for line in (tmp_path / "dev.jsonl").read_text().splitlines()]
    assert len(written) >= 8
    in_memory = bert_jax.load(run_dir).predict(in_rows(name, written))
    expected = [row["prediction"] for row in written]
    if isinstance(expected[0], float):
        expected = pytest.approx(expected, rel=1e-5)
    assert [row["prediction"] for row in in_memory] == expected
    with monkeypatch.context() as patch:  # windows of one batch
        patch.setattr(predictor, "WINDOW_BATCHES", 1)
        ok("predict", run_dir, tmp_path / "few.jsonl", "--input", dev, "--batch-size", 1)
    few = [json.loads(line) for line in (tmp_path / "few.jsonl").read_text().splitlines()]
    assert [row["id"] for row in few] == [row["id"] for row in written]
    assert [row["prediction"] for row in few] == expected
    submission = tmp_path / "submission"
    if official is None:
        line = refused("predict", run_dir, submission, "--submission", "--input", dev)
        assert line.key == "table.no_benchmark"
        assert not submission.exists()
        return
    source = [] if task["kind"] == "glue" else ["--input", dev]
    ok("predict", run_dir, submission, "--submission", *source)
    assert (submission / official).exists(), sorted(submission.iterdir())
    if name == "rte":
        lines = (submission / official).read_text().splitlines()
        assert lines[0] == "index\tprediction"
        assert len(lines) == 9
        with zipfile.ZipFile(submission / "submission.zip") as zipped:
            assert zipped.namelist() == ["RTE.tsv"]
