"""Hard negatives from the command line, beside sentence-transformers, and as training data."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers.util import mine_hard_negatives

import bert_jax
from bert_jax.inference import nearest
from bert_jax.model.section import HeadsSection
from bert_jax.train.metrics_writer import read_metrics
from tests.interop.test_sentence_transformers import theirs, written_by_them
from tests.project import ok, refused, says, write_config
from tests.tasks.runs import tiny_run
from tests.tasks.search.data import embedding_config, pairs, write_jsonl

pytestmark = pytest.mark.slow


def texts(count: int, seed: int) -> list[str]:
    """Returns texts of known words, so that no two have the same vector."""
    rng = np.random.default_rng(seed)
    return [" ".join(f"w{word}" for word in rng.integers(1, 40, 5)) for _ in range(count)]


ANCHORS, POSITIVES, CORPUS = (texts(count, count) for count in (30, 60, 150))
PREFIX, BARE = {"query_prefix": "word3 "}, {"pooler": False, "mlm": False, "next_sentence": False}
ENCODERS = {
    "dense": {**BARE, "embedding": PREFIX},
    "sparse": {**BARE, "mlm": True, "sparse": PREFIX},
    "late interaction": {**BARE, "late_interaction": PREFIX},
}
RERANKER = {
    "task": "sequence_classification",
    "labels": ("LABEL_0",),
    "problem": "regression",
    "cross_encoder": {},
}


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of sentence-transformers, and a table in which each anchor has two positives."""
    directory = tmp_path_factory.mktemp("mine")
    written_by_them(directory, "bert")
    columns = {"q": ANCHORS * 2, "a": POSITIVES}
    pq.write_table(pa.table(columns), directory / "pairs.parquet")
    (directory / "corpus").mkdir()
    (directory / "corpus" / "a.txt").write_text("".join(f"{text}\n" for text in CORPUS[:70]))
    write_jsonl(directory / "corpus" / "b.jsonl", [{"text": text} for text in CORPUS[60:]])
    return directory


# Our options, and theirs. Limits remove some candidates of most anchors.
OPTIONS: dict[str, tuple[list[str], dict[str, Any]]] = {
    "top": (["--range=4:20"], {"range_min": 4, "range_max": 20}),
    "margins": (
        ["--range=1:200", "--margin=0.02", "--relative-margin=0.01", "--triplets"],
        {
            **{"range_min": 1, "range_max": 200, "absolute_margin": 0.02},
            **{"relative_margin": 0.01, "output_format": "triplet"},
        },
    ),
    "scores": (
        ["--range=0:80", "--min-score=0.85", "--max-score=0.96"],
        {"range_max": 80, "min_score": 0.85, "max_score": 0.96},
    ),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_negatives_equal_sentence_transformers(name: str, source: Path, tmp_path: Path) -> None:
    ours, options = OPTIONS[name]
    table = pq.read_table(source / "pairs.parquet").to_pydict()
    output = tmp_path / "mined.parquet"
    ok(
        *("mine", source / "saved", source / "pairs.parquet", output, "--anchor=q", "--positive=a"),
        *("--negatives=5", f"--corpus={source / 'corpus'}", *ours),
    )
    expected = mine_hard_negatives(
        datasets.Dataset.from_dict(table),
        theirs(source / "saved"),
        corpus=CORPUS,
        num_negatives=5,
        query_prompt_name="query",
        corpus_prompt_name="document",
        output_scores=True,
        verbose=False,
        **{"output_format": "n-tuple", **options},
    )

    def scored(rows: Any) -> dict[tuple[str, ...], float]:
        """Returns the score of each negative, since rounding may exchange two of a row."""
        return {
            (row["q"], row["a"], text): score
            for row in rows
            for text, score in zip(
                [text for name, text in row.items() if "negative" in name],
                row["scores"][1:],
                strict=True,
            )
        }

    found, wanted = scored(rows_of(output)), scored(expected)
    assert len(wanted) > 50
    assert found == pytest.approx(wanted, abs=1e-5)
    positives = [
        {(row["q"], row["a"]): row["scores"][0] for row in each}
        for each in (rows_of(output), expected)
    ]
    assert positives[0] == pytest.approx(positives[1], abs=1e-5)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of each kind of encoder and of a reranker, and a table of questions and answers."""
    directory = tmp_path_factory.mktemp("models")
    for name, heads in {**ENCODERS, "reranker": RERANKER}.items():
        tiny_run(directory / name, heads=HeadsSection.model_validate(heads))
    write_jsonl(directory / "pairs.jsonl", [*pairs(64, 1), *pairs(8, 1)])  # some pairs twice
    return directory


def test_a_student_learns_from_a_mined_and_reranked_table(models: Path, tmp_path: Path) -> None:
    """The scores are the reranker's, and the table is training data for losses of a teacher."""
    output = tmp_path / "mined.jsonl"
    table = models / "pairs.jsonl"
    columns = ("--anchor=question", "--positive=answer", "--negatives=2")
    reranker = models / "reranker" / "run"
    arguments = ("mine", models / "dense" / "run", table, output, *columns)
    said = ok(*arguments, f"--reranker={reranker}", "--sample=random", "--margin=-1")
    rows = rows_of(output)
    assert len(rows) == 64
    assert "64 rows with 128 negatives from 64 texts" in said
    asked = [
        (row["question"], row[name])
        for row in rows
        for name in ("answer", "negative_1", "negative_2")
    ]
    expected = [each["prediction"] for each in bert_jax.load(reranker).predict(asked)]
    np.testing.assert_allclose(np.ravel([row["scores"] for row in rows]), expected, atol=1e-5)
    assert all(row["scores"][1] >= row["scores"][2] for row in rows)
    again = tmp_path / "again.jsonl"
    ok(*arguments[:3], again, *columns, f"--reranker={reranker}", "--sample=random", "--margin=-1")
    assert again.read_bytes() == output.read_bytes()
    changes = {
        "train": str(output),
        "dev": None,
        "negatives": ["negative_1", "negative_2"],
        "teacher_score": "scores",
        "loss": {"kind": "margin_mse"},
        "normalize": False,
    }
    values = embedding_config(tmp_path, **changes)
    values["finetune"] |= {"epochs": 6, "log_every": 2}
    ok("finetune", write_config(tmp_path / "config.yaml", values))
    losses = [each["loss"] for each in read_metrics(tmp_path / "tuned") if "loss" in each]
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_function_equals_similarity_for_any_block(
    kind: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Excluded are all positives of equal anchors and the anchor's own text.

    A pair with other blanks is no other pair.
    """
    rows = pairs(30, 5)
    rows += [
        {**row, "answer": other["answer"]} for row, other in zip(rows, rows[7:12], strict=False)
    ]
    question, answer = rows[0]["question"], rows[0]["answer"]
    spaced = {**rows[0], "question": f"{question} ", "answer": f" {answer}"}
    table = write_jsonl(tmp_path / "pairs.jsonl", [*rows, spaced])
    questions = [row["question"] for row in rows[:30]]
    corpus = write_jsonl(tmp_path / "corpus.jsonl", [{"body": text} for text in questions])
    run, names = str(models / kind / "run"), {"anchor": "question", "positive": "answer"}
    written = []
    for sizes in ((1024, 1 << 14), (7, 11)):
        monkeypatch.setattr("bert_jax.verbs.mine.QUERIES", sizes[0])
        monkeypatch.setattr("bert_jax.verbs.mine.TEXTS", sizes[1])
        output = str(tmp_path / f"{sizes[0]}.parquet")
        result = bert_jax.mine(
            run, str(table), output, corpus=str(corpus), corpus_column="body", **names, negatives=4
        )
        written.append(rows_of(Path(output)))
        assert (result.rows, result.dropped) == (35, 0)
    assert nearest.QUERIES == 1024
    strip = [[{**row, "scores": None} for row in each] for each in written]
    assert strip[0] == strip[1]
    model = bert_jax.load(run)
    texts = list(dict.fromkeys([*questions, *(row["answer"] for row in rows)]))
    cosines = model.similarity(questions, texts)
    assert model.similarity([], texts).shape == (0, len(texts))
    assert model.rank(questions[0], []) == []
    for row in written[0]:
        fits = {other["answer"] for other in rows if other["question"] == row["question"]}
        scores = dict(zip(texts, cosines[questions.index(row["question"])], strict=True))
        best = sorted(texts, key=lambda text: -scores[text])
        best = [text for text in best if text not in fits and text != row["question"]][:4]
        assert [row[f"negative_{at}"] for at in range(1, 5)] == best
        chosen = [scores[text] for text in (row["answer"], *best)]
        np.testing.assert_allclose(row["scores"], chosen, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "options", "key", "place", "values"),
    [
        ("reranker", [], "mine.model", "{model}", ["encodes"]),
        ("dense", ["--reranker={model}"], "mine.model", "{model}", ["cross-encoder"]),
        ("dense", ["--anchor=ask"], "table.column_unknown", "--anchor", ["ask", "question"]),
        ("dense", ["--positive=question"], "setting.same_column", "--positive", ["question"]),
        ("dense", ["--anchor=scores"], "setting.same_column", "--anchor", ["scores"]),
        ("dense", ["--min-score=2", "--max-score=1"], "mine.limits", "--min-score", ["2", "1"]),
        ("dense", ["--range=5:6"], "mine.range", "--range", ["5:6", "MIN:MAX", 3]),
        ("dense", ["--min-score=2"], "mine.none", "{table}", [64, "3 negatives"]),
        ("dense", ["--corpus={corpus}"], "mine.corpus", "--corpus", [".txt"]),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_is_wrong_is_named_and_nothing_is_written(
    models: Path,
    tmp_path: Path,
    model: str,
    options: list[str],
    key: str,
    place: str,
    values: list[object],
) -> None:
    (tmp_path / "corpus").mkdir()
    paths = {
        "model": models / model / "run",
        "table": models / "pairs.jsonl",
        "corpus": tmp_path / "corpus",
    }
    output, columns = tmp_path / "mined.parquet", ("--anchor=question", "--positive=answer")
    found = [option.format(**paths) for option in options]
    line = refused("mine", paths["model"], paths["table"], output, *columns, *found)
    says(line, key=key, place=place.format(**paths), values=values)
    assert not output.exists()
    output.write_text("")
    assert refused("mine", *(paths["model"], paths["table"]), output).key == "output.exists"
    other = tmp_path / "mined.csv"
    assert refused("mine", *(paths["model"], paths["table"]), other).key == "mine.suffix"
