"""The train loop's settings."""

from __future__ import annotations

from typing import Literal

import pydantic

from bert_jax.data.rows.packing_plan import PackingSection
from bert_jax.errors import UserError
from bert_jax.optim.sections import OptimizerSection, ScheduleSegment
from bert_jax.section import PathText, Section


class PhaseSection(Section):
    """Consecutive steps with one dataset, sequence length and batch size.

    A phase that names its own learning rate starts a schedule of its own (warm-up and decay over
    it and the phases after it that name none); otherwise one schedule spans the run, as in
    google-research/bert's 90% at 128 tokens and 10% at 512.

    With ``packing`` a row, and so the batch size, counts several examples; evaluation never packs.
    """

    dataset: PathText
    steps: int = pydantic.Field(ge=1)
    seq_length: int = pydantic.Field(default=512, ge=8)
    batch_size: int = pydantic.Field(default=256, ge=1)
    accumulation: int = pydantic.Field(default=1, ge=1)
    max_predictions: int | None = pydantic.Field(default=None, ge=1)
    packing: PackingSection | None = None
    learning_rate: float | None = pydantic.Field(default=None, gt=0)
    warmup_steps: int | None = pydantic.Field(default=None, ge=0)


class EvaluationSection(Section):
    """Evaluation on the validation split while training."""

    every: int = pydantic.Field(default=1000, ge=1)
    batch_size: int | None = pydantic.Field(default=None, ge=1)
    examples: int | None = pydantic.Field(default=None, ge=1)


class CheckpointSection(Section):
    """When to save and what to keep.

    A save is due after `every` steps or `every_minutes` since the last one, whichever comes first.
    Of those saved, the newest `keep_last` stay, the best `keep_best` of the current phase and
    validation data, and those whose step `keep_every` divides.

    A save that fails (a full disk) either stops the run (exit code 1), or is warned of and the run
    goes on; the last save of a run must succeed.
    """

    every: int = pydantic.Field(default=1000, ge=1)
    every_minutes: float | None = pydantic.Field(default=None, gt=0, le=525_600)
    keep_last: int = pydantic.Field(default=3, ge=1)
    keep_every: int | None = pydantic.Field(default=None, ge=1)
    keep_best: int = pydantic.Field(default=1, ge=0)
    on_error: Literal["stop", "warn"] = "stop"


class BadStepsSection(Section):
    """What to do about a step whose loss or gradient norm is not finite, or spikes.

    A spike is a loss or a gradient norm more than ``spike_score`` robust standard deviations
    (1.4826 × the median absolute deviation, at least 5% of the median) above the median of the
    phase's last ``window`` steps. With ``limit`` skips among the last ``window`` steps, or as many
    rollbacks to one checkpoint, the next stops the run.
    """

    on_non_finite: Literal["skip", "rollback", "stop"] = "skip"
    on_spike: Literal["ignore", "warn", "skip", "rollback", "stop"] = "warn"
    window: int = pydantic.Field(default=128, ge=8)
    spike_score: float = pydantic.Field(default=10.0, gt=0)
    limit: int = pydantic.Field(default=3, ge=1)


class WatchdogSection(Section):
    """When a step hangs: after `factor` times the median of the last ones, and not sooner."""

    factor: float = pydantic.Field(default=10.0, gt=1)
    floor_seconds: float = pydantic.Field(default=120.0, gt=0)


class TrainSection(Section):
    """The run: phases, evaluation, checkpoints, reports."""

    phases: tuple[PhaseSection, ...] = pydantic.Field(min_length=1)
    evaluation: EvaluationSection | None = EvaluationSection()
    checkpoint: CheckpointSection = CheckpointSection()
    bad_steps: BadStepsSection = BadStepsSection()
    # Steps from one comparison of the state's replicas to the next. None: they never are.
    checksum_every: int | None = pydantic.Field(default=1000, ge=1)
    log_every: int = pydantic.Field(default=10, ge=1)
    # Which examples each step consumes, in <run>/examples/: about 7 bytes an example.
    example_log: bool = False
    watchdog: WatchdogSection | None = WatchdogSection()

    @property
    def total_steps(self) -> int:
        """Optimizer steps of all phases."""
        return sum(phase.steps for phase in self.phases)


def schedule_segments(section: TrainSection, optimizer: OptimizerSection) -> list[ScheduleSegment]:
    """Returns the run's schedule as segments of one warm-up and decay each.

    Raises:
        UserError: warm-up without a learning rate of its own, or longer than its segment.
    """
    segments: list[ScheduleSegment] = []
    for index, phase in enumerate(section.phases):
        own = phase.learning_rate is not None
        if not own and phase.warmup_steps is not None:
            raise UserError(
                f"train.phases.{index}.warmup_steps: found {phase.warmup_steps}, allowed: only "
                f"beside a learning_rate of the phase's own"
            )
        if own or not segments:
            peak = phase.learning_rate if own else optimizer.learning_rate
            warmup = phase.warmup_steps if own else optimizer.warmup_steps
            segments.append(ScheduleSegment(phase.steps, peak or 0.0, warmup or 0))
        else:
            last = segments[-1]
            segments[-1] = last._replace(steps=last.steps + phase.steps)
    for segment in segments:
        if segment.warmup_steps > segment.steps:
            raise UserError(
                f"optimizer.warmup_steps: found {segment.warmup_steps}, allowed: at most the "
                f"{segment.steps} steps of its schedule"
            )
    return segments
