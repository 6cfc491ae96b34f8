"""Warm-up and linear decay, as released."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax


class Stretch(NamedTuple):
    """A stretch of steps under one warm-up and decay."""

    steps: int
    peak: float
    warmup_steps: int


def linear_schedule(stretch: Stretch) -> optax.Schedule:
    """Returns the release's schedule: linear warm-up, then linear decay to zero.

    The decay is a line from `peak` at step 0 to 0 at the last step, and warm-up replaces its
    first part (google-research/bert `optimization.py`): after warm-up the rate goes on at
    ``peak · (1 − warmup/steps)``, not at the peak.

    Args:
        stretch: steps, peak rate, warm-up steps.
    """
    steps, peak, warmup = stretch

    def schedule(count: jax.typing.ArrayLike) -> jax.Array:
        step = jnp.asarray(count, jnp.float32)
        decayed = peak * (1.0 - jnp.minimum(step, steps) / steps)
        if not warmup:
            return decayed
        return jnp.where(step < warmup, peak * step / warmup, decayed)

    return schedule


def join(stretches: Sequence[Stretch]) -> optax.Schedule:
    """Returns the schedule of stretches one after the other."""
    ends: list[int] = []
    for stretch in stretches[:-1]:
        ends.append(stretch.steps + (ends[-1] if ends else 0))
    return optax.join_schedules([linear_schedule(stretch) for stretch in stretches], ends)
