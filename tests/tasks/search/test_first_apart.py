"""Queries in a batch of their own length give the losses and gradients of one batch."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.tasks.batches import FIRST, INPUTS
from bert_jax.tasks.search.task import VectorTask
from tests.tasks.search import test_late_interaction as late
from tests.tasks.search import test_task as dense
from tests.tasks.search.test_task import LENGTH, batch_of, gradients_on
from tests.tasks.sparse import test_task as sparse

pytestmark = pytest.mark.slow

QUERY = 5  # positions of a query

KINDS: dict[str, Callable[..., VectorTask]] = {
    "dense": dense.task_of,
    "sparse": sparse.task_of,
    "late interaction": late.task_of,
}


def batches(query: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns a batch whose queries have few pieces, and the batch with them apart."""
    batch = batch_of()
    for name in INPUTS:
        batch[name][:, 0, query:] = 0
    apart = batch | {name: batch[name][:, 1:] for name in INPUTS}
    return batch, apart | {key: batch[name][:, 0, :query] for name, key in FIRST.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("query", [QUERY, LENGTH])
def test_queries_apart_change_nothing(kind: str, query: int) -> None:
    task = KINDS[kind]()
    (expected, wanted), (found, grads) = (
        gradients_on((1, 1, 1), task, batch=batch, step=4) for batch in batches(query)
    )
    assert found == pytest.approx(expected, rel=1e-6)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-6), grads, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_and_meshes_equal_one_device(kind: str) -> None:
    """Dropout too."""
    _, apart = batches(QUERY)

    def compute(shape: tuple[int, ...], chunks: int) -> tuple[float, Any]:
        task = KINDS[kind](dropout=0.1, chunks=chunks)
        return gradients_on(shape, task, batch=apart, step=4)

    expected, wanted = compute((1, 1, 1), 1)
    for shape, chunks in (((1, 1, 1), 4), ((8, 1, 1), 2), ((2, 2, 2), 1)):
        found, grads = compute(shape, chunks)
        assert found == pytest.approx(expected, rel=1e-6)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-6), grads, wanted)
