"""A plan as one sentence."""

from bert_jax.parallel.accelerators import GIB
from bert_jax.planning.estimate import Plan, Suggestion
from bert_jax.planning.prices import Prices

NOTHING = "—"


def verdict(found: Plan, prices: Prices) -> str:
    """Returns whether a run fits, with hours and dollars, or what to change.

    ``"Fits (14% of HBM). About 4.7 hours, $90 on demand, $36 spot."``
    """
    if found.hours is None:
        return f"Does not fit: {memory_missing(found)}. {_change(found)}"
    costs = {"on demand": found.dollars(prices), "spot": found.dollars(prices, spot=True)}
    known = [f"{dollars(cost)} {kind}" for kind, cost in costs.items() if cost is not None]
    cost = ", ".join(known) or f"no price of {found.topology.accelerator.name} known"
    return f"Fits ({found.hbm_share():.0%} of HBM). About {duration(found.hours)}, {cost}."


def memory_missing(found: Plan) -> str:
    """Returns the first step that does not fit, the HBM it needs, and the HBM of a chip."""
    kind, at, step = next(
        (kind, at, step)
        for at, phase in enumerate(found.phases)
        for kind, step in phase.compiled.items()
        if step.memory is None
    )
    unit = GIB / found.topology.accelerator.devices_per_chip
    needed, available = step.peak / unit, (step.available_bytes or 0) / unit
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
