"""The learning rate at every step, against the formula of the release."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.optim.schedule import Stretch, join, linear_schedule


def released_rate(step: int, *, peak: float, steps: int, warmup: int) -> float:
    """`create_optimizer` of google-research/bert: polynomial decay of power 1 to 0 over all
    steps, replaced while step < warmup by peak · step / warmup."""
    decayed = peak * (1 - min(step, steps) / steps)
    is_warmup = float(step < warmup)
    warm = peak * step / warmup if warmup else 0.0
    return (1 - is_warmup) * decayed + is_warmup * warm


@given(steps=st.integers(1, 60), warmup_share=st.floats(0, 1), peak=st.floats(1e-6, 1e-2))
@settings(deadline=None, max_examples=15)
def test_every_step_has_the_releases_rate(steps: int, warmup_share: float, peak: float) -> None:
    warmup = int(warmup_share * steps)
    schedule = linear_schedule(Stretch(steps, peak, warmup))
    found = np.asarray(schedule(np.arange(steps + 3)))
    expected = [
        released_rate(step, peak=peak, steps=steps, warmup=warmup) for step in range(steps + 3)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=peak * 1e-6)


def test_the_rate_falls_off_the_peak_where_warm_up_ends() -> None:
    schedule = linear_schedule(Stretch(100, 1e-3, 10))
    rates = [float(schedule(step)) for step in (0, 9, 10, 100)]
    assert rates == pytest.approx([0.0, 9e-4, 9e-4, 0.0], rel=1e-6)


def test_a_long_run_keeps_its_digits() -> None:
    """float32 holds every step number up to 2**24; the original run has a million."""
    schedule = linear_schedule(Stretch(1_000_000, 1e-4, 10_000))
    for step in (1, 9_999, 10_000, 500_001, 999_999):
        expected = released_rate(step, peak=1e-4, steps=1_000_000, warmup=10_000)
        assert float(schedule(step)) == pytest.approx(expected, rel=1e-5, abs=1e-11)


def test_stretches_follow_each_other_each_with_its_own_count() -> None:
    stretches = [Stretch(10, 1e-3, 2), Stretch(5, 5e-4, 1), Stretch(4, 1e-4, 0)]
    joined = join(stretches)
    expected = [
        released_rate(step, peak=peak, steps=steps, warmup=warmup)
        for steps, peak, warmup in stretches
        for step in range(steps)
    ]
    found = [float(joined(step)) for step in range(19)]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


def test_one_stretch_joined_is_that_stretch() -> None:
    stretch = Stretch(7, 1e-3, 3)
    one, joined = linear_schedule(stretch), join([stretch])
    assert [float(one(step)) for step in range(9)] == [float(joined(step)) for step in range(9)]
