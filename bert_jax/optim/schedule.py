"""Learning-rate schedules: warm-up and decay as in google-research/bert, and of fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import optax

from bert_jax.optim.sections import ScheduleSegment


def linear_schedule(segment: ScheduleSegment) -> optax.Schedule:
    """Returns the schedule of google-research/bert: linear warm-up, then linear decay to zero.

    The decay is a line from `peak` at step 0 to 0 at the last step, and warm-up replaces its
    first part (google-research/bert `optimization.py`): after warm-up the rate goes on at
    ``peak · (1 − warmup/steps)``, not at the peak.

    Args:
        segment: steps, peak rate, warm-up steps.
    """
    steps, peak, warmup = segment

    def schedule(count: jax.typing.ArrayLike) -> jax.Array:
        step = jnp.asarray(count, jnp.float32)
        decayed = peak * (1.0 - jnp.minimum(step, steps) / steps)
        if not warmup:
            return decayed
        return jnp.where(step < warmup, peak * step / warmup, decayed)

    return schedule


def join(segments: Sequence[ScheduleSegment]) -> optax.Schedule:
    """Returns the schedule of segments one after the other."""
    ends: list[int] = []
    for segment in segments[:-1]:
        ends.append(segment.steps + (ends[-1] if ends else 0))
    return optax.join_schedules([linear_schedule(segment) for segment in segments], ends)


def warmup_linear(*, steps: int, warmup_steps: int) -> optax.Schedule:
    """Returns a rise from 0 to 1 over the warm-up, then a line from 1 to 0 at the last step.

    ``warmup_linear(steps=4, warmup_steps=2)`` at steps 0 to 4 → 0, 0.5, 1, 0.5, 0

    Hugging Face's `get_linear_schedule_with_warmup`, under which published fine-tuning figures
    were made. `linear_schedule` is that of google-research/bert: its line starts at step 0 and
    warm-up hides its beginning, so it never reaches the peak and is lower by warmup/steps of it
    where warm-up ends.

    Args:
        steps: of the whole run; from there on the rate is 0.
        warmup_steps: at most `steps`; 0 starts at the peak.
    """

    def schedule(count: jax.typing.ArrayLike) -> jax.Array:
        step = jnp.asarray(count, jnp.float32)
        decayed = jnp.maximum(0.0, (steps - step) / max(1, steps - warmup_steps))
        return jnp.where(step < warmup_steps, step / max(1, warmup_steps), decayed)

    return schedule


def warmup_constant(*, warmup_steps: int) -> optax.Schedule:
    """Returns a rise from 0 to 1 over the warm-up, then 1.

    ``warmup_constant(warmup_steps=2)`` at steps 0 to 4 → 0, 0.5, 1, 1, 1

    Args:
        warmup_steps: 0 for 1 throughout.
    """

    def schedule(count: jax.typing.ArrayLike) -> jax.Array:
        step = jnp.asarray(count, jnp.float32)
        return jnp.where(step < warmup_steps, step / max(1, warmup_steps), 1.0)

    return schedule


def slanted_triangular(*, steps: int, cut_fraction: float, ratio: float) -> optax.Schedule:
    """Returns a short rise from 1/ratio to 1, then a long fall back to 1/ratio.

    ``slanted_triangular(steps=10, cut_fraction=0.2, ratio=32)`` at steps 0, 1, 2, 6, 10 → 1/32,
    33/64, 1, 33/64, 1/32

    Source: arXiv 1801.06146, equation 3. Its fall ends at ``cut / cut_fraction``, which is the
    last step only where ``cut_fraction · steps`` is whole; otherwise it ends earlier and the rate
    goes on to below zero (19 steps with a fraction of 0.1 end at −30/32). Here the fall ends at
    the last step.

    Args:
        steps: of the whole run.
        cut_fraction: the rise's part of the steps, rounded down to whole ones.
        ratio: of the peak to the lowest rate.
    """
    cut = math.floor(steps * cut_fraction)

    def schedule(count: jax.typing.ArrayLike) -> jax.Array:
        step = jnp.minimum(jnp.asarray(count, jnp.float32), steps)
        risen = jnp.where(step < cut, step / max(1, cut), (steps - step) / max(1, steps - cut))
        return (1.0 + risen * (ratio - 1.0)) / ratio

    return schedule
