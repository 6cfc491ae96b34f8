"""Detection of bad steps, and the response to them, without a device."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_jax.train import bad_steps
from bert_jax.train.bad_steps import BadStep, BadStepGuard, StepHistory, rollback_or_stop
from bert_jax.train.progress import TrainProgress
from bert_jax.train.sections import BadStepsSection
from bert_jax.train.step import StepLimits

WINDOW = 8


def guard(**settings: Any) -> BadStepGuard:
    return BadStepGuard(BadStepsSection(window=WINDOW, **settings))


def steady(steps: int = 20, *, first: int = 1) -> StepHistory:
    """Returns losses near 2 and gradient norms near 1."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.03, (steps, 2))
    values = [(2 + 2 * a, 1 + b) for a, b in noise.tolist()]
    return StepHistory([(first + at, *pair) for at, pair in enumerate(values)])


def judge(
    judged: BadStepGuard, history: StepHistory, step: int, loss: float, norm: float = 1.0
) -> BadStep | None:
    """Judges a step as the loop does, with a simulated decision of the compiled step."""
    limits = judged.limits(history, step)
    withheld = judged.withheld(limits)
    fine = math.isfinite(loss) and math.isfinite(norm)
    applied = fine and loss <= withheld.loss and norm <= withheld.gradient_norm
    metrics = {"loss": (loss, 1.0), "gradient_norm": (norm, 1.0), "healthy": (float(applied), 1.0)}
    return judged.judge(history, step, metrics, limits)


def test_a_spike_of_loss_or_gradient_is_bad() -> None:
    history = steady()
    assert judge(guard(), history, 21, 2.1) is None
    loss = judge(guard(), history, 22, 5.0)
    assert loss
    assert loss.reason.startswith("loss 5 above 2.")
    assert loss.response == "warn"
    norm = judge(guard(), history, 23, 2.0, 4.0)
    assert norm
    assert norm.reason.startswith("gradient_norm 4 above 1.")


def test_before_a_full_window_only_nan_is_bad() -> None:
    history = steady(WINDOW)
    assert guard().limits(history, WINDOW + 1) == StepLimits()  # without step 8
    assert guard().limits(history, WINDOW + 2).loss < 4
    bad = judge(guard(), StepHistory(), 1, math.nan, math.inf)
    assert bad
    assert bad.reason == "loss nan, gradient_norm inf"
    assert bad.response == "skip"


def test_limits_do_not_depend_on_the_step_right_before() -> None:
    """A resumed run knows that step's metrics; an uninterrupted run does not know them yet."""
    history = steady()
    before = guard().limits(history, 22)
    history.applied.append((21, 100.0, 100.0))
    assert guard().limits(history, 22) == before
    assert guard().limits(history, 23) != before


def test_warn_adapts_to_a_lasting_new_level() -> None:
    history, judged = steady(), guard()
    found = [judge(judged, history, step, 8.0) for step in range(21, 41)]
    assert all(found[:4])
    assert not any(found[WINDOW:])


def test_a_withheld_spike_does_not_enter_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bad_steps, "LIMIT", 100)
    history, judged = steady(), guard(on_spike="skip")
    for step in range(21, 41):
        bad = judge(judged, history, step, 8.0)
        assert bad
        assert bad.response == "skip"
    assert max(loss for _, loss, _ in history.applied) < 3


def test_ignored_spikes_have_no_limits() -> None:
    assert judge(guard(on_spike="ignore"), steady(), 21, 1e9, 1e9) is None


def test_too_many_skips_in_a_window_stop_the_run() -> None:
    judged, history = guard(), StepHistory()
    found = [judge(judged, history, step, math.nan) for step in (1, 2, 12, 13, 14, 15)]
    assert [bad and bad.response for bad in found] == [*["skip"] * 5, "stop"]
    assert str(found[-1]) == "step 15: loss nan, after 3 skips in 8 steps"


def test_too_many_rollbacks_to_a_checkpoint_stop_the_run() -> None:
    judged = guard(on_non_finite="rollback")
    bad = judge(judged, StepHistory(), 9, math.nan)
    assert bad
    assert rollback_or_stop(bad, rollbacks=2).response == "rollback"
    stop = rollback_or_stop(bad, rollbacks=3)
    assert stop.response == "stop"
    assert str(stop) == "step 9: loss nan, after 3 rollbacks to one checkpoint"


@given(st.lists(st.floats(0.1, 100), min_size=WINDOW, max_size=40))
def test_a_limit_is_at_least_one_and_a_half_medians(losses: list[float]) -> None:
    history = StepHistory([(at, loss, loss) for at, loss in enumerate(losses)])
    limit = guard().limits(history, len(losses) + 1).loss
    seen = losses[-WINDOW:]
    assert limit >= np.float32(np.median(seen) * 1.5) * (1 - 1e-6)


def test_history_survives_json_bit_for_bit() -> None:
    history = dataclasses.replace(steady(), skipped=[3, 9])
    saved = json.loads(json.dumps(TrainProgress(history=history).to_json()))
    assert TrainProgress.from_json(saved).history == history
