"""The losses of every objective, on encoders with networks of their own."""

import dataclasses
import math
from typing import Any

import jax
import pytest

from bert_jax.encoders.registry import SECTIONS
from bert_jax.objectives.registry import OBJECTIVES
from bert_jax.train.state import define_model, named
from tests.model.parts import model_of
from tests.objectives.cases import (
    NETWORKS,
    OF_VARIANTS,
    TRAINED,
    on_encoders,
)
from tests.objectives.runs import variant_of
from tests.objectives.teachers import frozen_params
from tests.support import loss_of, small_batch
from tests.train.harness import Setting, assert_same, mesh_of, one_device, run_steps

pytestmark = pytest.mark.slow  # one process runs the whole file, so it starts early

STEPS = 3  # optimizer steps of comparisons


@pytest.mark.parametrize("encoder", SECTIONS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_encoder_has_gradients_with_every_objective(objective: str, encoder: str) -> None:
    task, mesh = Setting(objective=objective, encoder=encoder, dropout=0.1).task, mesh_of((1, 1, 1))
    frozen, model, batch = frozen_params(task, mesh), define_model(task.build), small_batch(rows=4)

    def loss(params: Any, batch: Any, key: Any) -> jax.Array:
        return loss_of(task, model_of(task, params), batch, dropout_key=key, frozen=frozen)[0]

    params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), model.params)
    with jax.set_mesh(mesh):
        assert jax.eval_shape(jax.grad(loss), params, batch, jax.random.key(0)) == params
    assert all(model.groups.of(path) for path, _ in named(model.params))
    assert task.flops_per_row(batch) > 0


@on_encoders(NETWORKS)
@pytest.mark.usefixtures("greedy")
def test_the_first_loss_is_that_of_a_uniform_guess(objective: str, encoder: str) -> None:
    losses, _ = one_device(Setting(objective=objective, encoder=encoder), STEPS)
    heads = OBJECTIVES[variant_of(objective).kind].heads
    two_classes = heads.next_sentence + 50 * heads.replaced_tokens
    expected = math.log(250) + two_classes * math.log(2)
    if objective == "distill":  # both guess alike, and hidden states are orthogonal
        expected = 2.0 * math.log(250) + 1.0
    assert losses[0] == pytest.approx(expected, rel=0.04)


@on_encoders([*TRAINED, ("sop", "albert"), *OF_VARIANTS], rarely=OF_VARIANTS)
def test_meshes_and_microbatches_do_not_change_the_training(objective: str, encoder: str) -> None:
    """Masks of dropout and ELECTRA's draws do not change either."""
    setting = Setting(objective=objective, encoder=encoder, dropout=0.1)
    slices_fsdp_tensor = (2, 1, 2, 2)
    found = run_steps(dataclasses.replace(setting, accumulation=2), slices_fsdp_tensor, STEPS)
    assert_same(found, one_device(setting, STEPS))
