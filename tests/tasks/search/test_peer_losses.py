"""Losses and gradients of a whole model equal sentence-transformers' classes."""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from sentence_transformers.sentence_transformer import losses

import bert_jax
from bert_jax.inference.comparison import comparison_of
from bert_jax.model.section import Execution
from bert_jax.model.text_head import PoolingSection
from bert_jax.runs.run_directory import open_run
from bert_jax.task import Rngs
from bert_jax.tasks.batches import collate
from bert_jax.tasks.embedding.section import EmbeddingLossSection
from bert_jax.tasks.embedding.task import EmbeddingTask
from bert_jax.tasks.search.tuples import TextTuple, TupleSplit
from bert_jax.train.state import define_model
from tests.interop.hf_checkpoints import under_their_names
from tests.interop.test_sentence_transformers import theirs, written_by_them
from tests.project import ok

ROWS, LENGTH = 6, 20
SCORES = np.asarray([0.1, 0.9, 0.5, 0.5, 0.0, 1.0], np.float32)
TEACHER = np.random.default_rng(3).normal(scale=2, size=(ROWS, 3)).astype(np.float32)
VECTORS = np.random.default_rng(4).normal(size=(ROWS, 24)).astype(np.float32)
WIDTHS = (24, 16, 6)  # the model has a projection of width 24


class Models(NamedTuple):
    """The same model of both sides."""

    peer: Any
    run: Path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    directory = tmp_path_factory.mktemp("peer")
    source = written_by_them(directory, "bert")
    ok("import", source, directory / "run")
    return Models(theirs(source).eval(), directory / "run")


def rows_of(texts: int, teacher: np.ndarray | None) -> list[TextTuple]:
    """Returns rows of different texts with 1 to 12 words."""
    rng = np.random.default_rng(2)
    made = []
    for row in range(ROWS):
        words = [rng.integers(1, 40, rng.integers(1, 13)) for _ in range(texts)]
        own = tuple(" ".join(f"w{word}" for word in each) for each in words)
        found = None if teacher is None else teacher[row]
        made.append(TextTuple(row, own, float(SCORES[row]), row, found))
    return made


SYMMETRIC = functools.partial(
    losses.MultipleNegativesRankingLoss,
    directions=("query_to_doc", "doc_to_query"),
    partition_mode="per_direction",
)
# Kind: number of texts in a row, our settings, and the peer's loss of a model. A teacher's scores
# are its labels if there are three texts or more.
LOSSES: dict[str, tuple[int, dict[str, Any], Any]] = {
    "pairs": (2, {}, losses.MultipleNegativesRankingLoss),
    "hard negatives": (4, {}, losses.MultipleNegativesRankingLoss),
    "symmetric": (2, {"symmetric": True}, SYMMETRIC),
    "cosent": (2, {"kind": "cosent"}, losses.CoSENTLoss),
    "cosine": (2, {"kind": "cosine"}, losses.CosineSimilarityLoss),
    "margins": (4, {"kind": "margin_mse"}, losses.MarginMSELoss),
    "divergence": (
        4,
        {"kind": "kl", "temperature": 0.5, "teacher_temperature": 3.0},
        lambda model: losses.DistillKLDivLoss(
            model, student_temperature=0.5, teacher_temperature=3.0
        ),
    ),
    "vectors": (1, {"kind": "mse"}, losses.MSELoss),
    "matryoshka": (
        2,
        {"matryoshka": WIDTHS},
        lambda model: losses.MatryoshkaLoss(
            model, losses.MultipleNegativesRankingLoss(model), matryoshka_dims=list(WIDTHS)
        ),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradients_equal_sentence_transformers(name: str, models: Models) -> None:
    texts, settings, make_loss = LOSSES[name]
    labels = {1: VECTORS, 4: TEACHER}.get(texts)
    rows, peer = rows_of(texts, labels), models.peer
    peer.zero_grad()
    features = [peer.preprocess([row.texts[at] for row in rows]) for at in range(texts)]
    expected = make_loss(peer)(features, torch.tensor(SCORES if labels is None else labels))
    expected.backward()
    named = peer[0].auto_model.named_parameters()
    wanted = {name: each.grad.numpy() for name, each in named if each.grad is not None}

    run, model = open_run(models.run), bert_jax.load(models.run)
    task = EmbeddingTask(
        architecture=model.architecture.with_dropout(0.0),
        execution=Execution(dtype="float32"),
        heads=run.heads,
        training=EmbeddingLossSection.model_validate(settings),
    )
    split = TupleSplit(
        rows,
        prefixes=[""] * texts,
        tokenizer=run.tokenizer,
        max_length=LENGTH,
        comparison=comparison_of(PoolingSection()),
    )
    batch = collate(
        split, np.arange(ROWS), batch_size=ROWS, length=LENGTH, pad_id=run.tokenizer.special.pad
    )
    graphdef = define_model(task.build).graphdef

    key = jax.random.key_data(jax.random.key(0))

    def loss(params: Any, batch: Any) -> jax.Array:
        found, _ = task.loss(
            nnx.merge(graphdef, params), batch, divisors={}, rngs=Rngs(key, None), frozen={}
        )
        return found

    value, gradients = jax.jit(jax.value_and_grad(loss))(
        model.params, jax.tree.map(jnp.asarray, batch)
    )
    assert float(value) == pytest.approx(expected.item(), abs=1e-5)
    gradients = jax.device_get(gradients)
    dense = gradients.pop("embedding")["dense"]
    np.testing.assert_allclose(dense["kernel"].T, peer[2].linear.weight.grad.numpy(), atol=1e-5)
    heads = run.heads.model_copy(update={"embedding": None})
    found = under_their_names(gradients, model.architecture, heads)
    assert len(wanted) > 30
    for name_of_theirs, gradient in wanted.items():
        largest = max(1.0, np.abs(gradient).max())
        np.testing.assert_allclose(
            found[f"bert.{name_of_theirs}"], gradient, atol=1e-5 * largest, rtol=0
        )
