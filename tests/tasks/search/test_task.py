"""The step of sentence embeddings: chunks, meshes, poolings and every encoder."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from bert_jax.encoders.registry import SECTIONS
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.parallel.sharding_rules import replicated
from bert_jax.tasks.batches import INPUTS, WEIGHTS
from bert_jax.tasks.embedding.section import EmbeddingLossSection
from bert_jax.tasks.embedding.task import EmbeddingTask
from bert_jax.tasks.search.task import VectorTask
from bert_jax.tasks.search.tuples import TEACHER, TEXTS
from bert_jax.tasks.task import logits
from bert_jax.train.state import abstract_params, define_model, draw_params
from bert_jax.train.step import make_gradients
from tests.project import refuses
from tests.support import on_mesh, small_encoder
from tests.train.harness import mesh_of

pytestmark = pytest.mark.slow

ROWS, TEXTS_OF_A_ROW, LENGTH = 16, 3, 10
HEADS = {"pooler": False, "mlm": False, "next_sentence": False}


def task_of(
    *,
    kind: str = "bert",
    chunks: int = 1,
    dropout: float = 0.0,
    loss: dict[str, Any] | None = None,
    **embedding: Any,
) -> EmbeddingTask:
    settings = {"projection": 24, "temperature": 0.1, **embedding}
    architecture = small_encoder(kind, num_hidden_layers=1, initializer_range=0.2)
    return EmbeddingTask(
        architecture=architecture.with_dropout(dropout),
        execution=Execution(dtype="float32"),
        heads=HeadsSection.model_validate({**HEADS, "embedding": settings}),
        training=EmbeddingLossSection.model_validate(
            {"temperature": 0.1, "learn_temperature": True, "symmetric": True, **(loss or {})}
        ),
        chunks=chunks,
    )


@functools.cache
def batch_of() -> dict[str, np.ndarray]:
    """Returns triplets of different lengths. The last row is padding; two rows share an anchor."""
    rng = np.random.default_rng(0)
    shape = (ROWS, TEXTS_OF_A_ROW, LENGTH)
    inside = np.arange(LENGTH) < rng.integers(4, LENGTH + 1, shape[:2])[..., None]
    numbers = np.arange(ROWS * TEXTS_OF_A_ROW, dtype=np.int32).reshape(ROWS, 1, TEXTS_OF_A_ROW)
    numbers[3, 0, 0] = numbers[9, 0, 0]
    weights = np.ones(ROWS, np.float32)
    weights[-1] = 0
    return {
        "input_ids": np.where(inside, rng.integers(5, 250, shape), 0).astype(np.int32),
        "token_type_ids": np.zeros(shape, np.int32),
        "segment_ids": inside.astype(np.int32),
        TEXTS: numbers,
        TEACHER: rng.normal(size=(ROWS, TEXTS_OF_A_ROW - 1)).astype(np.float32),
        WEIGHTS: weights,
    }


@functools.cache
def params_of(task: VectorTask) -> Any:
    model = define_model(task.build)
    return jax.device_get(draw_params(model, abstract_params(model, mesh_of((1, 1, 1))), seed=1))


def gradients_on(
    shape: tuple[int, ...], task: VectorTask, *, step: int = 0, batch: Any = None
) -> tuple[float, Any]:
    """Returns the loss and the gradients of a step on a mesh. The default is `batch_of`."""
    model, mesh = define_model(task.build), mesh_of(shape)
    compute = make_gradients(task, model, accumulation=1)

    def run(params: Any, batch: Any) -> Any:
        dropout = jax.random.key_data(jax.random.key(0, impl="threefry2x32"))
        state: Any = type("State", (), {"params": params, "rng": dropout, "step": step})
        loss, _, grads = compute(state, batch, {})
        return loss, grads

    with jax.set_mesh(mesh):
        params = jax.tree.map(
            lambda value, like: jax.device_put(value, like.sharding),
            params_of(task),
            abstract_params(model, mesh),
        )
        batch = on_mesh(batch_of() if batch is None else batch, mesh)
        made = jax.jit(run, out_shardings=replicated(mesh))(params, batch)
    loss, grads = jax.device_get(made)
    return float(loss), grads


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
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), grads, wanted)
    assert abs(wanted["embedding"]["scale"][0]) > 1e-3


def test_scores_of_a_teacher_on_a_mesh_equal_one_device() -> None:
    loss = {"kind": "kl", "learn_temperature": False, "symmetric": False, "temperature": 0.5}
    task = task_of(loss=loss, temperature=None, dropout=0.1)
    expected, wanted = gradients_on((1, 1, 1), task)
    found, grads = gradients_on((2, 2, 2), dataclasses.replace(task, chunks=2))
    assert found == pytest.approx(expected, rel=1e-6)
    assert expected > 0.01
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), grads, wanted)


@pytest.mark.parametrize("kind", SECTIONS)
def test_vectors_of_every_encoder_follow_the_pooling(kind: str) -> None:
    batch = {name: jnp.asarray(batch_of()[name]) for name in INPUTS}
    flat = {name: array.reshape(-1, LENGTH) for name, array in batch.items()}
    tokens = flat["segment_ids"].sum(1)
    tasks = {
        pool: task_of(kind=kind, pool=pool, normalize=pool == "last", projection=None)
        for pool in ("mean", "cls", "last")
    }
    params = params_of(tasks["mean"])

    def model_of(pool: str, params: Any) -> EncoderModel:
        return nnx.merge(define_model(tasks[pool].build).graphdef, params)

    @jax.jit
    def compute(params: Any) -> Any:
        states = model_of("mean", params).hidden(flat, dropout_key=None)
        return states, [logits(model_of(pool, params), batch, dropout_key=None) for pool in tasks]

    assert (
        define_model(task_of(kind=kind).build).groups.of("embedding/dense/kernel").part == "heads"
    )
    states, found = jax.device_get(compute(params))
    mean, first, last = (each.reshape(len(states), -1) for each in found)
    inside = flat["segment_ids"][..., None]
    np.testing.assert_allclose(mean, (states * inside).sum(1) / tokens[:, None], atol=1e-5)
    np.testing.assert_allclose(first, states[:, 0], atol=1e-5)
    ends = states[np.arange(len(states)), tokens - 1]
    lengths = np.linalg.norm(ends, axis=1, keepdims=True)
    np.testing.assert_allclose(last, ends / lengths, atol=1e-5)


def test_a_matryoshka_width_must_fit_the_vectors() -> None:
    with refuses("embedding.matryoshka", found=32, width=24):
        task_of(loss={"matryoshka": (32, 8)})
