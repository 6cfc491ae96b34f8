"""The losses of every objective, on encoders with networks of their own."""

import dataclasses
import math

import pytest

from bert_jax.objectives.registry import OBJECTIVES
from tests.objectives.cases import (
    NETWORKS,
    OF_VARIANTS,
    TRAINED,
    on_encoders,
)
from tests.train.harness import Setting, assert_same, one_device, run_steps

pytestmark = pytest.mark.slow  # one process runs the whole file, so it starts early

STEPS = 3  # optimizer steps of comparisons


@on_encoders(NETWORKS)
@pytest.mark.usefixtures("greedy")
def test_the_first_loss_is_that_of_a_uniform_guess(objective: str, encoder: str) -> None:
    losses, _ = one_device(Setting(objective=objective, encoder=encoder), STEPS)
    heads = OBJECTIVES[objective].heads
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
