"""A plan as one sentence, and as tables of text for the terminal and the HTML page."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from bert_jax.parallel.accelerators import GIB, Accelerator
from bert_jax.planning.compilation.collectives import Collective
from bert_jax.planning.compilation.step import CompiledStep
from bert_jax.planning.estimate import PhasePlan, Plan, Suggestion
from bert_jax.planning.prices import Prices
from bert_jax.planning.request import CompilerVersions, host_versions

NOTHING = "—"


def verdict(found: Plan, prices: Prices) -> str:
    """Returns whether a run fits, with hours and dollars, or what to change.

    ``"Fits (14% of HBM). About 4.7 hours, $90 on demand, $36 spot."``
    """
    if found.hours is None:
        return f"Does not fit: {found.memory_missing()}. {_change(found)}"
    costs = {"on demand": found.dollars(prices), "spot": found.dollars(prices, spot=True)}
    known = [f"{dollars(cost)} {kind}" for kind, cost in costs.items() if cost is not None]
    cost = ", ".join(known) or f"price of {found.topology.accelerator.name} unknown"
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
    """Returns a duration as text: ``"4.7 hours"``, or ``"12 minutes"`` below one hour."""
    if hours >= 1:
        return f"{hours:,.1f} hours"
    minutes = max(1, round(hours * 60))
    return f"{minutes} minute{'s' if minutes > 1 else ''}"


def dollars(amount: float | None) -> str:
    """Returns an amount as text: ``"$1,204"``, or ``"$9.50"`` below ten dollars."""
    return NOTHING if amount is None else f"${amount:,.{0 if amount >= 10 else 2}f}"


class Rows(NamedTuple):
    """One table. The first `texts` columns have text, the others have numbers."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    texts: int


def table_of(title: str, rows: Iterable[Mapping[str, str]], *, texts: int = 2) -> Rows:
    """Returns a table of rows, each a mapping from heading to text."""
    listed = list(rows)
    headings = list(listed[0]) if listed else []
    return Rows(title, headings, [list(each.values()) for each in listed], texts)


def each_phase(plans: Sequence[Plan]) -> Iterator[tuple[Plan, int, PhasePlan]]:
    """Yields the plan, the index and the phase of every phase."""
    for found in plans:
        for at, phase in enumerate(found.phases):
            yield found, at, phase


def summary(plans: Sequence[Plan], prices: Prices) -> Rows:
    """Returns a table of memory, time and cost with a row for each phase."""

    def row(found: Plan, at: int, phase: PhasePlan) -> dict[str, str]:
        size = {
            "topology": found.name if at == 0 else "",
            "phase": str(at),
            "steps": f"{phase.steps:,}",
            "tokens": str(phase.seq_length),
            "batch": f"{phase.batch_size:,}",
            "memory": f"{found.hbm_share(phase):.0%}",
        }
        if not phase.fits:
            return size | dict.fromkeys(("ms/step", "MFU", "hours", "dollars"), NOTHING)
        step, hours = found.estimate(phase.train), found.phase_hours(phase)
        return size | {
            "ms/step": f"{step.seconds * 1e3:,.1f}",
            "MFU": f"{step.mfu:.0%}",
            "hours": f"{hours:,.1f}" if hours >= 1 else f"{hours:.2f}",
            "dollars": dollars(found.dollars(prices, phase)),
        }

    return table_of("Each phase", (row(*each) for each in each_phase(plans)))


def work(plans: Sequence[Plan], prices: Prices) -> Rows:
    """Returns a table of the FLOPs and bytes of train steps, and the unit that limits them."""
    rows = []
    for found, at, phase in each_phase(plans):
        step, devices = phase.train, found.topology.devices * found.slices
        if (counted := step.cycles) is None:
            continue
        estimate = found.estimate(step)
        hours = f"{found.phase_hours(phase) * found.chips:,.0f}" if phase.fits else NOTHING
        executed = (counted.product_flops + counted.kernel_flops) * devices
        moved = counted.hbm_bytes * found.topology.accelerator.devices_per_chip
        rows.append(
            {
                "topology": found.name,
                "phase": f"{at} train",
                "bound": estimate.bound,
                "rows/s": f"{estimate.rows_per_second:,.0f}",
                "chip-hours": hours,
                "spot": dollars(found.dollars(prices, phase, spot=True)),
                "useful TFLOP": f"{step.useful_flops / 1e12:,.2f}",
                "executed": f"{executed / 1e12:,.2f}",
                "in kernels": f"{counted.kernel_flops * devices / 1e12:,.2f}",
                "GB through a chip's HBM": f"{moved / 1e9:,.2f}",
            }
        )
    title = "Work of a step, all chips (compiled), and rates (estimated)"
    return table_of(title, rows, texts=3)


def memory(plans: Sequence[Plan]) -> Rows:
    """Returns a table of the HBM of each step: parameters, optimizer, batch, temporaries."""
    rows = []
    for found, at, phase in each_phase(plans):
        accelerator = found.topology.accelerator
        for kind, step in phase.compiled.items():
            sizes: dict[str, int | None] = {
                part: getattr(step.memory, part, None)
                for part in ("parameters", "optimizer", "batch", "temporaries")
            }
            sizes |= {"peak": step.peak, "of": step.available_bytes or accelerator.device_hbm_bytes}
            unit = GIB / accelerator.devices_per_chip
            shown = {
                part: NOTHING if size is None else f"{size / unit:.2f}"
                for part, size in sizes.items()
            }
            rows.append({"topology": found.name, "phase": f"{at} {kind}"} | shown)
    return table_of("HBM per chip, GiB (compiled)", rows)


def cycles(plans: Sequence[Plan]) -> Iterator[Rows]:
    """Yields the tables of `step_cycles` for train steps."""
    for found, at, phase in each_phase(plans):
        title = f"{found.name}, phase {at}, train step"
        yield from step_cycles(phase.train, found.topology.accelerator, title=title)


def step_cycles(step: CompiledStep, accelerator: Accelerator, *, title: str) -> Iterator[Rows]:
    """Yields tables of the cycles of a step by kind of operation, and of its kernels.

    `bundles` is the number of bundles of one call. `its bundles` is the number that the busiest
    unit alone needs, a lower bound for any schedule. The column after `share` has the cycles in the
    reading that the plan does not use, if code was generated.
    """
    if (counted := step.cycles) is None:
        return

    def times(count: int) -> dict[str, str]:
        milliseconds = count / accelerator.clock_hz * 1e3
        return {"million cycles": f"{count / 1e6:,.1f}", "ms": f"{milliseconds:,.2f}"}

    sums = {"total": counted.total, "estimated from bytes": counted.by_bytes}
    kinds = [
        {"kind": kind} | times(count) | {"share": f"{count / max(counted.total, 1):.1%}"}
        for kind, count in {**counted.by_kind, **sums}.items()
    ]
    if second := counted.other_reading:
        reading = "compiler's estimate" if accelerator.judged_by_schedule else "by schedule"
        second = {**second, "total": sum(second.values())}
        for row in kinds:
            found = second.get(row["kind"])
            row[reading] = NOTHING if found is None else f"{found / 1e6:,.1f}"
    kernels = (
        {
            "kernel": one.name,
            "busiest unit": one.busiest,
            "calls": f"{one.calls:,}",
            "bundles": f"{one.bundles:,}",
            "its bundles": f"{one.busiest_bundles:,}",
            "ratio": f"{one.bundles / max(one.busiest_bundles, 1):.2f}",
            "MB moved": f"{one.copied_bytes / 1e6:,.1f}",
        }
        | times(one.cycles * one.calls)
        for one in counted.kernels
    )
    yield table_of(f"{title}: cycles by kind", kinds, texts=1)
    if counted.kernels:
        yield table_of(f"{title}: kernels, by the compiler's schedule", kernels)


def collectives(plans: Sequence[Plan]) -> Rows:
    """Returns a table of the collectives of the train steps, grouped by kind."""
    rows = []
    for found, at, phase in each_phase(plans):
        clock = found.topology.accelerator.clock_hz
        groups: dict[tuple[str, ...], list[Collective]] = defaultdict(list)
        for one in phase.train.collectives:
            overlaps = "yes" if one.hidden_cycles else "no"
            axes, dtypes = " × ".join(one.axes), "+".join(one.dtypes)
            groups[one.kind, axes, one.link, dtypes, overlaps].append(one)
        for key, members in sorted(groups.items()):
            named = dict(zip(("kind", "axis", "link", "dtype", "overlaps"), key, strict=True))
            alone = sum(one.seconds * one.trips for one in members)
            exposed = sum(one.exposed_seconds(clock) for one in members)
            rows.append(
                {
                    "topology": found.name,
                    "phase": f"{at} train",
                    **named,
                    "times": f"{sum(one.trips for one in members):,}",
                    "MB": f"{sum(one.bytes * one.trips for one in members) / 1e6:,.1f}",
                    "ms alone": f"{alone * 1e3:,.2f}",
                    "ms exposed": f"{exposed * 1e3:,.2f}",
                }
            )
    title = "Collectives of a step (compiled), their time (estimated)"
    return table_of(title, rows, texts=7)


def suggestions(plans: Sequence[Plan]) -> Rows:
    """Returns a table of the settings that fit, fastest first. It is empty without a search."""
    rows = (
        {
            "topology": found.name,
            "settings": " ".join(one.overrides) or "as configured",
            "step": f"{one.seconds * 1e3:,.1f} ms",
            "rows/s": f"{one.rows_per_second:,.0f}",
            "peak, GiB": f"{one.peak_bytes / GIB:.2f}",
        }
        for found in plans
        for one in found.suggestions
    )
    return table_of("Settings that fit, fastest first (estimated for the largest phase)", rows)


def learning_rate(plans: Sequence[Plan]) -> str:
    """Returns a sentence on the learning-rate schedule, which all topologies share."""
    return f"Learning rate, in steps: {'; then '.join(plans[0].learning_rate)}."


def compiler(own: CompilerVersions) -> str:
    """Returns a sentence on the versions that compiled all plans, and on the hosts' versions."""
    hosts = host_versions()
    if own == hosts:
        return f"Compiled with {own}, the versions that hosts install."
    return f"Compiled with {own}; hosts install {hosts}."


def notes(plans: Sequence[Plan]) -> list[str]:
    """Returns the notes of all plans, and warnings about what the cycles exclude."""
    return [
        f"{found.name}: {line}" for found in plans for line in (*found.notes, *_warnings(found))
    ]


def _warnings(found: Plan) -> Iterator[str]:
    for at, phase in enumerate(found.phases):
        counted = phase.train.cycles
        if counted and counted.unknown_loops:
            loops = ", ".join(counted.unknown_loops)
            yield f"phase {at}: loops of unknown length, counted once: {loops}"
        if counted and (kernels := sum(counted.uncounted.values())):
            yield f"phase {at}: the cycles exclude {kernels} kernel calls"
    if any("batch_size" in each for one in found.suggestions for each in one.overrides):
        yield "a different batch_size changes the training: adapt the learning rate and the steps"


def estimated(prices: Prices) -> str:
    """Returns a sentence on the estimates: what they exclude, and the date of the prices."""
    return (
        "Estimated: times, hours and dollars, without time for input, checkpoints and "
        f"preemptions. Prices of {prices.date}"
    )
