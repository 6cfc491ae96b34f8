"""Late interaction: MaxSim, the loss of sentence-transformers, chunks, meshes and encoders."""

import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from flax import nnx
from sentence_transformers.util.similarity import maxsim

import bert_jax
from bert_jax.encoders.registry import SECTIONS
from bert_jax.inference.comparison import comparison_of
from bert_jax.model import late_interaction_head
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.late_interaction_head import max_sim
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.model.text_head import TokenVectorsSection
from bert_jax.runs.run_directory import open_run
from bert_jax.tasks.late_interaction.section import LateInteractionLossSection
from bert_jax.tasks.late_interaction.task import LateInteractionTask
from bert_jax.train.metrics_writer import read_metrics
from bert_jax.train.state import define_model
from tests.project import ok, refused, refuses, write_config
from tests.report.strict_html import read, words
from tests.support import small_encoder
from tests.tasks.search.data import embedding_config
from tests.tasks.search.test_task import HEADS, LENGTH, batch_of, gradients_on, params_of

pytestmark = pytest.mark.slow


def units(texts: int, length: int, width: int = 8, *, seed: int) -> np.ndarray:
    """Returns unit vectors of the tokens of texts with 1 to `length` tokens, and zero vectors."""
    rng = np.random.default_rng(seed)
    found = rng.normal(size=(texts, length, width)).astype(np.float32)
    found /= np.linalg.norm(found, axis=-1, keepdims=True)
    lengths = rng.integers(1, length + 1, (texts, 1))
    return found * (np.arange(length) < lengths)[..., None]


@pytest.mark.parametrize("together", [1, 1 << 24])
def test_max_sim_equals_sentence_transformers(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One passage at a time equals all at once, and the ragged vectors of the host."""
    monkeypatch.setattr(late_interaction_head, "_COSINES_AT_ONCE", together)
    queries, passages = units(5, 4, seed=0), units(7, 9, seed=1)
    factors = np.random.default_rng(2).normal(size=(5, 7)).astype(np.float32)
    q, p = (torch.tensor(each, requires_grad=True) for each in (queries, passages))
    masks = [torch.tensor(each.any(-1)) for each in (queries, passages)]
    expected = maxsim(q, p, *masks)
    (expected * torch.tensor(factors)).sum().backward()

    found, back = jax.vjp(max_sim, jnp.asarray(queries), jnp.asarray(passages))
    np.testing.assert_allclose(found, expected.detach().numpy(), atol=1e-6)
    for ours, theirs in zip(back(jnp.asarray(factors)), (q.grad, p.grad), strict=True):
        assert theirs is not None
        np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-6)
    comparison = comparison_of(TokenVectorsSection())
    sides = (comparison.collect([x[x.any(-1)] for x in each]) for each in (queries, passages))
    np.testing.assert_allclose(comparison.scores(*sides), found, atol=1e-6)


def test_many_tokens_are_compared_in_parts() -> None:
    """3 texts of 3,000 tokens are more than one part of both sides."""
    comparison, texts = comparison_of(TokenVectorsSection()), units(3, 3000, 4, seed=3)
    kept = [each[each.any(-1)] for each in texts]
    found = comparison.scores(*[comparison.collect(kept)] * 2)
    np.testing.assert_allclose(found, maxsim(kept, kept).numpy(), rtol=1e-5)


def task_of(
    *, kind: str = "bert", chunks: int = 1, dropout: float = 0.0, **head: Any
) -> LateInteractionTask:
    architecture = small_encoder(kind, num_hidden_layers=1, initializer_range=0.2)
    settings = {"projection": 24, "skipped": (7, 9), **head}
    return LateInteractionTask(
        architecture=architecture.with_dropout(dropout),
        execution=Execution(dtype="float32"),
        heads=HeadsSection.model_validate({**HEADS, "late_interaction": settings}),
        training=LateInteractionLossSection(),
        chunks=chunks,
    )


@functools.cache
def whole() -> tuple[float, Any]:
    return gradients_on((1, 1, 1), task_of(dropout=0.1))


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [((1, 1, 1), 4), ((8, 1, 1), 2), ((2, 2, 2), 1), ((1, 4, 2), 2)],
    ids=str,
)
def test_chunks_and_meshes_equal_one_device(shape: tuple[int, ...], chunks: int) -> None:
    """All texts of the global batch are negatives, whatever splits the batch."""
    loss, grads = gradients_on(shape, task_of(chunks=chunks, dropout=0.1))
    expected, wanted = whole()
    assert loss == pytest.approx(expected, rel=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-6), grads, wanted)
    assert abs(wanted["embedding"]["dense"]["kernel"]).max() > 1e-3


@pytest.mark.parametrize("kind", SECTIONS)
def test_a_token_to_which_no_token_attends_changes_no_other(kind: str) -> None:
    """Masks after a text read the text. The text's own vectors stay as they are."""
    ids = jnp.asarray(batch_of()["input_ids"][:4, 0])
    text = jnp.arange(LENGTH) < 4
    task = task_of(kind=kind, projection=None)

    @jax.jit
    def vectors(params: Any, segment_ids: Any) -> Any:
        model: EncoderModel = nnx.merge(define_model(task.build).graphdef, params)
        batch = {"input_ids": ids, "token_type_ids": ids * 0, "segment_ids": segment_ids + ids * 0}
        return model.embedded(batch, dropout_key=None)

    params = params_of(task)
    alone, filled, seen = (
        np.asarray(vectors(params, jnp.where(text, 1, rest))) for rest in (0, -1, 1)
    )
    np.testing.assert_allclose(filled[:, :4], alone[:, :4], atol=1e-6)
    assert abs(seen[:, :4] - alone[:, :4]).max() > 1e-2
    assert not alone[:, 4:].any()
    np.testing.assert_allclose(np.linalg.norm(filled, axis=-1), 1, atol=1e-6)
    assert abs(filled[:, 4:] - seen[:, 4:]).max() > 1e-2


def test_unattended_masks_with_deberta_are_refused_before_training() -> None:
    with refuses("late_interaction.unattended", place="finetune.task.query_expansion"):
        task_of(kind="deberta", query_expansion="unattended")


def test_queries_longer_than_all_texts_are_refused(tmp_path: Path) -> None:
    values = embedding_config(tmp_path, kind="late_interaction", query_length=40)
    values["finetune"]["max_length"] = 39
    line = refused("finetune", write_config(tmp_path / "config.yaml", values))
    assert (line.key, line.place) == ("late_interaction.query_length", "finetune.task.query_length")
    assert "40" in line
    assert "39" in line


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on triplets in two chunks, whose queries are filled up."""
    changes = {
        "kind": "late_interaction",
        "negatives": ["wrong"],
        "projection": 16,
        "query_length": 7,
        "query_expansion": "unattended",
        "query_prefix": "word30 ",
    }
    directory = tmp_path_factory.mktemp("late")
    values = embedding_config(directory, **changes)
    values["finetune"]["accumulation"] = 2
    ok("finetune", write_config(directory / "config.yaml", values))
    return directory / "tuned"


def test_a_run_learns_and_is_evaluated_again(run: Path) -> None:
    found = [each["ndcg@10"] for each in read_metrics(run) if each["kind"] == "validation"]
    assert found[-1] > found[0] > 0.2
    evaluation = json.loads((run / "evaluation.json").read_text())
    ok("evaluate", run)
    assert evaluation == json.loads((run / "evaluation.json").read_text())
    head = open_run(run).heads.late_interaction
    assert head is not None
    assert (head.projection, head.query_length, head.query_expansion) == (16, 7, "unattended")


def test_the_report_shows_matches(run: Path) -> None:
    """The scores are the sums of the matches, and equal the scores of the predictions."""
    document = read((run / "report.html").read_text())
    lines = (run / "predictions" / "dev.jsonl").read_text().splitlines()
    first, *tables = [
        [words(cell) for cell in table.iter() if cell.tag in ("td", "th")]
        for table in document.root.iter("table")
        if words(table[0]).startswith("Matches in 3")
    ]
    assert len(tables) == 7
    assert first[:4] == ["query", "passage 1", "passage 2", "passage 3"]
    assert first[4::4] == ["[CLS]", "word30", *json.loads(lines[0])["text"].split(), "[SEP]"]
    for passage, score in enumerate(json.loads(lines[0])["scores"][:3]):
        cosines = [float(cell.split()[-1]) for cell in first[5 + passage :: 4]]
        assert sum(cosines) == pytest.approx(score, abs=0.04)


def test_a_run_encodes_and_ranks(run: Path, tmp_path: Path) -> None:
    model, documents = bert_jax.load(run), ["word1 good1", "word2 word3 word4", "bad1"]
    query, passages = model.encode("word2 word4", prompt="query"), model.encode(documents)
    assert query.shape == (7, 16)
    assert [len(each) for each in passages] == [4, 5, 3]
    expected = [(query @ each.T).max(axis=1).sum() for each in passages]
    np.testing.assert_allclose(model.similarity(["word2 word4"], documents)[0], expected, rtol=1e-5)
    (tmp_path / "texts.txt").write_text("\n".join(documents))
    ok("features", run, tmp_path / "texts.txt", tmp_path / "vectors.parquet")
    table = pq.read_table(tmp_path / "vectors.parquet").to_pydict()
    assert table["tokens"][0] == ["[CLS]", "word1", "good1", "[SEP]"]
    for found, wanted in zip(table["vectors"], passages, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    (tmp_path / "queries.txt").write_text("word2 word4")
    ok("features", run, tmp_path / "queries.txt", tmp_path / "q.jsonl", "--prompt", "query")
    line = json.loads((tmp_path / "q.jsonl").read_text())
    assert line["tokens"] == ["[CLS]", "word30", "word2", "word4", "[SEP]", "[MASK]", "[MASK]"]


def test_a_projection_of_another_kind_starts_fresh(run: Path, tmp_path: Path) -> None:
    """Its width is equal, but only sentence embeddings have a bias."""
    values = embedding_config(tmp_path, rows=32, projection=16)
    values["finetune"] |= {"init_from": str(run), "epochs": 1}
    said = ok("finetune", write_config(tmp_path / "config.yaml", values))
    assert "the embedding head starts fresh" in said
    assert bert_jax.load(tmp_path / "tuned").encode("word1").shape == (16,)
