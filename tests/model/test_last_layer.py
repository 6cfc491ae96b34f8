"""A last layer that computes only the tokens that heads read has equal states and gradients."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.model.layers import gather_positions
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from tests.model.parts import fresh_params, model_of
from tests.support import on_mesh, relative_error, small_batch, small_task

FUSED = {"attention": "fused", "norm": "fused"}
WIDE = {"hidden_size": 128, "num_attention_heads": 2}


def packed_batch(rows: int) -> dict[str, Any]:
    """Returns rows with two examples. The queries repeat a position and include padding."""
    batch = small_batch(rows=rows)
    second = (np.arange(32) >= 9) & (batch["segment_ids"] > 0)
    batch["segment_ids"] = batch["segment_ids"] + second
    batch["position_ids"] = np.tile(
        np.where(np.arange(32) >= 9, np.arange(32) - 9, np.arange(32)), (rows, 1)
    )
    queries = np.random.default_rng(3).integers(0, 32, (rows, 7)).astype(np.int32)
    queries[:, -1] = queries[:, 0]
    queries[0, 1] = 31
    return {**batch, "queries": queries}


def states(task: Any, params: Any, batch: Any, *, read_all: bool) -> Any:
    """Returns the gradients of the weighted sum of the states that heads read, and the states."""

    @jax.jit
    def found(params: Any, batch: Any) -> Any:
        weights = jnp.linspace(-1, 1, batch["queries"].size * task.architecture.hidden_size)

        def total(params: Any) -> Any:
            queries = batch["queries"]
            chosen = {} if read_all else {"queries_BQ": queries}
            read = model_of(task, params).hidden(batch, dropout_key=jax.random.key(7), **chosen)
            read = gather_positions(read, queries) if read_all else read
            return (read * weights.reshape(read.shape)).sum(), read

        return jax.grad(total, has_aux=True)(params)

    return found(params, batch)


@pytest.mark.parametrize(
    ("execution", "architecture"),
    [
        ({"unroll": 1, "remat": "attention"}, {"num_hidden_layers": 3}),
        ({}, {"num_hidden_layers": 1}),
        pytest.param({"remat": "full"}, {}, marks=pytest.mark.chaos),
        pytest.param(FUSED, WIDE, marks=pytest.mark.chaos),  # another test covers it on a mesh
        pytest.param(
            FUSED | {"remat": "dots", "unroll": 1},
            WIDE | {"num_hidden_layers": 3},
            marks=pytest.mark.chaos,
        ),
    ],
)
def test_it_equals_the_whole_layer(execution: dict[str, Any], architecture: dict[str, Any]) -> None:
    task = small_task(execution=execution, **architecture)
    params, batch = fresh_params(task), packed_batch(4)
    assert_same(*(states(task, params, batch, read_all=each) for each in (False, True)))


def test_it_equals_the_whole_layer_on_a_mesh() -> None:
    task = small_task(execution=FUSED, num_hidden_layers=1, **WIDE)
    params, batch = fresh_params(task), packed_batch(2)
    plain = small_task(num_hidden_layers=1, **WIDE)
    expected = states(plain, params, batch, read_all=True)
    mesh = make_mesh(MeshSection(data=2, tensor=2), jax.devices()[:4])
    with jax.set_mesh(mesh):
        assert_same(states(task, params, on_mesh(batch, mesh), read_all=False), expected)


def assert_same(found: Any, expected: Any) -> None:
    """Compares states and gradients. The gradient of the key bias is only rounding."""
    (gradients, read), (known, all_read) = found, expected
    np.testing.assert_allclose(np.asarray(read), np.asarray(all_read), atol=2e-5)
    largest = max(float(np.linalg.norm(each)) for each in jax.tree.leaves(known))
    for path, one in jax.tree_util.tree_leaves_with_path(gradients):
        other = known
        for key in path:
            other = other[key.key]
        off = np.linalg.norm(np.asarray(one) - np.asarray(other))
        assert relative_error(one, other) < 1e-5 or off < 1e-6 * largest, path
