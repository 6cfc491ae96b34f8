"""Every mesh, with and without accumulation, gives the results of one device."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.train.checkpointer import Checkpointer
from bert_jax.train.sections import CheckpointSection
from tests.support import small_batch
from tests.train.harness import Setting, assert_same, first_state, one_device, run_steps, trainer

pytestmark = pytest.mark.slow

SHAPES = [(d, f, 8 // (d * f)) for d in (1, 2, 4, 8) for f in (1, 2, 4, 8) if 8 % (d * f) == 0]


# `tests/objectives/test_every_loss.py` has a mesh of all axes for every objective.
@pytest.mark.chaos
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mesh_gives_the_one_device_loss_and_parameters(
    shape: tuple[int, int, int], optimizer: str, accumulation: int
) -> None:
    setting = Setting(optimizer=optimizer)
    found = run_steps(dataclasses.replace(setting, accumulation=accumulation), shape)
    assert_same(found, one_device(setting))


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


def test_a_run_resumed_on_other_meshes_and_microbatches_has_the_same_loss(tmp_path: Path) -> None:
    setting, found = Setting(dropout=0.1), []
    for step, (shape, parts) in enumerate([((1, 1, 1), 4), ((2, 2, 2), 1), ((1, 8, 1), 2)]):
        run = trainer(dataclasses.replace(setting, accumulation=parts), shape)
        state = first_state(Setting())
        with Checkpointer(tmp_path, CheckpointSection()) as checkpoints:
            if step:
                state = checkpoints.restore_state(run.abstract, step=step)
            state, metrics = run.step(run.place(state), small_batch(seed=step))
            found.append(metrics["loss"][0])
            checkpoints.save(state, step=step + 1, progress={})
    np.testing.assert_allclose(found, one_device(setting)[0][:3], rtol=1e-5)


@pytest.mark.parametrize(
    "shape",
    [pytest.param(s, marks=[pytest.mark.chaos] * (s != (2, 2, 2))) for s in SHAPES],
    ids=str,
)
def test_the_average_equals_a_loop_in_numpy(shape: tuple[int, int, int]) -> None:
    setting = Setting(ema=0.2)  # its warm-up ends after two steps
    run = trainer(setting, shape)
    state = run.place(first_state(setting))
    expected = jax.device_get(state.params)
    for step, decay in enumerate([1 / 10, 2 / 11, 0.2, 0.2]):
        state, _ = run.step(state, small_batch(seed=step))
        expected = jax.tree.map(
            lambda old, new, d=decay: d * old + (1 - d) * new,
            expected,
            jax.device_get(state.params),
        )
    jax.tree.map(
        lambda found, wanted: np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6),
        jax.device_get(state.ema),
        expected,
    )
