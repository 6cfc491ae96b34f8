"""Plans as tables in the terminal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from rich.console import Console
from rich.table import Table

from bert_jax.parallel.accelerators import GIB
from bert_jax.planning.collectives import Collective
from bert_jax.planning.compiled_step import CompiledStep
from bert_jax.planning.estimate import PhasePlan, Plan, gradient_bytes, uncounted_kernels
from bert_jax.planning.prices import Prices

_LINES = 15  # of source in a breakdown
_NOTHING = "—"
_BY_BYTES = "of that by bytes alone"
_COMPILER = "the compiler's own"


def show_plans(plans: Sequence[Plan], prices: Prices, *, console: Console, breakdown: bool) -> None:
    """Prints one table over all topologies, and one of memory; on request what time is spent on.

    Args:
        plans: of one run.
        prices: of chips.
        console: to print to.
        breakdown: also cycles by kind and by line, and every kind of collective.
    """
    console.print(_overview(plans, prices))
    console.print(_memory(plans))
    if breakdown:
        for found in plans:
            for index, phase in enumerate(found.phases):
                if (cycles := phase.train.cycles) is not None:
                    title = f"{_name(found)}, phase {index}, train step"
                    kinds = {**cycles.by_kind, "in all": cycles.total, _BY_BYTES: cycles.by_bytes}
                    lines = dict(list(cycles.by_line.items())[:_LINES])
                    for name, shares in (("kind", kinds), ("line", lines)):
                        console.print(
                            _shares(found, phase.train, f"{title}: cycles by {name}", shares)
                        )
                    console.print(_collectives(found, phase.train, title))
    console.print(
        "Compiled: memory, cycles of the core, bytes and kinds of collectives. Estimated from "
        "them: all times, MFU, hours and dollars; no waiting for input, no checkpoints. "
        f"Prices of {prices.date}, {prices.source}",
        style="dim",
        markup=False,
    )
    for found in plans:
        for note in _notes(found):
            console.print(f"{_name(found)}: {note}", style="yellow", markup=False)


def _overview(plans: Sequence[Plan], prices: Prices) -> Table:
    table = Table(title="Time and cost (estimated)")
    for heading in ("topology", "chips", "phase", "fits"):
        table.add_column(heading, no_wrap=True)
    for heading in ("step", "bound", "MFU", "rows/s", "hours", "chip-hours", "on demand", "spot"):
        table.add_column(heading, justify="left" if heading == "bound" else "right", no_wrap=True)
    for found in plans:
        hours = found.hours
        total = (
            _number(hours, ",.1f"),
            _number(None if hours is None else hours * found.chips, ",.0f"),
            _number(found.dollars(prices, spot=False), "$,.0f"),
            _number(found.dollars(prices, spot=True), "$,.0f"),
        )
        for index, phase in enumerate(found.phases):
            first = index == 0
            table.add_row(
                _name(found) if first else "",
                str(found.chips) if first else "",
                f"{phase.steps:,} × {phase.batch_size} × {phase.seq_length}",
                "yes" if phase.fits else "NO",
                *_times(found, phase),
                *(total if first else ()),
            )
    return table


def _times(found: Plan, phase: PhasePlan) -> tuple[str, str, str, str]:
    if phase.train.cycles is None:
        return _NOTHING, _NOTHING, _NOTHING, _NOTHING
    estimate = found.estimate(phase.train)
    return (
        f"{estimate.seconds * 1e3:,.1f} ms",
        estimate.bound,
        f"{estimate.mfu:.1%}",
        f"{estimate.rows_per_second:,.0f}",
    )


def _memory(plans: Sequence[Plan]) -> Table:
    table = Table(title="HBM per chip, GiB (compiled)")
    table.add_column("topology", no_wrap=True)
    table.add_column("phase", no_wrap=True)
    for heading in ("parameters", "optimizer", "batch", "temporaries", "gradients ≤"):
        table.add_column(heading, justify="right")
    for heading in ("program", "peak", "of"):
        table.add_column(heading, justify="right")
    for found in plans:
        accelerator = found.topology.accelerator
        unit = GIB / accelerator.devices_per_chip
        for index, phase in enumerate(found.phases):
            for kind, step in (("train", phase.train), ("evaluation", phase.evaluation)):
                if step is None:
                    continue
                memory = step.memory
                numbers: Iterable[int | None]
                if memory is None:
                    numbers = (*(None,) * 6, step.needed_bytes)
                else:
                    gradients = gradient_bytes(memory) if kind == "train" else 0
                    numbers = (memory.parameters, memory.optimizer, memory.batch)
                    numbers = (*numbers, memory.temporaries, gradients, memory.program, memory.peak)
                shown = [_number(None if one is None else one / unit, ".2f") for one in numbers]
                limit = (
                    accelerator.hbm_bytes
                    if memory
                    else (step.available_bytes or 0) * (accelerator.devices_per_chip)
                )
                table.add_row(_name(found), f"{index} {kind}", *shown, f"{limit / GIB:.2f}")
    return table


def _shares(found: Plan, step: CompiledStep, title: str, shares: Mapping[str, int]) -> Table:
    """Cycles by name of whatever they are spent on, the name being the column's."""
    assert step.cycles is not None
    table = Table(title=title)
    table.add_column(title.rpartition(" ")[2])
    for heading in ("million cycles", "ms", "share"):
        table.add_column(heading, justify="right")
    for name, cycles in shares.items():
        table.add_row(name or _COMPILER, *_cycles(found, cycles, step.cycles.total))
    return table


def _cycles(found: Plan, cycles: int, total: int) -> tuple[str, str, str]:
    milliseconds = cycles / found.topology.accelerator.clock_hz * 1e3
    return f"{cycles / 1e6:,.1f}", f"{milliseconds:,.2f}", f"{cycles / max(total, 1):.1%}"


def _collectives(found: Plan, step: CompiledStep, title: str) -> Table:
    table = Table(title=f"{title}: collectives")
    for heading in ("kind", "axis", "link", "dtype", "overlaps"):
        table.add_column(heading, no_wrap=True)
    for heading in ("times", "MB", "ms alone", "ms exposed"):
        table.add_column(heading, justify="right")
    groups: dict[tuple[str, ...], list[Collective]] = defaultdict(list)
    for one in step.collectives:
        overlaps = "yes" if one.overlaps else "no"
        axes, dtypes = " × ".join(one.axes), "+".join(one.dtypes)
        groups[one.kind, axes, one.link, dtypes, overlaps].append(one)
    clock = found.topology.accelerator.clock_hz
    for key, members in sorted(groups.items()):
        table.add_row(
            *key,
            f"{sum(one.trips for one in members):,}",
            f"{sum(one.bytes * one.trips for one in members) / 1e6:,.1f}",
            f"{sum(one.seconds * one.trips for one in members) * 1e3:,.2f}",
            f"{sum(one.exposed_seconds(clock) for one in members) * 1e3:,.2f}",
        )
    return table


def _notes(found: Plan) -> list[str]:
    notes = list(found.notes)
    for index, phase in enumerate(found.phases):
        cycles = phase.train.cycles
        if cycles and cycles.unknown_loops:
            loops = ", ".join(cycles.unknown_loops)
            notes.append(f"phase {index}: trips unknown, counted once: {loops}")
        if cycles and (kernels := uncounted_kernels(cycles)):
            notes.append(f"phase {index}: {kernels} kernel calls are not in the cycles")
    return notes


def _name(found: Plan) -> str:
    return found.topology.name + (f" × {found.slices}" if found.slices > 1 else "")


def _number(value: float | None, form: str) -> str:
    if value is None:
        return _NOTHING
    dollars = form.startswith("$")
    return ("$" if dollars else "") + format(value, form.lstrip("$"))
