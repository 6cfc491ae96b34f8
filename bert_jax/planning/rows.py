"""A plan as one sentence, and as tables of text for the terminal and the page alike."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bert_jax.parallel.accelerators import GIB
from bert_jax.planning.compilation.collectives import Collective
from bert_jax.planning.compilation.cycles import Cycles
from bert_jax.planning.compilation.step import CompiledStep
from bert_jax.planning.estimate import PhasePlan, Plan, Suggestion
from bert_jax.planning.prices import Prices

NOTHING = "—"

Row = tuple[str, ...]


def verdict(found: Plan, prices: Prices) -> str:
    """Returns whether a run fits, with hours and dollars, or what to change.

    ``"Fits (14% of HBM). About 4.7 hours, $90 on demand, $36 spot."``
    """
    if found.hours is None:
        return f"Does not fit: {found.memory_missing()}. {_change(found)}"
    costs = {"on demand": found.dollars(prices), "spot": found.dollars(prices, spot=True)}
    known = [f"{dollars(cost)} {kind}" for kind, cost in costs.items() if cost is not None]
    cost = ", ".join(known) or f"no price of {found.topology.accelerator.name} known"
    return f"Fits ({found.hbm_share():.0%} of HBM). About {duration(found.hours)}, {cost}."


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


def duration(hours: float) -> str:
    """Returns ``"4.7 hours"``, and below one hour ``"12 minutes"``."""
    if hours >= 1:
        return f"{hours:,.1f} hours"
    minutes = max(1, round(hours * 60))
    return f"{minutes} minute{'s' if minutes > 1 else ''}"


def dollars(amount: float | None) -> str:
    """Returns ``"$1,204"``, and below ten dollars the cents too."""
    return NOTHING if amount is None else f"${amount:,.{0 if amount >= 10 else 2}f}"


class Rows(NamedTuple):
    """One table; the first `texts` columns are words, the others numbers."""

    title: str
    headings: Row
    rows: Sequence[Row]
    texts: int


def each_phase(plans: Sequence[Plan]) -> Iterator[tuple[Plan, int, PhasePlan]]:
    """Yields every phase with its plan and number."""
    for found in plans:
        for at, phase in enumerate(found.phases):
            yield found, at, phase


def summary(plans: Sequence[Plan], prices: Prices) -> Rows:
    """Returns memory, time and dollars, a row for each phase."""
    headings = (
        *("topology", "phase", "steps", "tokens", "batch"),
        *("memory", "ms/step", "MFU", "hours", "dollars"),
    )
    rows = []
    for found, at, phase in each_phase(plans):
        size = (f"{phase.steps:,}", str(phase.seq_length), f"{phase.batch_size:,}")
        times = (NOTHING,) * 4
        if phase.fits:
            step, hours = found.estimate(phase.train), found.phase_hours(phase)
            times = (
                f"{step.seconds * 1e3:,.1f}",
                f"{step.mfu:.0%}",
                f"{hours:,.1f}" if hours >= 1 else f"{hours:.2f}",
                dollars(found.dollars(prices, phase)),
            )
        name = found.name if at == 0 else ""
        rows.append((name, str(at), *size, f"{found.hbm_share(phase):.0%}", *times))
    return Rows("Each phase", headings, rows, 2)


def work(plans: Sequence[Plan], prices: Prices) -> Rows:
    """Returns what train steps execute beside what the mathematics needs, and what binds them."""
    headings = (
        *("topology", "phase", "bound", "rows/s", "chip-hours", "spot"),
        *("useful TFLOP", "executed", "in kernels", "GB through a chip's HBM"),
    )
    rows = []
    for found, at, phase in each_phase(plans):
        step, devices = phase.train, found.topology.devices * found.slices
        if step.work is None:
            continue
        estimate = found.estimate(step)
        flops = (step.useful_flops, step.work.flops * devices, step.work.kernel_flops * devices)
        moved = step.work.hbm_bytes * found.topology.accelerator.devices_per_chip
        hours = f"{found.phase_hours(phase) * found.chips:,.0f}" if phase.fits else NOTHING
        spot = dollars(found.dollars(prices, phase, spot=True))
        rows.append(
            (
                *(found.name, f"{at} train", estimate.bound),
                *(f"{estimate.rows_per_second:,.0f}", hours, spot),
                *(f"{each / 1e12:,.2f}" for each in flops),
                f"{moved / 1e9:,.2f}",
            )
        )
    return Rows("Work of a step, all chips (compiled), and rates (estimated)", headings, rows, 3)


def memory(plans: Sequence[Plan]) -> Rows:
    """Returns the HBM of each program by kind."""
    parts = ("parameters", "optimizer", "batch", "temporaries")
    headings = ("topology", "phase", *parts, "peak", "of")
    rows = [
        (found.name, f"{at} {kind}", *_gibibytes(found, step))
        for found, at, phase in each_phase(plans)
        for kind, step in phase.compiled.items()
    ]
    return Rows("HBM per chip, GiB (compiled)", headings, rows, 2)


def _gibibytes(found: Plan, step: CompiledStep) -> Row:
    unit = GIB / found.topology.accelerator.devices_per_chip
    available = step.available_bytes or found.topology.accelerator.device_hbm_bytes
    shown = [NOTHING] * 4
    if (held := step.memory) is not None:
        sizes = (held.parameters, held.optimizer, held.batch, held.temporaries)
        shown = [f"{size / unit:.2f}" for size in sizes]
    return (*shown, f"{step.peak / unit:.2f}", f"{available / unit:.2f}")


def cycles(plans: Sequence[Plan]) -> Iterator[Rows]:
    """Yields the cycles of train steps by kind of operation, and of their kernels."""
    for found, at, phase in each_phase(plans):
        if (counted := phase.train.cycles) is None:
            continue
        title = f"{found.name}, phase {at}, train step"
        clock = found.topology.accelerator.clock_hz
        yield _kinds(counted, clock, f"{title}: cycles by kind")
        if counted.kernels:
            yield _kernels(counted, clock, f"{title}: kernels, by the compiler's schedule")


def _kinds(counted: Cycles, clock: float, title: str) -> Rows:
    sums = {"in all": counted.total, "of that by bytes alone": counted.by_bytes}
    rows = [
        (name, *_times(count, clock), f"{count / max(counted.total, 1):.1%}")
        for name, count in {**counted.by_kind, **sums}.items()
    ]
    return Rows(title, ("kind", "million cycles", "ms", "share"), rows, 1)


def _kernels(counted: Cycles, clock: float, title: str) -> Rows:
    """Bundles are of one call; no schedule takes fewer than the bundles of the busiest unit."""
    headings = (
        *("kernel", "busiest unit"),
        *("calls", "bundles", "of that unit", "ratio", "MB moved", "million cycles", "ms"),
    )
    rows = [
        (
            *(one.name, one.busiest),
            *(f"{count:,}" for count in (one.calls, one.bundles, one.busiest_bundles)),
            f"{one.bundles / max(one.busiest_bundles, 1):.2f}",
            f"{one.copied_bytes / 1e6:,.1f}",
            *_times(one.cycles * one.calls, clock),
        )
        for one in counted.kernels
    ]
    return Rows(title, headings, rows, 2)


def _times(count: int, clock: float) -> Row:
    return f"{count / 1e6:,.1f}", f"{count / clock * 1e3:,.2f}"


def collectives(plans: Sequence[Plan]) -> Rows:
    """Returns every kind of collective of the train steps."""
    headings = (
        *("topology", "phase", "kind", "axis", "link", "dtype", "overlaps"),
        *("times", "MB", "ms alone", "ms exposed"),
    )
    rows = []
    for found, at, phase in each_phase(plans):
        clock = found.topology.accelerator.clock_hz
        groups: dict[Row, list[Collective]] = defaultdict(list)
        for one in phase.train.collectives:
            overlaps = "yes" if one.overlaps else "no"
            axes, dtypes = " × ".join(one.axes), "+".join(one.dtypes)
            groups[one.kind, axes, one.link, dtypes, overlaps].append(one)
        for key, members in sorted(groups.items()):
            sums = (
                f"{sum(one.trips for one in members):,}",
                f"{sum(one.bytes * one.trips for one in members) / 1e6:,.1f}",
                f"{sum(one.seconds * one.trips for one in members) * 1e3:,.2f}",
                f"{sum(one.exposed_seconds(clock) for one in members) * 1e3:,.2f}",
            )
            rows.append((found.name, f"{at} train", *key, *sums))
    title = "Collectives of a step (compiled), their time (estimated)"
    return Rows(title, headings, rows, 7)


def suggestions(plans: Sequence[Plan]) -> Rows:
    """Returns the settings that fit, most rows a second first; empty where none were sought."""
    rows = [
        (
            found.name,
            " ".join(one.overrides) or "as configured",
            f"{one.seconds * 1e3:,.1f} ms",
            f"{one.rows_per_second:,.0f}",
            f"{one.peak_bytes / GIB:.2f}",
        )
        for found in plans
        for one in found.suggestions
    ]
    title = "What fits, fastest first: the step of the largest phase (estimated)"
    return Rows(title, ("topology", "settings", "step", "rows/s", "peak, GiB"), rows, 2)


def notes(plans: Sequence[Plan]) -> list[str]:
    """Returns what a reader must know of how the figures came about."""
    return [
        f"{found.name}: {line}" for found in plans for line in (*found.notes, *_warnings(found))
    ]


def _warnings(found: Plan) -> Iterator[str]:
    for at, phase in enumerate(found.phases):
        counted = phase.train.cycles
        if counted and counted.unknown_loops:
            yield f"phase {at}: trips unknown, counted once: {', '.join(counted.unknown_loops)}"
        if counted and (kernels := sum(counted.uncounted.values())):
            yield f"phase {at}: {kernels} kernel calls are not in the cycles"
    if any("batch_size" in each for one in found.suggestions for each in one.overrides):
        yield "another batch_size is another training: learning rate and steps go with it"


def estimated(prices: Prices) -> str:
    """Returns which figures are estimates, their limits, and the date of the prices."""
    return (
        "Estimated: times, hours and dollars, without waiting for input, checkpoints and "
        f"preemptions. Prices of {prices.date}"
    )
