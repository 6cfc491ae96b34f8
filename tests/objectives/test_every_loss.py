"""The losses of every objective, on every encoder that can have its heads."""

import dataclasses
import math
from typing import Any

import pytest

from bert_jax.objectives.registry import OBJECTIVES, make_objective, read_objective
from tests.objectives.cases import (
    NETWORKS,
    OF_VARIANTS,
    TRAINED,
    on_encoders,
)
from tests.project import refuses
from tests.support import small_encoder
from tests.train.harness import Setting, assert_same, one_device, run_steps

pytestmark = pytest.mark.slow  # one process runs the whole file, so it starts early

STEPS = 3  # optimizer steps of comparisons


@pytest.mark.parametrize(
    ("encoder", "lacking"),
    [("modernbert", ["next_sentence", "pooler"]), ("roberta", ["next_sentence"])],
)
def test_an_encoder_without_the_heads_is_refused(encoder: str, lacking: list[str]) -> None:
    section = read_objective({"kind": "sop"}, source="test")
    parts: Any = {"execution": None, "tokenizer": None}
    found: dict[str, Any] = {"found": "sop", "encoder": encoder, "lacking": lacking}
    found["allowed"] = ["roberta", "causal", "distill"]
    with refuses("objective.encoder", place="objective.kind", **found):
        make_objective(section, architecture=small_encoder(encoder), **parts)


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
