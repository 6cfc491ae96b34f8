"""Learning-rate schedules as arrays.

The arrays are arguments of the compiled step, so one program serves all schedules.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from bert_jax.optim.sections import ScheduleSegment

Schedule: TypeAlias = np.ndarray | jax.Array  # float32 [segments, 7], a `_Row` per segment


class _Row(NamedTuple):
    """A segment of a schedule: a rise from 0 to the peak, a constant part, then a decay to 0.

    Steps count from the first step of the segment, except `begin`.
    """

    warmup: float  # number of steps of the rise
    end: float  # steps until the decay ends; infinity for a constant rate after the rise
    fall: float  # number of steps of the decay from the peak to 0
    peak: float  # highest learning rate
    begin: float = 0.0  # first step of the segment, counted over the run
    root: float = 0.0  # 1 for the decay 1 − √p, 0 for the linear decay 1 − p
    start: float = 0.0  # step at which the rise starts, at most 0


def learning_rate(schedule: Schedule, count: jax.typing.ArrayLike) -> jax.Array:
    """Returns the learning rate of the update that follows `count` updates.

    `count` is int32 of any shape. The result is float32 of the same shape.
    """
    count, schedule = jnp.asarray(count, jnp.float32), jnp.asarray(schedule)
    later = schedule[1:, _Row._fields.index("begin")]
    row = _Row(*jnp.moveaxis(schedule[(count[..., None] >= later).sum(-1)], -1, 0))
    step = jnp.minimum(count - row.begin, row.end)
    into = step - row.start
    risen = into / jnp.maximum(row.warmup, 1.0)
    line = jnp.minimum((row.end - step) / row.fall, 1.0)
    passed = jnp.maximum(step - (row.end - row.fall), 0.0) / row.fall
    fallen = jnp.where(row.root > 0, 1.0 - jnp.sqrt(passed), line)
    return row.peak * jnp.where(into < row.warmup, risen, fallen)


def pretraining_schedule(segments: Sequence[ScheduleSegment]) -> Schedule:
    """Returns the schedule of pretraining: in each segment, a linear warm-up, then a decay to 0.

    If a segment has `decay_steps`, the rate is constant between warm-up and decay. Sources: arXiv
    2405.18392, section 4, for the shapes; arXiv 2412.13663, section 3.2.

    Otherwise the schedule is google-research/bert's (`optimization.py`). The decay runs from the
    peak at step 0 to 0 at the last step. Warm-up replaces the first steps of the decay, so the rate
    never reaches the peak: its maximum is ``peak · (1 − warmup/steps)``. A negative `warmup_start`
    is `start_warmup_step` in MLPerf's reference (mlcommons/training, `optimization.py`).
    """
    rows: list[_Row] = []
    begin = 0
    for segment in segments:
        fall = segment.steps if segment.decay_steps is None else segment.decay_steps
        rows.append(
            _Row(
                warmup=segment.warmup_steps,
                end=segment.steps if fall else math.inf,
                fall=max(1, fall),
                peak=segment.peak,
                begin=begin,
                root=segment.shape == "1-sqrt",
                start=segment.warmup_start,
            )
        )
        begin += segment.steps
    return np.array(rows, np.float32)


def warmup_linear(*, peak: float, steps: int, warmup_steps: int) -> Schedule:
    """Returns linear warm-up from 0 to the peak, then linear decay to 0 at the last step.

    ``warmup_linear(peak=1, steps=4, warmup_steps=2)`` at steps 0 to 4 → 0, 0.5, 1, 0.5, 0

    `warmup_steps` is at most `steps`. Without warm-up, the rate starts at the peak.
    Source: Hugging Face's `get_linear_schedule_with_warmup`, the schedule of published fine-tuning
    results.
    """
    fall = max(1, steps - warmup_steps)
    return np.array([_Row(warmup=warmup_steps, end=steps, fall=fall, peak=peak)], np.float32)


def warmup_constant(*, peak: float, warmup_steps: int) -> Schedule:
    """Returns linear warm-up from 0 to the peak, then a constant rate.

    ``warmup_constant(peak=1, warmup_steps=2)`` at steps 0 to 4 → 0, 0.5, 1, 1, 1
    """
    return np.array([_Row(warmup=warmup_steps, end=math.inf, fall=1, peak=peak)], np.float32)
