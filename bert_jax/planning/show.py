"""Shows plans as text in the terminal, as a self-contained HTML page, and as JSON."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bert_jax.parallel.accelerators import GIB
from bert_jax.planning import summary
from bert_jax.planning.compilation.step import CompiledStep
from bert_jax.planning.estimate import Plan
from bert_jax.planning.planning import QUICK_NOTE
from bert_jax.planning.prices import Prices
from bert_jax.planning.request import host_versions
from bert_jax.planning.summary import NOTHING, dollars, duration, verdict
from bert_jax.report.charts import bar_chart
from bert_jax.report.rendering import Part, render_page


def show_plans(
    plans: Sequence[Plan],
    prices: Prices,
    *,
    console: Console,
    details: bool = False,
    suggestions: bool = False,
) -> None:
    """Prints the verdict of each plan and the summary.

    `suggestions` adds the settings that fit. `details` adds these settings, memory, work,
    collectives, cycles by kind and kernel, and notes.
    """
    for found in plans:
        name = f"{found.name}: " if len(plans) > 1 else ""
        style = "bold green" if found.fits else "bold red"
        console.print(name + verdict(found, prices), style=style, markup=False, soft_wrap=True)
    console.print(printed_table(summary.summary(plans, prices), narrow=True))
    console.print(summary.learning_rate(plans), markup=False, highlight=False)
    shown = []
    if details:
        shown += [summary.memory(plans), summary.work(plans, prices), summary.collectives(plans)]
        shown += summary.cycles(plans)
    if details or suggestions:
        shown.append(summary.suggestions(plans))
    for each in shown:
        if each.rows:
            console.print(printed_table(each))
    if details:
        console.print(_sources(prices), style="dim", markup=False)
        lines = [summary.compiler(plans[0].versions), *summary.notes(plans)]
    else:
        lines = [
            summary.compiler(plans[0].versions),
            f"Compiled: memory. {summary.estimated(prices)}. --details shows the rest.",
        ]
        notes = (line for found in plans for line in found.notes)
        lines += dict.fromkeys(line for line in notes if line != QUICK_NOTE)
    for line in lines:
        console.print(line, style="yellow" if details else "dim", markup=False, highlight=False)


def _sources(prices: Prices) -> str:
    compiled = "Compiled: memory, cycles of the core, bytes and kinds of collectives"
    return f"{compiled}. {summary.estimated(prices)}, {prices.source}"


def printed_table(of: summary.Rows, *, narrow: bool = False) -> Table:
    """Returns a table to print. A narrow table has no column lines and fits 80 characters."""
    if narrow:
        table = Table(box=box.SIMPLE_HEAD, padding=0, collapse_padding=True, pad_edge=False)
    else:
        table = Table(title=of.title, box=box.HEAVY_HEAD)
    for at, heading in enumerate(of.headings):
        words = at < of.texts
        table.add_column(heading, justify="left" if words else "right", no_wrap=not words)
    for row in of.rows:
        table.add_row(*row)
    return table


def render_plans(plans: Sequence[Plan], prices: Prices, *, title: str) -> str:
    """Returns a self-contained HTML page of the plans of a run. `plans` must not be empty."""
    times, memory = [], []  # bars of the charts
    for found, at, phase in summary.each_phase(plans):
        if (held := phase.train.memory) is not None:
            name, unit = f"{found.name}, phase {at}", found.topology.accelerator.devices_per_chip
            parts = found.estimate(phase.train).parts
            times.append((name, {part: seconds * 1e3 for part, seconds in parts.items()}))
            kinds = ("parameters", "optimizer", "batch", "temporaries")
            memory.append((name, {kind: getattr(held, kind) * unit / GIB for kind in kinds}))
    of_time = [bar_chart("Time of a step by kind of work", times, unit="ms")] if times else []
    of_memory = [bar_chart("HBM of a chip", memory, unit="GiB")] if memory else []
    sections = [
        Part("Summary", [summary.summary(plans, prices)]),
        Part("Time and cost", [summary.work(plans, prices)], of_time, is_wide=True),
        Part("Memory", [summary.memory(plans)], of_memory, is_wide=True),
        Part("Collectives", [summary.collectives(plans)]),
        Part("Settings that fit", [summary.suggestions(plans)]),
        Part("Cycles", list(summary.cycles(plans))),
    ]
    return render_page(
        "parts.html",
        title=f"Plan of {title}",
        about=" ".join(
            [
                *(f"{each.name}: {verdict(each, prices)}" for each in plans),
                summary.learning_rate(plans),
            ]
        ),
        figures=[tile for each in plans for tile in _tiles(each, prices, one=len(plans) == 1)],
        footer=f"{summary.compiler(plans[0].versions)} {_sources(prices)}",
        parts=[each for each in sections if any(table.rows for table in each.tables)],
        notes=summary.notes(plans),
    )


def _tiles(found: Plan, prices: Prices, *, one: bool) -> list[tuple[str, str]]:
    """Returns (label, value) of a plan's hours, dollars and memory."""
    tiles = {
        "time": NOTHING if found.hours is None else duration(found.hours),
        "on demand": dollars(found.dollars(prices)),
        "spot": dollars(found.dollars(prices, spot=True)),
        "of a chip's HBM": f"{found.hbm_share():.0%}",
    }
    on = "" if one else f", {found.name}"
    return [(f"{label}{on}", value) for label, value in tiles.items() if one or label != "spot"]


def plans_as_json(plans: Sequence[Plan], prices: Prices) -> str:
    """Returns the plans as a JSON list.

    `useful_flops` are for all chips. Memory, cycles and work are for one JAX device. Times are in
    seconds.
    """
    return json.dumps([_plan(found, prices) for found in plans], indent=2)


def _plan(found: Plan, prices: Prices) -> dict[str, Any]:
    topology, hours = found.topology, found.hours
    return {
        **found.facts(),
        "hosts": topology.hosts() * found.slices,
        "fits": found.fits,
        "verdict": verdict(found, prices),
        "versions": {
            "compiled": found.versions._asdict(),
            "hosts": host_versions()._asdict(),
        },
        "compiled": {
            "peak_hbm_bytes_per_chip": found.peak_bytes,
            "hbm_bytes_per_chip": topology.accelerator.hbm_bytes,
        },
        "estimated": {
            "hours": hours,
            "chip_hours": None if hours is None else hours * found.chips,
            "dollars_on_demand": found.dollars(prices),
            "dollars_spot": found.dollars(prices, spot=True),
            "prices": {"date": prices.date, "source": prices.source},
        },
        "learning_rate": list(found.learning_rate),
        "notes": list(found.notes),
        "suggestions": [dataclasses.asdict(one) for one in found.suggestions],
        "phases": [
            {
                "steps": phase.steps,
                "seq_length": phase.seq_length,
                "batch_size": phase.batch_size,
                "train": _step(found, phase.train),
                "evaluation": phase.evaluation and _step(found, phase.evaluation),
            }
            for phase in found.phases
        ],
    }


def _step(found: Plan, step: CompiledStep) -> dict[str, Any]:
    facts = dataclasses.asdict(step)
    result = {key: facts[key] for key in ("rows", "useful_flops", "quick")}
    if step.cycles is None:
        return result | {key: facts[key] for key in ("needed_bytes", "available_bytes")}
    names = ("product_flops", "kernel_flops", "hbm_bytes")
    work = {name: facts["cycles"].pop(name) for name in names}
    estimate, clock = found.estimate(step), found.topology.accelerator.clock_hz
    return result | {
        "compiled": {
            "memory": facts["memory"],
            "cycles": facts["cycles"]
            | {"total": step.cycles.total, "in_kernels": step.cycles.in_kernels},
            "work": work,
            "seconds_to_compile": step.compile_seconds,
        },
        "estimated": dataclasses.asdict(estimate)
        | {"seconds": estimate.seconds, "bound": estimate.bound},
        "collectives": [
            dataclasses.asdict(one) | {"exposed_seconds": one.exposed_seconds(clock)}
            for one in step.collectives
        ],
    }
