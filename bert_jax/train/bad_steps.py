"""Bad steps: detection and response.

If a step's loss or gradient norm is not finite or exceeds its limit, the step leaves the state
unchanged and freezes it (`bert_jax.train.step`). The host reads the metrics one step late and
chooses the response: skip the step, roll back to the last checkpoint and skip the data since then,
or stop. The limits for step N use only steps up to N−2, so a resumed run makes the same decisions
as an uninterrupted run.
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

# Standard deviation of a normal distribution, in median absolute deviations.
MAD_TO_DEVIATION: Final = 1.4826

# Minimum standard deviation, as a fraction of the median: a spike is at least 1.5 × the median.
LEAST_DEVIATION: Final = 0.05

# A spike is this many robust standard deviations above the median. Healthy steps stay below 5.
SPIKE_SCORE: Final = 10.0

# Maximum skips within the window, and maximum rollbacks to one checkpoint. The next bad step stops
# the run: more skips or rollbacks indicate wrong settings, not bad data.
LIMIT: Final = 3


@dataclasses.dataclass
class StepHistory:
    """Recent steps of a phase, from which limits are computed; saved with every checkpoint."""

    # (step, loss, gradient norm) of the last steps with an applied update
    applied: list[tuple[int, float, float]] = dataclasses.field(default_factory=list)
    # Steps of recent skips
    skipped: list[int] = dataclasses.field(default_factory=list)


class BadStep(NamedTuple):
    """A bad step and the response."""

    step: int
    reason: str  # "loss nan", "gradient_norm 31.2 above 4.8"
    response: Response
    figures: Mapping[str, float]  # loss, gradient norm and their limits
    exhausted: str = ""  # why `LIMIT` changed the response to "stop", or empty

    @property
    def finite(self) -> dict[str, float]:
        """The finite figures; JSON has no NaN or infinity."""
        return {name: value for name, value in self.figures.items() if math.isfinite(value)}

    def __str__(self) -> str:
        return f"step {self.step}: {self.reason}{self.exhausted}"


class BadStepGuard:
    """Detects bad steps from the history of a phase."""

    def __init__(self, section: BadStepsSection) -> None:
        self._section = section

    def limits(self, history: StepHistory, step: int) -> StepLimits:
        """Returns the loss and gradient norm above which a step counts as a spike."""
        window = self._section.window
        seen = [entry[1:] for entry in history.applied if entry[0] < step - 1][-window:]
        if self._section.on_spike == "ignore" or len(seen) < window:
            return StepLimits()
        return StepLimits(*map(_limit, zip(*seen, strict=True)))

    def withheld(self, limits: StepLimits) -> StepLimits:
        """Returns the limits above which the compiled step withholds its update.

        They are infinite if `on_spike` is "ignore" or "warn".
        """
        return StepLimits() if self._section.on_spike in ("ignore", "warn") else limits

    def judge(
        self, history: StepHistory, step: int, metrics: Sums, limits: StepLimits
    ) -> BadStep | None:
        """Adds a step to the history, in place; returns a BadStep if the step was bad."""
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
        assert response != "ignore"  # "ignore" has infinite limits
        figures = {**found, **{f"{n}_limit": at for n, (_, at) in spikes.items()}}
        if response == "skip":
            recent = [skip for skip in history.skipped if skip > step - section.window]
            if len(recent) >= LIMIT:
                exhausted = f", after {len(recent)} skips in {section.window} steps"
                return BadStep(step, reason, "stop", figures, exhausted)
            history.skipped = [*recent, step]
        return BadStep(step, reason, response, figures)


def rollback_or_stop(bad: BadStep, *, rollbacks: int) -> BadStep:
    """Returns `bad`; after `LIMIT` rollbacks, its response is "stop".

    `rollbacks` counts earlier rollbacks to the last checkpoint.
    """
    if rollbacks < LIMIT:
        return bad
    exhausted = f", after {rollbacks} rollbacks to one checkpoint"
    return bad._replace(response="stop", exhausted=exhausted)


def _limit(values: Sequence[float]) -> np.float32:
    median = np.median(values)
    deviation = MAD_TO_DEVIATION * np.median(np.abs(np.subtract(values, median)))
    least = LEAST_DEVIATION * np.abs(median)
    return np.float32(median + SPIKE_SCORE * max(deviation, least))
