"""The learning-rate schedule of a run, from the settings of its optimizer and its phases."""

import math

from bert_jax.errors import UserError
from bert_jax.optim.sections import OptimizerSection, ScheduleSegment
from bert_jax.train.sections import PhaseSection, TrainSection


def schedule_segments(section: TrainSection, optimizer: OptimizerSection) -> list[ScheduleSegment]:
    """Returns the run's schedule as segments with one warm-up and decay each.

    Raises UserError if a phase has `warmup_steps` or `decay_fraction` without `learning_rate`,
    warm-up and decay are longer than their segment, or the optimizer has a schedule that the first
    phase replaces.
    """
    _refuse_replaced(section.phases[0], optimizer)
    steps: list[int] = []
    starts: list[tuple[str, PhaseSection]] = []  # key and first phase of each segment
    for index, phase in enumerate(section.phases):
        key = f"train.phases.{index}"
        _require_own_rate(phase, key=key)
        if phase.learning_rate is not None or not starts:
            starts.append((key, phase))
            steps.append(phase.steps)
        else:
            steps[-1] += phase.steps
    segments: list[ScheduleSegment] = []
    for (key, first), count in zip(starts, steps, strict=True):
        own = first.learning_rate is not None
        peak = first.learning_rate if own else optimizer.learning_rate
        warmup = (first.warmup_steps if own else optimizer.warmup_steps) or 0
        start = 0 if segments else optimizer.warmup_start
        segment = ScheduleSegment(count, peak or 0.0, warmup, warmup_start=start)
        rising = segment.rising_steps
        if rising > count:
            place = f"{key if own else 'optimizer'}.warmup_steps"
            raise UserError.wrong("optimizer.warmup", rising, f"at most {count}", place=place)
        share = optimizer.decay_fraction if first.decay_fraction is None else first.decay_fraction
        decay = None if share is None else math.floor(share * count + 1e-9)
        if decay is None and optimizer.decay != "linear":
            raise UserError(
                "optimizer.decay",
                f"found {optimizer.decay}, allowed: linear, unless optimizer.decay_fraction is set",
                place="optimizer.decay",
            )
        if rising + (decay or 0) > count:
            raise UserError(
                "optimizer.decay_fraction",
                f"found {share}, {decay} steps after {rising} of warm-up, allowed: {count} in all",
                place=f"{'optimizer' if first.decay_fraction is None else key}.decay_fraction",
            )
        segments.append(segment._replace(decay_steps=decay, shape=optimizer.decay))
    return segments


def _require_own_rate(phase: PhaseSection, *, key: str) -> None:
    """Raises UserError if a phase has settings of a schedule, but no schedule of its own."""
    if phase.learning_rate is not None:
        return
    for name in ("warmup_steps", "decay_fraction"):
        if (found := getattr(phase, name)) is not None:
            raise UserError(
                "phases.warmup", f"found {found} without learning_rate", place=f"{key}.{name}"
            )


def _refuse_replaced(first: PhaseSection, optimizer: OptimizerSection) -> None:
    """Raises UserError if the optimizer and the first phase have different schedules.

    Default values of the optimizer are no conflict: a stored configuration always contains them.
    """
    if first.learning_rate is None:
        return
    replaced = {"learning_rate": first.learning_rate, "warmup_steps": first.warmup_steps or 0}
    for name, own in replaced.items():
        found = getattr(optimizer, name)
        if found not in (own, OptimizerSection.model_fields[name].default):
            raise UserError(
                "optimizer.replaced",
                f"found {found}, but phase 0 has {own}. Set train.phases.0.{name} instead.",
                place=f"optimizer.{name}",
            )
