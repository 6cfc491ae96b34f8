"""The head, the loss and the step of sparse encoders equal sentence-transformers."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from sentence_transformers import SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sparse_encoder import losses
from sentence_transformers.sparse_encoder.modules import SpladePooling

import bert_jax
from bert_jax.encoders.registry import SECTIONS
from bert_jax.inference.comparison import comparison_of
from bert_jax.model import sparse_head
from bert_jax.model.section import Execution
from bert_jax.model.text_head import SparseHeadSection
from bert_jax.runs.run_directory import open_run
from bert_jax.task import Rngs
from bert_jax.tasks.batches import INPUTS, collate
from bert_jax.tasks.search.tuples import TupleSplit
from bert_jax.tasks.sparse.section import SparseLossSection, SparseSection
from bert_jax.tasks.sparse.task import SparseTask
from bert_jax.tasks.task import logits
from bert_jax.train.state import define_model
from tests.interop.hf_checkpoints import under_their_names
from tests.interop.test_sentence_transformers import encoder
from tests.project import ok
from tests.support import small_encoder
from tests.tasks.search.test_peer_losses import LENGTH, ROWS, TEACHER, rows_of
from tests.tasks.search.test_task import LENGTH as SHORT
from tests.tasks.search.test_task import batch_of, gradients_on, params_of
from tests.train.harness import mesh_of

pytestmark = pytest.mark.slow

FLOPS = {"query_flops": 0.003, "passage_flops": 0.002}
WARMUP = 8
RANKING = losses.SparseMultipleNegativesRankingLoss


def task_of(kind: str = "bert", *, chunks: int = 1, dropout: float = 0.0) -> SparseTask:
    architecture = small_encoder(kind, num_hidden_layers=1, initializer_range=0.2)
    return SparseTask(
        architecture=architecture.with_dropout(dropout),
        execution=Execution(dtype="float32"),
        heads=SparseSection(train="t", anchor="a", positive="p").heads(SparseHeadSection()),
        training=SparseLossSection.model_validate({"temperature": 20.0, **FLOPS}),
        warmup=WARMUP,
        chunks=chunks,
    )


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[SparseEncoder, Path]:
    """The same model of both sides."""
    directory = tmp_path_factory.mktemp("peer")
    first = Transformer(
        str(encoder("BertForMaskedLM", directory / "encoder")), transformer_task="fill-mask"
    )
    peer = SparseEncoder(modules=[first, SpladePooling("max")], device="cpu")
    peer.save_pretrained(str(directory / "saved"), create_model_card=False)
    ok("import", directory / "saved", directory / "run")
    peer.eval()
    peer[1].train()  # in evaluation, the pooling overwrites its input
    return peer, directory / "run"


# Number of texts in a row, step, our settings, and the peer's loss of a model.
LOSSES: dict[str, tuple[int, int | None, dict[str, Any], Any]] = {
    "pairs": (2, None, {"temperature": 20.0}, functools.partial(RANKING, scale=1 / 20)),
    "negatives": (4, 3, {"temperature": 20.0}, functools.partial(RANKING, scale=1 / 20)),
    "margins": (4, None, {"kind": "margin_mse"}, losses.SparseMarginMSELoss),
    "divergence": (
        4,
        None,
        {"kind": "kl", "temperature": 20.0, "teacher_temperature": 3.0},
        functools.partial(
            losses.SparseDistillKLDivLoss, student_temperature=20.0, teacher_temperature=3.0
        ),
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradients_equal_sentence_transformers(
    name: str, models: tuple[SparseEncoder, Path]
) -> None:
    """At step 3 of 8, the regularisers have (3/8)² of their weights."""
    (texts, step, settings, make_loss), (peer, directory) = LOSSES[name], models
    labels = TEACHER if settings.get("kind") else None
    rows = rows_of(texts, labels)
    share = 1.0 if step is None else (step / WARMUP) ** 2
    theirs = losses.SpladeLoss(
        peer,
        make_loss(peer),
        document_regularizer_weight=share * FLOPS["passage_flops"],
        query_regularizer_weight=share * FLOPS["query_flops"],
    )
    peer.zero_grad()
    features = [peer.preprocess([row.texts[at] for row in rows]) for at in range(texts)]
    expected = sum(theirs(features, labels if labels is None else torch.tensor(labels)).values())
    expected.backward()
    named = peer[0].auto_model.named_parameters()
    wanted = {name: each.grad.numpy() for name, each in named if each.grad is not None}

    run, model = open_run(directory), bert_jax.load(directory)
    task = SparseTask(
        architecture=model.architecture.with_dropout(0.0),
        execution=Execution(dtype="float32"),
        heads=run.heads,
        training=SparseLossSection.model_validate(FLOPS | settings),
        warmup=WARMUP,
    )
    split = TupleSplit(
        rows,
        prefixes=[""] * texts,
        tokenizer=run.tokenizer,
        max_length=LENGTH,
        comparison=comparison_of(SparseHeadSection()),
    )
    batch = collate(
        split, np.arange(ROWS), batch_size=ROWS, length=LENGTH, pad_id=run.tokenizer.special.pad
    )
    graphdef = define_model(task.build).graphdef
    rngs = Rngs(
        jax.random.key_data(jax.random.key(0)), None, None if step is None else jnp.int32(step)
    )

    def loss(params: Any, batch: Any) -> Any:
        return task.loss(nnx.merge(graphdef, params), batch, divisors={}, rngs=rngs, frozen={})

    # One CPU has a program of its own.
    with jax.set_mesh(mesh_of((1, 1, 1))):
        (value, metrics), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(
            jax.device_get(model.params), jax.tree.map(jnp.asarray, batch)
        )
    assert float(value) == pytest.approx(expected.item(), rel=1e-5)
    with torch.no_grad():
        vectors = [peer(each)["sentence_embedding"] for each in features]
    scores = task.score(jax.device_get(metrics))
    for role, found in (("query", vectors[0]), ("passage", torch.cat(vectors[1:]))):
        active = (found > 0).sum(dim=1).float().mean().item()
        assert scores[f"{role}_pieces"] == pytest.approx(active)
    ours = under_their_names(jax.device_get(gradients), model.architecture, run.heads)
    assert len(wanted) > 30
    for each, gradient in wanted.items():
        largest = max(1.0, np.abs(gradient).max())
        np.testing.assert_allclose(ours[each], gradient, atol=1e-5 * largest, rtol=0)


@functools.cache
def whole() -> tuple[float, Any]:
    return gradients_on((1, 1, 1), task_of(dropout=0.1), step=4)


@pytest.mark.parametrize(
    ("shape", "chunks", "tokens"),
    [
        *(((1, 1, 1), 4, 4096), ((1, 1, 1), 1, 128), ((8, 1, 1), 1, 4096)),
        *(((2, 2, 2), 1, 16), ((4, 2, 1), 2, 16), ((1, 4, 2), 2, 4096), ((1, 1, 8), 1, 4096)),
    ],
    ids=str,
)
def test_chunks_parts_and_meshes_equal_one_device(
    shape: tuple[int, ...], chunks: int, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tokens` is the number of tokens of a device whose logits are computed at a time."""
    expected, wanted = whole()
    monkeypatch.setattr(sparse_head, "_MOST_TOKENS", tokens)
    jax.clear_caches()
    loss, grads = gradients_on(shape, task_of(chunks=chunks, dropout=0.1), step=4)
    assert loss == pytest.approx(expected, rel=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-6), grads, wanted)


@pytest.mark.parametrize("kind", SECTIONS)
def test_every_encoder_weights_its_pieces(kind: str) -> None:
    task = task_of(kind)
    batch = {name: jnp.asarray(batch_of()[name][:, 0]) for name in INPUTS}

    @jax.jit
    def compute(params: Any) -> Any:
        model = nnx.merge(define_model(task.build).graphdef, params)
        every = model.mlm_logits(model.hidden(batch, dropout_key=None))
        return every, logits(model, batch, dropout_key=None)

    every, found = jax.device_get(compute(params_of(task)))
    inside = batch["segment_ids"][..., None] > 0
    expected = np.log1p(np.maximum(np.where(inside, every, 0), 0)).max(axis=1)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not found[:, 250:].any()  # the padding of the vocabulary
    assert every.shape[1] == SHORT
