"""Every mesh, with and without accumulation, gives the results of one device."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.train.checkpointer import Checkpointer
from bert_jax.train.sections import CheckpointSection
from tests.support import relative_error, small_batch
from tests.train.harness import PEAK, Setting, first_state, trainer

STEPS = 5
SHAPES = [(d, f, 8 // (d * f)) for d in (1, 2, 4, 8) for f in (1, 2, 4, 8) if 8 % (d * f) == 0]
KEY_BIAS = "encoder/layers/attention/key/bias"


def run_steps(setting: Setting, shape: tuple[int, int, int]) -> tuple[list[float], Any]:
    """Runs five train steps on a mesh; returns the losses and the parameters.

    Rows have different numbers of masks, so a mean of means over devices or microbatches is wrong.
    """
    run = trainer(setting, shape)
    state = run.place(first_state(dataclasses.replace(setting, dropout=0.0, accumulation=1)))
    losses = []
    for step in range(STEPS):
        state, metrics = run.step(state, small_batch(seed=step))
        losses.append(metrics["loss"][0])
    return losses, jax.device_get(state.params)


@functools.cache
def one_device(setting: Setting) -> tuple[list[float], Any]:
    return run_steps(setting, (1, 1, 1))


def assert_same(found: tuple[list[float], Any], expected: tuple[list[float], Any]) -> None:
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-5)
    errors = {}
    leaves = jax.tree_util.tree_leaves_with_path(found[1])
    for (path, leaf), other in zip(leaves, jax.tree.leaves(expected[1]), strict=True):
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if name == KEY_BIAS:
            # The key bias adds a constant to all scores of a query, which softmax cancels. Its
            # gradient is rounding error and depends on the order of summation, so only check that
            # it stays near 0. A parameter with a real gradient moves by about PEAK.
            assert max(np.abs(leaf).max(), np.abs(other).max()) < 0.01 * PEAK
        else:
            errors[name] = relative_error(leaf, other)
    assert KEY_BIAS not in errors
    assert len(errors) == len(leaves) - 1
    assert {name: error for name, error in errors.items() if error > 1e-5} == {}


# Accumulation → meshes: each axis alone, and all axes. Accumulation splits the batch along the data
# axis, so it uses that mesh. `make chaos` tests all other meshes.
TELLING = {1: [(1, 8, 1), (1, 1, 8), (2, 2, 2)], 2: [(8, 1, 1)]}


@pytest.mark.parametrize(
    ("shape", "accumulation"),
    [
        pytest.param(shape, parts, marks=() if shape in telling else pytest.mark.chaos)
        for parts, telling in TELLING.items()
        for shape in SHAPES
    ],
    ids=str,
)
def test_mesh_gives_the_one_device_loss_and_parameters(
    shape: tuple[int, int, int], accumulation: int
) -> None:
    found = run_steps(Setting(accumulation=accumulation), shape)
    assert_same(found, one_device(Setting()))


def test_loops_over_layers_and_microbatches_agree_on_a_mesh() -> None:
    """Unlike the default, which unrolls two layers, a loop gathers all parameters in advance."""
    assert_same(run_steps(Setting(unroll=1, accumulation=2), (2, 2, 2)), one_device(Setting()))


def test_meshes_agree_with_dropout_on_under_lamb() -> None:
    """LAMB needs norms of parameters that are split over two axes of the mesh."""
    setting = Setting(dropout=0.1, optimizer="lamb")
    found = run_steps(setting, (2, 2, 2))
    assert_same(found, one_device(setting))
    # Dropout changes the loss of the first step, on which the optimizer has no effect.
    assert found[0][0] != pytest.approx(one_device(Setting())[0][0], rel=1e-4)


def test_first_parameters_do_not_depend_on_the_mesh() -> None:
    one, eight = first_state(Setting()), first_state(Setting(), (2, 2, 2))
    jax.tree.map(np.testing.assert_array_equal, one, eight)


def test_a_run_resumed_on_other_meshes_has_the_same_loss(tmp_path: Path) -> None:
    setting, found = Setting(), []
    for step, shape in enumerate([(1, 1, 1), (2, 2, 2), (1, 8, 1)]):
        run, state = trainer(setting, shape), first_state(setting)
        with Checkpointer(tmp_path, CheckpointSection()) as checkpoints:
            if step:
                state = checkpoints.restore_state(run.abstract, step=step)
            state, metrics = run.step(run.place(state), small_batch(seed=step))
            found.append(metrics["loss"][0])
            checkpoints.save(state, step=step + 1, progress={})
    np.testing.assert_allclose(found, one_device(setting)[0][:3], rtol=1e-5)
