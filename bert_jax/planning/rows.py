"""What tables of a plan say, in the terminal and on the page alike: headings and rows of text."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bert_jax.parallel.accelerators import GIB
from bert_jax.planning.compilation.collectives import Collective
from bert_jax.planning.compilation.cycles import Cycles
from bert_jax.planning.compilation.step import CompiledStep
from bert_jax.planning.estimate import PhasePlan, Plan
from bert_jax.planning.prices import Prices

NOTHING = "—"

Row = tuple[str, ...]


class Rows(NamedTuple):
    """One table; the first `texts` columns are words, the others numbers."""

    title: str
    headings: Row
    rows: Sequence[Row]
    texts: int


def name_of(found: Plan) -> str:
    """Returns ``v5e:4x4``, or ``v5e:4x4 × 2`` for two slices."""
    return found.topology.name + (f" × {found.slices}" if found.slices > 1 else "")


def overview(plans: Sequence[Plan], prices: Prices) -> Rows:
    """Time and money of each plan, a row a phase."""
    headings = (
        *("topology", "chips", "phase", "fits", "bound"),
        *("step", "MFU", "rows/s", "hours", "chip-hours", "on demand", "spot"),
    )
    rows = []
    for found in plans:
        hours = found.hours
        total = (
            _number(hours, ",.1f"),
            _number(None if hours is None else hours * found.chips, ",.0f"),
            _number(found.dollars(prices, spot=False), "$,.0f"),
            _number(found.dollars(prices, spot=True), "$,.0f"),
        )
        for index, phase in enumerate(found.phases):
            name = (name_of(found), str(found.chips)) if index == 0 else ("", "")
            size = f"{phase.steps:,} × {phase.batch_size} × {phase.seq_length}"
            fits = "yes" if phase.fits else "NO"
            rows.append(
                (*name, size, fits, *_times(found, phase), *(total if index == 0 else ("",) * 4))
            )
    return Rows("Time and cost (estimated)", headings, rows, 5)


def _times(found: Plan, phase: PhasePlan) -> Row:
    if phase.train.cycles is None:
        return (NOTHING,) * 4
    estimate = found.estimate(phase.train)
    return (
        estimate.bound,
        f"{estimate.seconds * 1e3:,.1f} ms",
        f"{estimate.mfu:.1%}",
        f"{estimate.rows_per_second:,.0f}",
    )


def memory(plans: Sequence[Plan]) -> Rows:
    """HBM of each program by kind."""
    headings = (
        *("topology", "phase", "parameters", "optimizer", "batch", "temporaries", "gradients ≤"),
        *("program", "peak", "of"),
    )
    rows = [
        (name_of(found), f"{index} {kind}", *_gibibytes(found, kind, step))
        for found in plans
        for index, phase in enumerate(found.phases)
        for kind, step in (("train", phase.train), ("evaluation", phase.evaluation))
        if step is not None
    ]
    return Rows("HBM per chip, GiB (compiled)", headings, rows, 2)


def _gibibytes(found: Plan, kind: str, step: CompiledStep) -> Row:
    accelerator = found.topology.accelerator
    unit = GIB / accelerator.devices_per_chip
    held = step.memory
    if held is None:
        limit = (step.available_bytes or 0) / unit
        return (*(NOTHING,) * 6, f"{(step.needed_bytes or 0) / unit:.2f}", f"{limit:.2f}")
    # As much as the parameters at most, and part of the temporaries.
    gradients = min(held.parameters, held.temporaries) if kind == "train" else 0
    sizes = (held.parameters, held.optimizer, held.batch, held.temporaries, gradients)
    shown = (f"{size / unit:.2f}" for size in (*sizes, held.program, held.peak))
    return (*shown, f"{accelerator.hbm_bytes / GIB:.2f}")


def work(plans: Sequence[Plan]) -> Rows:
    """What train steps execute beside what the mathematics needs."""
    headings = (
        *("topology", "phase"),
        *("useful TFLOP", "executed", "of that in kernels", "ratio", "GB through a chip's HBM"),
    )
    rows = []
    for found in plans:
        devices = found.topology.devices * found.slices
        for index, phase in enumerate(found.phases):
            if (done := phase.train.work) is None:
                continue
            useful, executed = phase.train.useful_flops, done.flops * devices
            sizes = (useful, executed, done.kernel_flops * devices)
            moved = done.hbm_bytes * found.topology.accelerator.devices_per_chip
            rows.append(
                (
                    *(name_of(found), f"{index} train"),
                    *(f"{size / 1e12:,.2f}" for size in sizes),
                    f"{executed / useful:.2f}",
                    f"{moved / 1e9:,.2f}",
                )
            )
    return Rows("Work of a step, all chips (compiled)", headings, rows, 2)


def cycles(found: Plan) -> Iterator[Rows]:
    """Yields what the train steps of a plan spend their cycles on."""
    for index, phase in enumerate(found.phases):
        counted = phase.train.cycles
        if counted is None:
            continue
        title = f"{name_of(found)}, phase {index}, train step"
        yield _kinds(found, counted, f"{title}: cycles by kind")
        if counted.kernels:
            yield _kernels(found, counted, f"{title}: kernels, by the compiler's schedule")


def _kinds(found: Plan, counted: Cycles, title: str) -> Rows:
    clock = found.topology.accelerator.clock_hz
    sums = {"in all": counted.total, "of that by bytes alone": counted.by_bytes}
    rows = [
        (
            name,
            f"{count / 1e6:,.1f}",
            f"{count / clock * 1e3:,.2f}",
            f"{count / max(counted.total, 1):.1%}",
        )
        for name, count in {**counted.by_kind, **sums}.items()
    ]
    return Rows(title, ("kind", "million cycles", "ms", "share"), rows, 1)


def _kernels(found: Plan, counted: Cycles, title: str) -> Rows:
    """Bundles are of one call; those of the busiest unit are the least that a schedule takes."""
    clock = found.topology.accelerator.clock_hz
    headings = (
        *("kernel", "busiest unit"),
        *("calls", "bundles", "of that unit", "ratio", "MB moved", "million cycles", "ms"),
    )
    rows = [
        (
            *(one.name, one.busiest),
            f"{one.calls:,}",
            f"{one.bundles:,}",
            f"{one.busiest_bundles:,}",
            f"{one.bundles / max(one.busiest_bundles, 1):.2f}",
            f"{one.copied_bytes / 1e6:,.1f}",
            f"{one.cycles * one.calls / 1e6:,.1f}",
            f"{one.cycles * one.calls / clock * 1e3:,.2f}",
        )
        for one in counted.kernels
    ]
    return Rows(title, headings, rows, 2)


def collectives(plans: Sequence[Plan]) -> Rows:
    """Every kind of collective of the train steps."""
    headings = (
        *("topology", "phase", "kind", "axis", "link", "dtype", "overlaps"),
        *("times", "MB", "ms alone", "ms exposed"),
    )
    rows = []
    for found in plans:
        clock = found.topology.accelerator.clock_hz
        for index, phase in enumerate(found.phases):
            groups: dict[Row, list[Collective]] = defaultdict(list)
            for one in phase.train.collectives:
                overlaps = "yes" if one.overlaps else "no"
                axes, dtypes = " × ".join(one.axes), "+".join(one.dtypes)
                groups[one.kind, axes, one.link, dtypes, overlaps].append(one)
            rows += [
                (
                    *(name_of(found), f"{index} train", *key),
                    f"{sum(one.trips for one in members):,}",
                    f"{sum(one.bytes * one.trips for one in members) / 1e6:,.1f}",
                    f"{sum(one.seconds * one.trips for one in members) * 1e3:,.2f}",
                    f"{sum(one.exposed_seconds(clock) for one in members) * 1e3:,.2f}",
                )
                for key, members in sorted(groups.items())
            ]
    title = "Collectives of a step (compiled), their time (estimated)"
    return Rows(title, headings, rows, 7)


def suggestions(plans: Sequence[Plan]) -> Rows:
    """The settings that fit, most rows a second first; empty where none were looked for."""
    rows = [
        (
            name_of(found),
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


def notes(found: Plan) -> list[str]:
    """What a reader must know of how the figures came about."""
    lines = list(found.notes)
    for index, phase in enumerate(found.phases):
        if phase.train.memory and not phase.fits:
            lines.append(
                f"phase {index}: the train step fits, its evaluation of {phase.evaluation_rows:,} "
                f"rows at a time does not (train.evaluation.batch_size)"
            )
        counted = phase.train.cycles
        if counted and counted.unknown_loops:
            loops = ", ".join(counted.unknown_loops)
            lines.append(f"phase {index}: trips unknown, counted once: {loops}")
        if counted and (kernels := sum(counted.uncounted.values())):
            lines.append(f"phase {index}: {kernels} kernel calls are not in the cycles")
    if any("batch_size" in each for one in found.suggestions for each in one.overrides):
        lines.append("another batch_size is another training: learning rate and steps go with it")
    return [f"{name_of(found)}: {line}" for line in lines]


def estimated(prices: Prices) -> str:
    """Returns which figures are estimates, their limits, and the date of the prices."""
    return (
        "Estimated: times, hours and dollars, without waiting for input, checkpoints and "
        f"preemptions. Prices of {prices.date}"
    )


def sources(prices: Prices) -> str:
    """Returns which figures are compiled or estimated, and the source of the prices."""
    compiled = "Compiled: memory, cycles of the core, bytes and kinds of collectives"
    return f"{compiled}. {estimated(prices)}, {prices.source}"


def _number(value: float | None, form: str) -> str:
    if value is None:
        return NOTHING
    dollars = form.startswith("$")
    return ("$" if dollars else "") + format(value, form.lstrip("$"))
