"""Plans as a self-contained page."""

from collections.abc import Sequence
from typing import NamedTuple

from bert_jax.parallel.accelerators import GIB
from bert_jax.planning import rows
from bert_jax.planning.estimate import Plan
from bert_jax.planning.prices import Prices
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
        _Part("Time and cost", _times(plans), [rows.overview(plans, prices), rows.work(plans)]),
        _Part("Memory", _memory(plans), [rows.memory(plans)]),
        _Part("Collectives", [], [rows.collectives(plans)]),
    ]
    found = rows.suggestions(plans)
    if found.rows:
        parts.append(_Part("What fits", [], [found]))
    parts += [_Part(rows.name_of(each), [], list(rows.breakdown(each))) for each in plans]
    fitting = sum(each.fits for each in plans)
    return render_page(
        "plan.html",
        title=f"Plan of {title}",
        about="A run compiled for TPUs that are not there",
        figures=[("slices planned", str(len(plans))), ("of them fit", str(fitting))],
        footer=rows.sources(prices),
        parts=parts,
        notes=[line for each in plans for line in rows.notes(each)],
    )


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
