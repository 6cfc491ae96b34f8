"""A plan as one sentence and one small table."""

from collections.abc import Sequence

from bert_jax.parallel.accelerators import GIB
from bert_jax.planning.estimate import Plan, Suggestion
from bert_jax.planning.prices import Prices
from bert_jax.planning.rows import NOTHING, Rows, name_of


def verdict(found: Plan, prices: Prices) -> str:
    """Returns whether a run fits, with hours and dollars, or what to change.

    ``"Fits (14% of HBM). About 4.7 hours, $90 on demand, $36 spot."``
    """
    hours = found.hours
    if hours is None:
        return f"Does not fit: {memory_missing(found)}. {_change(found)}"
    return (
        f"Fits ({found.hbm_share():.0%} of HBM). About {duration(hours)}, {_cost(found, prices)}."
    )


def memory_missing(found: Plan) -> str:
    """Returns the first step that does not fit, the HBM it needs, and the HBM of a chip."""
    at, phase = next((at, phase) for at, phase in enumerate(found.phases) if not phase.fits)
    kind, step = next(
        (kind, step)
        for kind, step in (("train", phase.train), ("evaluation", phase.evaluation))
        if step is not None and step.memory is None
    )
    unit = GIB / found.topology.accelerator.devices_per_chip
    needed, available = (step.needed_bytes or 0) / unit, (step.available_bytes or 0) / unit
    where = f"the {kind} step of phase {at}"
    return f"{where} needs {needed:.1f} GiB of {available:.1f} GiB per chip"


def duration(hours: float) -> str:
    """Returns ``"4.7 hours"``, and below one hour ``"12 minutes"``."""
    if hours >= 1:
        return f"{hours:,.1f} hours"
    minutes = max(1, round(hours * 60))
    return f"{minutes} minute{'s' if minutes > 1 else ''}"


def dollars(amount: float | None) -> str:
    """Returns ``"$1,204"``, and below ten dollars the cents too."""
    return NOTHING if amount is None else f"${amount:,.{0 if amount >= 10 else 2}f}"


def summary(plans: Sequence[Plan], prices: Prices) -> Rows:
    """Returns memory, time and dollars, a row for each phase."""
    headings = (
        *("topology", "phase", "steps", "tokens", "batch"),
        *("memory", "ms/step", "MFU", "hours", "dollars"),
    )
    rows = []
    for found in plans:
        rate = found.chip_hour(prices, spot=False)
        for at, phase in enumerate(found.phases):
            name = name_of(found) if at == 0 else ""
            size = (f"{phase.steps:,}", str(phase.seq_length), f"{phase.batch_size:,}")
            times = (NOTHING,) * 4
            if phase.fits:
                step, hours = found.estimate(phase.train), found.phase_hours(phase)
                cost = None if rate is None else hours * found.chips * rate
                times = (
                    f"{step.seconds * 1e3:,.1f}",
                    f"{step.mfu:.0%}",
                    f"{hours:,.1f}" if hours >= 1 else f"{hours:.2f}",
                    dollars(cost),
                )
            rows.append((name, str(at), *size, f"{found.hbm_share(phase):.0%}", *times))
    return Rows("Each phase", headings, rows, 2)


def _cost(found: Plan, prices: Prices) -> str:
    kinds = (("on demand", False), ("spot", True))
    costs = [(found.dollars(prices, spot=spot), kind) for kind, spot in kinds]
    known = [f"{dollars(cost)} {kind}" for cost, kind in costs if cost is not None]
    return ", ".join(known) or f"no price of {found.topology.accelerator.name} known"


def _change(found: Plan) -> str:
    def of_another_batch(one: Suggestion) -> bool:
        return any("batch_size" in override for override in one.overrides)

    changing = [one for one in found.suggestions if one.overrides]  # fastest first
    best = min(changing, key=of_another_batch, default=None)
    if best is None:
        return (
            "Use more chips, more accumulation, a smaller batch_size or model.execution.remat=full."
        )
    more = len(changing) - 1
    others = f" --details lists {more} more." if more else ""
    return (
        f"It fits with {' '.join(best.overrides)} "
        f"({best.peak_bytes / GIB:.1f} GiB, {best.seconds * 1e3:,.0f} ms a step).{others}"
    )
