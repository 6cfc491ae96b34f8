"""Optimizers compute the same updates on every mesh, with parameters and moments sharded."""

import functools
from typing import Any, Literal, cast

import jax
import numpy as np
import optax
import pytest
from flax.traverse_util import flatten_dict

from bert_jax.optim.optimizer import make_optimizer
from bert_jax.optim.sections import OptimizerSection
from bert_jax.train.state import abstract_state, define_model, draw_params
from tests.support import relative_error, small_task
from tests.train.harness import mesh_of

Name = Literal["stable_adamw", "muon"]
STEPS = 3


@functools.cache
def updated(name: Name, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Returns all parameters after three updates on a mesh, with random gradients."""
    section = OptimizerSection(name=name, bias_correction=True, clip_norm=None, weight_decay=0.1)
    model, mesh = define_model(small_task(num_hidden_layers=3).build), mesh_of(shape)
    optimizer = make_optimizer(section, model.axes)
    abstract = abstract_state(model, optimizer, mesh)
    layout = jax.tree.map(lambda leaf: leaf.sharding, (abstract.params, abstract.opt_state))

    def gradients(step: int) -> Any:
        rng = np.random.default_rng(step)
        return jax.tree.map(
            lambda leaf: (10.0**step * rng.standard_normal(leaf.shape)).astype(np.float32),
            model.params,
        )

    @functools.partial(jax.jit, out_shardings=layout)
    def advance(params: Any, state: Any, grads: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(grads, state, params, learning_rate=1e-2)
        return optax.apply_updates(params, updates), state

    with jax.set_mesh(mesh):
        params = draw_params(model, abstract.params, seed=1)
        state = jax.jit(optimizer.init, out_shardings=layout[1])(params)
        for step in range(STEPS):
            grads = jax.device_put(gradients(step), layout[0])
            params, state = advance(params, state, grads)
    return cast(dict[str, np.ndarray], flatten_dict(jax.device_get(params), sep="/"))


@pytest.mark.parametrize("shape", [(8, 1, 1), (1, 8, 1), (2, 2, 2), (2, 2, 1, 2)], ids=str)
@pytest.mark.parametrize("name", ["stable_adamw", "muon"])
def test_every_mesh_gives_the_same_parameters(name: Name, shape: tuple[int, ...]) -> None:
    one, found = updated(name, (1, 1, 1)), updated(name, shape)
    assert max(relative_error(found[path], one[path]) for path in one) < 1e-5


def products(shape: tuple[int, ...]) -> float:
    """Returns the FLOPs of one device in a step of Muon."""
    section = OptimizerSection(name="muon", clip_norm=None)
    model, mesh = define_model(small_task(num_hidden_layers=4).build), mesh_of(shape)
    optimizer = make_optimizer(section, model.axes)
    abstract = abstract_state(model, optimizer, mesh)

    def advance(params: Any, state: Any) -> Any:
        return optimizer.update(params, state, params, learning_rate=1e-2)

    with jax.set_mesh(mesh):
        compiled = jax.jit(advance).lower(abstract.params, abstract.opt_state).compile()
    costs = compiled.cost_analysis()
    assert costs is not None
    return costs["flops"]


@pytest.mark.parametrize("shape", [(8, 1, 1), (2, 2, 2)], ids=str)
def test_the_devices_share_the_matrices_of_muon(shape: tuple[int, ...]) -> None:
    # 16 matrices of attention, and 4 for each product of the FFN: 2, 1 and 1 on the busiest device
    assert products(shape) < 0.25 * products((1, 1, 1))
