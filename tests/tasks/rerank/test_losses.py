"""Losses and gradients equal sentence-transformers' classes, on every mesh."""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from sentence_transformers import CrossEncoder
from sentence_transformers.cross_encoder import losses
from sentence_transformers.sentence_transformer.losses import DistillKLDivLoss

import bert_jax
from bert_jax.model.section import Execution
from bert_jax.model.text_head import CrossEncoderSection
from bert_jax.parallel.sharding_rules import replicated
from bert_jax.runs.run_directory import open_run
from bert_jax.task import Rngs
from bert_jax.tasks.batches import collate
from bert_jax.tasks.rerank.candidates import Candidates
from bert_jax.tasks.rerank.pairs import ListSplit
from bert_jax.tasks.rerank.section import RerankLossSection
from bert_jax.tasks.rerank.task import RerankTask
from bert_jax.train.state import abstract_params, define_model, draw_params
from bert_jax.train.step import make_gradients
from tests.interop.hf_checkpoints import under_their_names
from tests.project import ok
from tests.support import on_mesh
from tests.tasks.rerank.data import rerank_config
from tests.tasks.runs import FILLERS, tiny_run
from tests.train.harness import mesh_of

pytestmark = pytest.mark.slow

ROWS, LENGTH = 6, 20
SAME = functools.partial(jax.tree.map, lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6))


class Models(NamedTuple):
    """The same cross-encoder of both sides."""

    peer: Any
    run: Path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    directory = tmp_path_factory.mktemp("peer")
    values = rerank_config(directory, rows=32)
    values["finetune"] |= {"epochs": 1}
    bert_jax.finetune(bert_jax.parse_config(values))
    ok("export", values["run_dir"], directory / "exported")
    ok("import", directory / "exported", directory / "imported")
    peer = CrossEncoder(str(directory / "exported"), device="cpu", max_length=LENGTH)
    return Models(peer.eval(), directory / "imported")


def rows_of(widths: list[int], *, scale: float = 1.0) -> list[Candidates]:
    """Returns a query per row with different documents of 1 to 12 words, and random labels."""
    rng = np.random.default_rng(2)

    def text() -> str:
        return " ".join(rng.choice(FILLERS, rng.integers(1, 13)))

    made = []
    for at, width in enumerate(widths):
        documents = {f"{number}": text() for number in range(width)}
        labels = np.round(rng.uniform(0, scale, width), 2)
        grades = dict(zip(documents, labels.tolist(), strict=True))
        made.append(Candidates(at, text(), documents, grades, at))
    return made


def targets_of(rows: list[Candidates], name: str) -> Any:
    """Returns the labels as the peer's loss takes them."""
    if name in LISTED:
        return [torch.tensor(each.labels) for each in rows]
    labels = torch.tensor([each.labels for each in rows])
    return labels[:, 0] if labels.shape[1] == 1 else labels


def distillation(model: Any) -> Any:
    """Returns the divergence of a teacher's scores, which their class computes from vectors."""
    loss = DistillKLDivLoss(
        model,
        similarity_fct=lambda _, scores: scores,
        student_temperature=2.0,
        teacher_temperature=0.5,
    )

    def of_batch(inputs: list[list[str]], labels: Any) -> Any:
        queries, *columns = inputs
        pairs = [list(zip(queries, each, strict=True)) for each in columns]
        scores = [model(model.preprocess(each))["scores"].view(-1) for each in pairs]
        return loss.compute_loss_from_embeddings([scores[0], *scores], labels)

    return of_batch


LISTED = ("list_net", "lambda")  # losses that take lists of unequal size
# Loss: the number of candidates of each row, our settings, the peer's loss of a model.
LOSSES: dict[str, tuple[list[int], dict[str, Any], Any]] = {
    "bce": (
        [1] * ROWS,
        {"positive_weight": 3.0},
        lambda model: losses.BinaryCrossEntropyLoss(model, pos_weight=torch.tensor(3.0)),
    ),
    "mse": ([1] * ROWS, {}, losses.MSELoss),
    "list_net": ([2, 4, 1, 3, 4, 2], {}, losses.ListNetLoss),
    "lambda": ([2, 4, 1, 3, 4, 2], {}, losses.LambdaLoss),
    "margin_mse": ([3] * ROWS, {}, losses.MarginMSELoss),
    "kl": ([3] * ROWS, {"temperature": 2.0, "teacher_temperature": 0.5}, distillation),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradients_equal_sentence_transformers(name: str, models: Models) -> None:
    widths, settings, make_loss = LOSSES[name]
    rows = rows_of(widths, scale=1.0 if name == "bce" else 4.0)
    peer = models.peer
    peer.zero_grad()
    queries = [each.query for each in rows]
    documents = [list(each.documents.values()) for each in rows]
    columns = (
        [documents] if name in LISTED else [list(each) for each in zip(*documents, strict=True)]
    )
    expected = make_loss(peer)([queries, *columns], targets_of(rows, name))
    expected.backward()
    named = peer[0].auto_model.named_parameters()
    wanted = {name: each.grad.numpy() for name, each in named if each.grad is not None}

    run, model = open_run(models.run), bert_jax.load(models.run)
    task = RerankTask(
        architecture=model.architecture.with_dropout(0.0),
        execution=Execution(dtype="float32"),
        heads=run.heads,
        training=RerankLossSection.model_validate({"kind": name, **settings}),
    )
    head = CrossEncoderSection()
    split = ListSplit(rows, head=head, tokenizer=run.tokenizer, max_length=LENGTH)
    batch = collate(
        split, np.arange(ROWS), batch_size=ROWS + 2, length=LENGTH, pad_id=run.tokenizer.special.pad
    )
    graphdef, key = define_model(task.build).graphdef, jax.random.key_data(jax.random.key(0))

    def loss(params: Any, batch: Any) -> jax.Array:
        found, _ = task.loss(
            nnx.merge(graphdef, params),
            batch,
            divisors=task.divisors(batch),
            rngs=Rngs(key, None),
            frozen={},
        )
        return found

    value, gradients = jax.jit(jax.value_and_grad(loss))(
        model.params, jax.tree.map(jnp.asarray, batch)
    )
    assert float(value) == pytest.approx(expected.item(), abs=1e-5)
    found = under_their_names(jax.device_get(gradients), model.architecture, run.heads)
    assert len(wanted) > 20
    for parameter, gradient in wanted.items():
        largest = max(1.0, np.abs(gradient).max())
        np.testing.assert_allclose(found[parameter], gradient, atol=1e-5 * largest, rtol=0)


@functools.cache
def gradients_on(
    directory: Path, name: str, shape: tuple[int, ...], accumulation: int
) -> tuple[float, Any]:
    """Returns the loss and the gradients of a step on a mesh."""
    run, widths = open_run(directory), [3, 4, 2, 4] * 3
    task = RerankTask(
        architecture=run.architecture.with_dropout(0.1),
        execution=Execution(dtype="float32"),
        heads=run.heads.model_copy(
            update={
                "mlm": False,
                "next_sentence": False,
                "task": "sequence_classification",
                "labels": ("LABEL_0",),
            }
        ),
        training=RerankLossSection.model_validate({"kind": name}),
    )
    split = ListSplit(
        rows_of(widths), head=CrossEncoderSection(), tokenizer=run.tokenizer, max_length=LENGTH
    )
    rows = np.arange(len(widths))
    batch = collate(split, rows, batch_size=16, length=LENGTH, pad_id=run.tokenizer.special.pad)
    model, mesh = define_model(task.build), mesh_of(shape)
    compute = make_gradients(task, model, accumulation=accumulation)

    def step(params: Any, batch: Any) -> Any:
        dropout = jax.random.key_data(jax.random.key(0, impl="threefry2x32"))
        state: Any = type("State", (), {"params": params, "rng": dropout, "step": 0})
        loss, _, grads = compute(state, batch, {})
        return loss, grads

    with jax.set_mesh(mesh):
        params = draw_params(model, abstract_params(model, mesh), seed=1)
        made = jax.jit(step, out_shardings=replicated(mesh))(params, on_mesh(batch, mesh))
    loss, grads = jax.device_get(made)
    return float(loss), grads


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_run(tmp_path_factory.mktemp("mesh"))


@pytest.mark.parametrize("name", ["bce", "list_net", "lambda", "margin_mse", "kl"])
def test_microbatches_and_meshes_equal_one_device(name: str, small: Path) -> None:
    """Lists of unequal size: the global batch determines the divisors."""
    expected, wanted = gradients_on(small, name, (1, 1, 1), 1)
    for shape, accumulation in (((1, 1, 1), 4), ((8, 1, 1), 2), ((2, 2, 2), 1)):
        loss, grads = gradients_on(small, name, shape, accumulation)
        assert loss == pytest.approx(expected, rel=1e-5)
        SAME(grads, wanted)
