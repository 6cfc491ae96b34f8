"""Learning rates equal those of google-research/bert and Hugging Face at every step."""

import jax
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_jax.optim.schedule import (
    Schedule,
    learning_rate,
    linear_schedule,
    warmup_constant,
    warmup_linear,
)
from bert_jax.optim.sections import ScheduleSegment

LONGEST = 400  # number of steps to evaluate, so that all schedules share one compiled program


@jax.jit
def rates_of(schedule: Schedule, steps: np.ndarray) -> jax.Array:
    """Returns the rates of all steps, from one compiled program."""
    return learning_rate(schedule, steps)


def released_rate(step: int, *, peak: float, steps: int, warmup: int) -> float:
    """Learning rate in `create_optimizer` of google-research/bert."""
    decayed = peak * (1 - min(step, steps) / steps)
    is_warmup = float(step < warmup)
    warm = peak * step / warmup if warmup else 0.0
    return (1 - is_warmup) * decayed + is_warmup * warm


@given(steps=st.integers(1, 60), warmup_share=st.floats(0, 1), peak=st.floats(1e-6, 1e-2))
@settings(deadline=None, max_examples=15)
def test_every_rate_equals_the_releases(steps: int, warmup_share: float, peak: float) -> None:
    warmup = int(warmup_share * steps)
    schedule = linear_schedule([ScheduleSegment(steps, peak, warmup)])
    found = rates_of(schedule, np.arange(LONGEST))[: steps + 3]
    expected = [
        released_rate(step, peak=peak, steps=steps, warmup=warmup) for step in range(steps + 3)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=peak * 1e-6)


def test_a_long_run_keeps_float32_precision() -> None:
    """float32 represents all integers up to 2**24, which exceeds BERT's million steps."""
    schedule = linear_schedule([ScheduleSegment(1_000_000, 1e-4, 10_000)])
    steps = np.array([1, 9_999, 10_000, 500_001, 999_999])
    expected = [released_rate(step, peak=1e-4, steps=1_000_000, warmup=10_000) for step in steps]
    np.testing.assert_allclose(rates_of(schedule, steps), expected, rtol=1e-6)


def test_consecutive_segments_count_their_own_steps() -> None:
    segments = [
        ScheduleSegment(10, 1e-3, 2),
        ScheduleSegment(5, 5e-4, 1),
        ScheduleSegment(4, 1e-4, 0),
    ]
    expected = [
        released_rate(step, peak=peak, steps=steps, warmup=warmup)
        for steps, peak, warmup in segments
        for step in range(steps)
    ]
    found = rates_of(linear_schedule(segments), np.arange(19))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


def hugging_face_rates(name: str, *, peak: float, count: int, **constants: int) -> list[float]:
    """Returns the learning rates of a scheduler in the transformers library."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    scheduler = getattr(transformers, name)(optimizer, **constants)
    rates = []
    for _ in range(count):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize(("steps", "warmup"), [(20, 2), (20, 0), (7, 7), (1, 0), (1, 1), (100, 33)])
def test_fine_tunings_linear_schedule_equals_hugging_faces(steps: int, warmup: int) -> None:
    expected = hugging_face_rates(
        "get_linear_schedule_with_warmup",
        peak=1.0,
        count=steps + 3,
        num_warmup_steps=warmup,
        num_training_steps=steps,
    )
    schedule = warmup_linear(peak=1, steps=steps, warmup_steps=warmup)
    found = rates_of(schedule, np.arange(LONGEST))[: steps + 3]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("warmup", [0, 1, 5])
def test_the_constant_schedule_equals_hugging_faces(warmup: int) -> None:
    expected = hugging_face_rates(
        "get_constant_schedule_with_warmup", peak=1.0, count=12, num_warmup_steps=warmup
    )
    found = rates_of(warmup_constant(peak=1, warmup_steps=warmup), np.arange(12))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
