"""Plans as a self-contained page."""

from collections.abc import Sequence
from typing import NamedTuple

from bert_jax.parallel.accelerators import GIB
from bert_jax.planning import rows
from bert_jax.planning.estimate import Plan
from bert_jax.planning.prices import Prices
from bert_jax.planning.verdict import dollars, duration, summary, verdict
from bert_jax.report.charts import Chart, bar_chart
from bert_jax.report.rendering import render_page


class _Part(NamedTuple):
    """A section of the page."""

    title: str
    charts: Sequence[Chart]
    tables: Sequence[rows.Rows]


def render_plans(plans: Sequence[Plan], prices: Prices, *, title: str) -> str:
    """Returns the page of a run's plans, at least one, as one HTML document that loads nothing."""
    parts = [
        _Part("Summary", [], [summary(plans, prices)]),
        _Part("Time and cost", _times(plans), [rows.overview(plans, prices), rows.work(plans)]),
        _Part("Memory", _memory(plans), [rows.memory(plans)]),
        _Part("Collectives", [], [rows.collectives(plans)]),
    ]
    found = rows.suggestions(plans)
    if found.rows:
        parts.append(_Part("What fits", [], [found]))
    parts += [_Part(rows.name_of(each), [], list(rows.cycles(each))) for each in plans]
    named = [(f"{rows.name_of(each)}: ", each) for each in plans]
    return render_page(
        "plan.html",
        title=f"Plan of {title}",
        about=" ".join(name + verdict(each, prices) for name, each in named),
        figures=[tile for each in plans for tile in _tiles(each, prices, one=len(plans) == 1)],
        footer=rows.sources(prices),
        parts=parts,
        notes=[line for each in plans for line in rows.notes(each)],
    )


def _tiles(found: Plan, prices: Prices, *, one: bool) -> list[tuple[str, str]]:
    """Returns the labels and values of hours, dollars and memory."""
    on = "" if one else f", {rows.name_of(found)}"
    hours = found.hours
    tiles = {
        "time": rows.NOTHING if hours is None else duration(hours),
        "on demand": dollars(found.dollars(prices, spot=False)),
        "spot": dollars(found.dollars(prices, spot=True)),
        "of a chip's HBM": f"{found.hbm_share():.0%}",
    }
    return [(f"{label}{on}", value) for label, value in tiles.items() if one or label != "spot"]


def _times(plans: Sequence[Plan]) -> list[Chart]:
    bars = []
    for found in plans:
        for index, phase in enumerate(found.phases):
            if phase.train.cycles is not None:
                parts = found.estimate(phase.train).parts
                milliseconds = {part: seconds * 1e3 for part, seconds in parts.items()}
                bars.append((f"{rows.name_of(found)}, phase {index}", milliseconds))
    return [bar_chart("A step by what it is spent on", bars, unit="ms")] if bars else []


def _memory(plans: Sequence[Plan]) -> list[Chart]:
    bars = []
    for found in plans:
        unit = GIB / found.topology.accelerator.devices_per_chip
        for index, phase in enumerate(found.phases):
            if (held := phase.train.memory) is not None:
                sizes = {
                    "parameters": held.parameters,
                    "optimizer": held.optimizer,
                    "batch": held.batch,
                    "temporaries": held.temporaries,
                }
                parts = {part: size / unit for part, size in sizes.items()}
                bars.append((f"{rows.name_of(found)}, phase {index}", parts))
    return [bar_chart("HBM of a chip", bars, unit="GiB")] if bars else []
