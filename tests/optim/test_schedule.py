"""Learning rates equal those of google-research/bert and Hugging Face at every step."""

import itertools
from typing import Any

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
    pretraining_schedule,
    warmup_constant,
    warmup_linear,
)
from bert_jax.optim.sections import DecayShape, OptimizerSection, ScheduleSegment
from bert_jax.train.schedule_segments import schedule_segments
from bert_jax.train.sections import TrainSection
from tests.project import refuses

LONGEST = 400  # number of steps to evaluate, so that all schedules share one compiled program


@jax.jit
def rates_of(schedule: Schedule, steps: np.ndarray) -> jax.Array:
    """Returns the rates of all steps, from one compiled program."""
    return learning_rate(schedule, steps)


def released_rate(step: int, *, peak: float, steps: int, warmup: int, start: int = 0) -> float:
    """Learning rate in `create_optimizer` of google-research/bert; with `start`, of MLPerf's."""
    decayed = peak * (1 - min(step, steps) / steps)
    is_warmup = float(step - start < warmup)
    warm = peak * (step - start) / warmup if warmup else 0.0
    return (1 - is_warmup) * decayed + is_warmup * warm


@given(steps=st.integers(1, 60), warmup_share=st.floats(0, 1), peak=st.floats(1e-6, 1e-2))
@settings(deadline=None, max_examples=15)
def test_every_rate_equals_the_releases(steps: int, warmup_share: float, peak: float) -> None:
    warmup = int(warmup_share * steps)
    schedule = pretraining_schedule([ScheduleSegment(steps, peak, warmup)])
    found = rates_of(schedule, np.arange(LONGEST))[: steps + 3]
    expected = [
        released_rate(step, peak=peak, steps=steps, warmup=warmup) for step in range(steps + 3)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=peak * 1e-6)


@pytest.mark.parametrize(("warmup", "start"), [(287, -76), (290, -100), (0, -700), (50, -60)])
def test_a_run_can_start_inside_the_warm_up(warmup: int, start: int) -> None:
    """Warm-ups of MLPerf's reference for large batches, and one that ends before step 0."""
    optimizer = OptimizerSection(learning_rate=2e-3, warmup_steps=warmup, warmup_start=start)
    (segment,) = schedule_segments(phases({"steps": 300}), optimizer)
    expected = [
        released_rate(step, peak=2e-3, steps=300, warmup=warmup, start=start)
        for step in range(LONGEST)
    ]
    found = rates_of(pretraining_schedule([segment]), np.arange(LONGEST))
    np.testing.assert_allclose(found[:301], expected[:301], rtol=1e-5, atol=1e-9)


def test_only_the_first_warm_up_starts_early() -> None:
    section = phases({"steps": 10}, {"steps": 9, "learning_rate": 1e-3, "warmup_steps": 4})
    optimizer = OptimizerSection(learning_rate=1e-3, warmup_steps=8, warmup_start=-4)
    segments = schedule_segments(section, optimizer)
    assert [each.describe() for each in segments] == [
        "peak 0.001: warm-up (from 0.0005) 4, linear decay 6",
        "peak 0.001: warm-up 4, linear decay 5",
    ]
    rates = np.asarray(rates_of(pretraining_schedule(segments), np.arange(LONGEST)))
    np.testing.assert_allclose(rates[[0, 3, 10, 11]], [5e-4, 8.75e-4, 0.0, 2.5e-4], rtol=1e-6)


def test_a_long_run_keeps_float32_precision() -> None:
    """float32 represents all integers up to 2**24, which exceeds BERT's million steps."""
    schedule = pretraining_schedule([ScheduleSegment(1_000_000, 1e-4, 10_000)])
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
        released_rate(step, peak=each.peak, steps=each.steps, warmup=each.warmup_steps)
        for each in segments
        for step in range(each.steps)
    ]
    found = rates_of(pretraining_schedule(segments), np.arange(19))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)


def hugging_face_rates(name: str, *, peak: float, count: int, **constants: Any) -> list[float]:
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


@pytest.mark.parametrize("shape", ["linear", "1-sqrt"])
@pytest.mark.parametrize(("steps", "warmup", "decay"), [(40, 5, 10), (40, 0, 40), (7, 3, 1)])
def test_the_trapezoid_equals_hugging_faces(
    steps: int, warmup: int, decay: int, shape: DecayShape
) -> None:
    expected = hugging_face_rates(
        "get_wsd_schedule",
        peak=1.0,
        count=steps + 3,
        num_warmup_steps=warmup,
        num_decay_steps=decay,
        num_training_steps=steps,
        decay_type=shape,
    )
    schedule = pretraining_schedule([ScheduleSegment(steps, 1.0, warmup, decay, shape)])
    found = rates_of(schedule, np.arange(LONGEST))[: steps + 3]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


def test_a_long_root_decay_keeps_float32_precision() -> None:
    schedule = pretraining_schedule([ScheduleSegment(1_000_000, 1e-3, 0, 300_000, "1-sqrt")])
    into = np.array([0, 1, 10, 299_999])
    expected = 1e-3 * (1 - np.sqrt(into / 300_000))
    # The last rate is the difference of two numbers near 1.
    np.testing.assert_allclose(rates_of(schedule, 700_000 + into), expected, rtol=1e-6, atol=1e-10)


def phases(*settings: dict[str, Any]) -> TrainSection:
    base = {"dataset": "d", "seq_length": 8, "batch_size": 8}
    return TrainSection.model_validate({"phases": tuple(base | each for each in settings)})


def test_a_phase_with_its_own_rate_has_its_own_decay() -> None:
    """ModernBERT's phases: constant, constant at another rate, then a decay over two phases."""
    section = phases(
        {"steps": 100, "learning_rate": 1e-3, "warmup_steps": 10, "decay_fraction": 0},
        {"steps": 50, "learning_rate": 5e-4, "decay_fraction": 0},
        {"steps": 20, "learning_rate": 5e-4},
        {"steps": 30},
    )
    optimizer = OptimizerSection(decay_fraction=1, decay="1-sqrt")
    segments = schedule_segments(section, optimizer)
    assert [each.describe() for each in segments] == [
        "peak 0.001: warm-up 10, constant 90",
        "peak 0.0005: constant 50",
        "peak 0.0005: 1-sqrt decay 50",
    ]
    rates = rates_of(pretraining_schedule(segments), np.arange(LONGEST))
    expected = [1e-3] * 90 + [5e-4] * 50
    expected += [5e-4 * (1 - (step / 50) ** 0.5) for step in range(51)]
    np.testing.assert_allclose(rates[10:201], expected, rtol=1e-6, atol=1e-10)


def test_one_decay_spans_phases_without_rates_of_their_own() -> None:
    optimizer = OptimizerSection(learning_rate=1e-3, warmup_steps=5, decay_fraction=0.29)
    (segment,) = schedule_segments(phases({"steps": 60}, {"steps": 40}), optimizer)
    assert segment == ScheduleSegment(100, 1e-3, 5, 29, "linear")
    rates = rates_of(pretraining_schedule([segment]), np.arange(LONGEST))[:101]
    assert [rate > 0.999e-3 for rate in rates] == [5 <= step <= 71 for step in range(101)]
    assert all(a > b for a, b in itertools.pairwise(rates[71:].tolist()))


@pytest.mark.parametrize(
    ("optimizer", "phase", "key", "values"),
    [
        (
            {"decay_fraction": 0.95, "warmup_steps": 6},
            {},
            "optimizer.decay_fraction",
            {"decay": 95},
        ),
        ({"decay": "1-sqrt"}, {}, "optimizer.decay", {"found": "1-sqrt"}),
        (
            {},
            {"learning_rate": 1e-3, "warmup_steps": 101},
            "optimizer.warmup",
            {"found": 101, "place": "train.phases.0.warmup_steps"},
        ),
        (
            {},
            {"learning_rate": 1e-3, "warmup_steps": 6, "decay_fraction": 0.95},
            "optimizer.decay_fraction",
            {"decay": 95, "place": "train.phases.0.decay_fraction"},
        ),
        (
            {},
            {"decay_fraction": 0.1},
            "phases.warmup",
            {"found": 0.1, "place": "train.phases.0.decay_fraction"},
        ),
    ],
)
def test_a_decay_that_does_not_fit_is_refused(
    optimizer: dict[str, Any], phase: dict[str, Any], key: str, values: dict[str, Any]
) -> None:
    with refuses(key, **values):
        schedule_segments(phases({"steps": 100, **phase}), OptimizerSection(**optimizer))
