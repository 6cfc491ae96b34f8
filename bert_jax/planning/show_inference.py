"""Shows plans of inference as text in the terminal, as an HTML page, and as JSON."""

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from bert_jax.parallel.accelerators import GIB
from bert_jax.planning import summary
from bert_jax.planning.inference import InferencePlan
from bert_jax.planning.prices import Prices
from bert_jax.planning.show import printed_table
from bert_jax.planning.summary import NOTHING, dollars, duration
from bert_jax.report.rendering import Part, render_page


def verdict(found: InferencePlan, prices: Prices) -> str:
    """Returns whether a program fits, with its rate and cost.

    ``"128 tokens: fits (3% of HBM). About 6,900 documents/s; a billion: 40.1 hours, $48 on
    demand, $19 spot."``
    """
    if not found.fits:
        needed, available = found.step.peak / GIB, (found.step.available_bytes or 0) / GIB
        return (
            f"{found.length} tokens: does not fit: needs {needed:.1f} GiB of {available:.1f} GiB "
            "per device. Use a smaller score.batch_tokens."
        )
    costs = {"on demand": found.dollars(prices), "spot": found.dollars(prices, spot=True)}
    known = [f"{dollars(cost)} {kind}" for kind, cost in costs.items() if cost is not None]
    cost = ", ".join(known) or f"price of {found.topology.accelerator.name} unknown"
    return (
        f"{found.length} tokens: fits ({found.hbm_share:.0%} of HBM). About "
        f"{found.documents_per_second:,.0f} documents/s; a billion: {duration(found.hours)}, "
        f"{cost}."
    )


def rates(plans: Sequence[InferencePlan], prices: Prices) -> summary.Rows:
    """Returns a table of memory, time and cost with a row for each plan."""

    def row(found: InferencePlan) -> dict[str, str]:
        size = {
            "topology": found.name,
            "tokens": str(found.length),
            "batch": f"{found.step.rows:,}",
            "memory": f"{found.hbm_share:.0%}",
        }
        if not found.fits:
            headings = ("ms/batch", "MFU", "documents/s", "hours/billion", "$/billion", "spot")
            return size | dict.fromkeys(headings, NOTHING)
        estimate = found.estimate
        return size | {
            "ms/batch": f"{estimate.seconds * 1e3:,.1f}",
            "MFU": f"{estimate.mfu:.0%}",
            "documents/s": f"{found.documents_per_second:,.0f}",
            "hours/billion": f"{found.hours:,.1f}",
            "$/billion": dollars(found.dollars(prices)),
            "spot": dollars(found.dollars(prices, spot=True)),
        }

    return summary.table_of("Each length", (row(each) for each in plans), texts=1)


def show(
    plans: Sequence[InferencePlan], prices: Prices, *, console: Console, details: bool
) -> None:
    """Prints the verdicts and the table. `details` adds the cycles by kind and by kernel."""
    for found in plans:
        style = "bold green" if found.fits else "bold red"
        line = f"{found.name}, {verdict(found, prices)}"
        console.print(line, style=style, markup=False, soft_wrap=True)
    console.print(printed_table(rates(plans, prices), narrow=True))
    for each in _cycles(plans) if details else ():
        console.print(printed_table(each))
    lines = [summary.compiler(plans[0].versions), _sources(prices)]
    for line in lines:
        console.print(line, style="dim", markup=False, highlight=False, soft_wrap=True)


def render(plans: Sequence[InferencePlan], prices: Prices, *, title: str) -> str:
    """Returns a self-contained HTML page of plans. `plans` must not be empty."""
    return render_page(
        "parts.html",
        title=f"Plan of {title}",
        about=" ".join(f"{each.name}, {verdict(each, prices)}" for each in plans),
        figures=[],
        footer=f"{summary.compiler(plans[0].versions)} {_sources(prices)}",
        parts=[
            Part("Summary", [rates(plans, prices)]),
            Part("Cycles", _cycles(plans)),
        ],
        notes=[],
    )


def as_json(plans: Sequence[InferencePlan], prices: Prices) -> str:
    """Returns the plans as a JSON list. A batch is one device's; times are in seconds."""
    return json.dumps([_plan(found, prices) for found in plans], indent=2)


def _plan(found: InferencePlan, prices: Prices) -> dict[str, Any]:
    fits = found.fits
    return {
        **found.facts(),
        "length": found.length,
        "fits": fits,
        "verdict": verdict(found, prices),
        "versions": found.versions._asdict(),
        "batch": dataclasses.asdict(found.step),
        "estimated": {
            "seconds": found.estimate.seconds if fits else None,
            "mfu": found.estimate.mfu if fits else None,
            "documents_per_second": found.documents_per_second if fits else None,
            "hours_per_billion": found.hours if fits else None,
            "dollars_per_billion_on_demand": found.dollars(prices),
            "dollars_per_billion_spot": found.dollars(prices, spot=True),
            "prices": {"date": prices.date, "source": prices.source},
        },
    }


def _cycles(plans: Sequence[InferencePlan]) -> list[summary.Rows]:
    return [
        table
        for each in plans
        for table in summary.step_cycles(
            each.step, each.topology.accelerator, title=f"{each.name}, {each.length} tokens"
        )
    ]


def _sources(prices: Prices) -> str:
    return (
        "Compiled: memory. Estimated: times, hours and dollars, for rows without padding, and "
        f"without time for reading and tokenising. Prices of {prices.date}, {prices.source}"
    )
