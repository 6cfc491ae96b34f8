"""Steps whose loss or gradient went bad: which they are, and how to respond.

A step that is not finite, or a spike that is to be withheld, leaves the state unchanged and freezes
it (`bert_jax.train.step`). The host reads that one step late and decides here: skip the step, roll
back to the last checkpoint and leave out the data since then, or stop. A spike is judged by the
steps up to the one before the last, even if the last has been read already: a run that was
stopped in between must judge alike.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import numpy as np

from bert_jax.task import Sums
from bert_jax.train.sections import BadStepsSection
from bert_jax.train.step import HEALTHY, StepLimits

Response = Literal["warn", "skip", "rollback", "stop"]

# Standard deviation of normal numbers, in median absolute deviations.
MAD_TO_DEVIATION: Final = 1.4826

# Smallest deviation, as a share of the median: a spike is at least half as much again.
LEAST_DEVIATION: Final = 0.05

# Robust standard deviations above the median that make a spike. Healthy steps stay below 5.
SPIKE_SCORE: Final = 10.0

# Skips within the window, or rollbacks to one checkpoint, before the run stops: more of them mean
# that the settings are wrong, not the data.
LIMIT: Final = 3


@dataclasses.dataclass
class StepHistory:
    """The steps that later steps of a phase are judged by; saved with every checkpoint."""

    # (step, loss, gradient norm) of the last steps whose update counts
    applied: list[tuple[int, float, float]] = dataclasses.field(default_factory=list)
    # The last steps whose update was withheld
    skipped: list[int] = dataclasses.field(default_factory=list)


class BadStep(NamedTuple):
    """A step that went bad."""

    step: int
    reason: str  # "loss nan", "gradient_norm 31.2 above 4.8"
    response: Response
    figures: Mapping[str, float]  # loss, gradient norm and their limits
    exhausted: str = ""  # why the response is not the one that the settings name

    @property
    def finite(self) -> dict[str, float]:
        """The figures that JSON can hold."""
        return {name: value for name, value in self.figures.items() if math.isfinite(value)}

    def __str__(self) -> str:
        return f"step {self.step}: {self.reason}{self.exhausted}"


class BadStepGuard:
    """Judges steps by the steps before them."""

    def __init__(self, section: BadStepsSection) -> None:
        self._section = section

    def limits(self, history: StepHistory, step: int) -> StepLimits:
        """Returns the loss and gradient norm above which a step is a spike."""
        window = self._section.window
        seen = [entry[1:] for entry in history.applied if entry[0] < step - 1][-window:]
        if self._section.on_spike == "ignore" or len(seen) < window:
            return StepLimits()
        return StepLimits(*map(_limit, zip(*seen, strict=True)))

    def withheld(self, limits: StepLimits) -> StepLimits:
        """Returns the limits of the compiled step: a spike that is only warned of is applied."""
        return StepLimits() if self._section.on_spike in ("ignore", "warn") else limits

    def judge(
        self, history: StepHistory, step: int, metrics: Sums, limits: StepLimits
    ) -> BadStep | None:
        """Adds a step to the history, in place; returns what is wrong with it by its limits."""
        section = self._section
        found = {name: metrics[name][0] for name in StepLimits._fields}
        spikes = {n: (v, float(at)) for (n, v), at in zip(found.items(), limits, strict=True)}
        reason, response = "", section.on_non_finite
        if bad := [f"{name} {value}" for name, value in found.items() if not math.isfinite(value)]:
            reason = ", ".join(bad)
        elif high := [f"{n} {v:.4g} above {at:.4g}" for n, (v, at) in spikes.items() if v > at]:
            reason, response = ", ".join(high), section.on_spike
        if metrics[HEALTHY][0]:
            history.applied.append((step, found["loss"], found["gradient_norm"]))
            del history.applied[: -section.window - 1]
        if not reason:
            return None
        assert response != "ignore"  # its limits are infinite
        figures = {**found, **{f"{n}_limit": at for n, (_, at) in spikes.items()}}
        if response == "skip":
            recent = [skip for skip in history.skipped if skip > step - section.window]
            if len(recent) >= LIMIT:
                exhausted = f", after {len(recent)} skips in {section.window} steps"
                return BadStep(step, reason, "stop", figures, exhausted)
            history.skipped = [*recent, step]
        return BadStep(step, reason, response, figures)


def rollback_or_stop(bad: BadStep, *, rollbacks: int) -> BadStep:
    """Returns a step to respond to by a rollback, or by a stop after too many to one checkpoint."""
    if rollbacks < LIMIT:
        return bad
    exhausted = f", after {rollbacks} rollbacks to one checkpoint"
    return bad._replace(response="stop", exhausted=exhausted)


def _limit(values: Sequence[float]) -> np.float32:
    median = np.median(values)
    deviation = MAD_TO_DEVIATION * np.median(np.abs(np.subtract(values, median)))
    least = LEAST_DEVIATION * np.abs(median)
    return np.float32(median + SPIKE_SCORE * max(deviation, least))
