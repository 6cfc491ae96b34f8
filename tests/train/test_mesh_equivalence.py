"""Every mesh, with and without accumulation, computes what one device computes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.optim.optimizer import OptimizerSection, make_optimizer
from bert_jax.optim.schedule import Stretch, linear_schedule
from bert_jax.parallel.mesh import MeshSection, make_mesh
from bert_jax.train.compiled import compile_train_step
from bert_jax.train.state import abstract_state, define_model, initialise
from tests.support import on_mesh, relative_error, small_batch, small_task

STEPS = 5
SHAPES = [(d, f, 8 // (d * f)) for d in (1, 2, 4, 8) for f in (1, 2, 4, 8) if 8 % (d * f) == 0]


def run_steps(
    shape: tuple[int, int, int], *, accumulation: int, dropout: float, optimizer: str = "adamw"
) -> tuple[list[float], Any]:
    """Five real train steps on a mesh; returns the losses and the parameters."""
    task = small_task(hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    section = OptimizerSection(name=optimizer, learning_rate=1e-2, warmup_steps=2)
    schedule = linear_schedule(Stretch(20, 1e-2, 2))
    data, fsdp, tensor = shape
    devices = jax.devices()[: data * fsdp * tensor]
    mesh = make_mesh(MeshSection(data=data, fsdp=fsdp, tensor=tensor), devices)
    model = define_model(task)
    transform = make_optimizer(section, schedule, model.axes)
    losses = []
    with jax.set_mesh(mesh):
        state = initialise(task, transform, abstract_state(model, transform, mesh), seed=1)
        step_fn = None
        for step in range(STEPS):
            batch = on_mesh(small_batch(seed=step), mesh)
            if step_fn is None:
                step_fn = compile_train_step(
                    task,
                    model,
                    transform,
                    schedule,
                    state,
                    batch,
                    accumulation=accumulation,
                    rng="threefry2x32",
                )
            state, metrics = step_fn(state, batch)
            losses.append(float(metrics["loss"][0]))
    return losses, jax.device_get(state.params)


@functools.cache
def one_device(dropout: float, optimizer: str = "adamw") -> tuple[list[float], Any]:
    return run_steps((1, 1, 1), accumulation=1, dropout=dropout, optimizer=optimizer)


def assert_same(found: tuple[list[float], Any], expected: tuple[list[float], Any]) -> None:
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    leaves = jax.tree_util.tree_leaves_with_path(found[1])
    for (path, leaf), other in zip(leaves, jax.tree.leaves(expected[1]), strict=True):
        error = relative_error(leaf, other)
        print(jax.tree_util.keystr(path), error)


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mesh_gives_the_one_device_loss_and_parameters(
    shape: tuple[int, int, int], accumulation: int
) -> None:
    found = run_steps(shape, accumulation=accumulation, dropout=0.0)
    assert_same(found, one_device(0.0))
