"""A sparse encoder from its table to a search, here and in sentence-transformers."""

import functools
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from jax import export
from safetensors.numpy import load_file
from scipy.sparse import load_npz
from sentence_transformers import SparseEncoder

import bert_jax
from bert_jax.model.section import HeadsSection
from bert_jax.model.text_head import SparseHeadSection
from bert_jax.train.metrics_writer import read_metrics
from tests.interop.test_sentence_transformers import tensors
from tests.project import ok, refused, says, write_config
from tests.report.strict_html import read
from tests.tasks.runs import FILLERS, tiny_run
from tests.tasks.search.data import write_jsonl
from tests.tasks.sparse.data import sparse_config

pytestmark = pytest.mark.slow

PREFIX = "word3 "
LOSS = {"query_flops": 0.01, "passage_flops": 0.01}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sparse")
    values = sparse_config(directory, query_prefix=PREFIX, top_k=30, loss=LOSS)
    values["finetune"] |= {"accumulation": 2, "epochs": 8, "optimizer": {"learning_rate": 3e-3}}
    ok("finetune", write_config(directory / "config.yaml", values))
    return directory / "tuned"


def texts(count: int) -> list[str]:
    """Returns texts of 1 to 20 words; some exceed the limit of 8 pieces."""
    rng = np.random.default_rng(3)
    return [" ".join(rng.choice(FILLERS, rng.integers(1, 21))) for _ in range(count)]


def test_a_run_learns_to_search_with_fewer_pieces(trained: Path) -> None:
    metrics = read_metrics(trained)
    found = [each["ndcg@10"] for each in metrics if each["kind"] == "validation"]
    assert found[-1] > max(0.8, found[0])
    steps = [each for each in metrics if each["kind"] == "train"]
    assert steps[-1]["passage_pieces"] < steps[0]["passage_pieces"]
    page = read((trained / "report.html").read_text()).text
    best = json.loads((trained / "predictions" / "dev.jsonl").read_text().splitlines()[0])
    assert best["prediction"][0] in page
    assert f"{best['scores'][0]:.3f}" in page
    assert "Matches: word" in page


def test_vectors_equal_sentence_transformers_both_ways(trained: Path, tmp_path: Path) -> None:
    exported, back = tmp_path / "exported", tmp_path / "back"
    assert "differ by at most 0" in ok("export", trained, exported)
    theirs = SparseEncoder(str(exported), device="cpu")
    asked = texts(500)
    expected = theirs.encode_query(asked)
    passages = theirs.encode_document(asked[:9])
    ok("import", exported, back)
    for source in (trained, exported, back):
        model = bert_jax.load(source)
        found = model.encode(asked, prompt="query")
        assert found.shape == (500, model.architecture.vocab_size)
        np.testing.assert_allclose(found.toarray(), expected.to_dense(), atol=1e-5)
        assert np.diff(found.indptr).max() == 30
    products = expected.to_dense() @ passages.to_dense().T
    np.testing.assert_allclose(model.similarity(asked, asked[:9]), products, rtol=1e-5)
    ok("export", back, tmp_path / "again")
    assert tensors(tmp_path / "again") == tensors(exported)
    for name in (
        "modules.json",
        "config_sentence_transformers.json",
        "1_SpladePooling/config.json",
    ):
        assert (tmp_path / "again" / name).read_bytes() == (exported / name).read_bytes()


def test_features_writes_pieces_and_weights(trained: Path, tmp_path: Path) -> None:
    asked = texts(6)
    (tmp_path / "texts.txt").write_text("\n".join(asked))
    model = bert_jax.load(trained)
    expected = model.encode(asked, prompt="passage")
    for name in ("w.parquet", "w.jsonl", "w.npz"):
        ok("features", trained, tmp_path / "texts.txt", tmp_path / name, "--prompt", "passage")
    rows = pq.read_table(tmp_path / "w.parquet").to_pylist()
    lines = [json.loads(line) for line in (tmp_path / "w.jsonl").read_text().splitlines()]
    for row, line in zip(rows, lines, strict=True):
        assert (row["index"], row["pieces"]) == (line["index"], line["pieces"])
        np.testing.assert_array_equal(row["weights"], np.float32(line["weights"]))
    same = functools.partial(np.testing.assert_allclose, atol=1e-5)
    same(load_npz(tmp_path / "w.npz").toarray(), expected.toarray())
    corpus = write_jsonl(tmp_path / "corpus.jsonl", [{"text": text} for text in asked])
    section = {"model": str(trained), "input": [str(corpus)], "output": str(tmp_path / "scored")}
    section |= {"prompt": "passage"}
    ok("score", write_config(tmp_path / "score.yaml", {"score": section}))
    (part,) = (tmp_path / "scored").rglob("*.parquet")
    scored = pq.read_table(part).to_pylist()
    names = model.tokenizer.pieces(range(model.tokenizer.vocab_size))
    for row, again, weights in zip(rows, scored, expected.toarray(), strict=True):
        assert again["pieces"] == row["pieces"]
        same(again["weights"], row["weights"])
        assert row["weights"] == sorted(row["weights"], reverse=True)
        assert [*row["pieces"]] == [names[at] for at in np.argsort(-weights)[: len(row["pieces"])]]
        same(row["weights"], -np.sort(-weights)[: len(row["weights"])])
        assert np.count_nonzero(weights) == len(row["weights"])


def test_the_exported_program_computes_the_vectors(tmp_path: Path) -> None:
    heads = HeadsSection(pooler=False, next_sentence=False, sparse=SparseHeadSection(top_k=20))
    run = tiny_run(tmp_path, heads=heads)
    ok("export", run, tmp_path / "program", "--to", "stablehlo")
    program = export.deserialize(bytearray((tmp_path / "program/model.stablehlo").read_bytes()))
    weights, model = load_file(tmp_path / "program/model.safetensors"), bert_jax.load(run)
    special = model.tokenizer.special
    ids = np.array([[special.cls, 7, 8, special.sep], [special.cls, 9, special.sep, 0]], np.int32)
    mask = np.array([[1, 1, 1, 1], [1, 1, 1, 0]], np.int32)
    found = program.call(weights, ids, mask, np.zeros_like(ids))["embedding"]
    first, second = (" ".join(model.tokenizer.pieces(each)) for each in ([7, 8], [9]))
    expected = model.encode([first, second])
    np.testing.assert_allclose(found, expected.toarray(), atol=1e-5)


def test_models_that_cannot_be_read_are_refused(trained: Path, tmp_path: Path) -> None:
    exported = tmp_path / "exported"
    ok("export", trained, exported)
    pooling = exported / "1_SpladePooling" / "config.json"
    pooling.write_text(json.dumps({"pooling_strategy": "sum"}))
    says(refused("import", exported, tmp_path / "run"), found="sum", allowed="max")
    modules = [{"type": "sentence_transformers.models.Router", "path": ""}]
    (exported / "modules.json").write_text(json.dumps(modules))
    says(refused("import", exported, tmp_path / "run"), key="import.modules", found="Router")


def test_a_model_without_an_mlm_head_is_refused(tmp_path: Path) -> None:
    values = sparse_config(tmp_path)
    values["finetune"]["init_from"] = str(tiny_run(tmp_path / "without"))
    config = write_config(tmp_path / "config.yaml", values)
    says(refused("finetune", config), key="finetune.no_mlm_head", place="finetune.init_from")
