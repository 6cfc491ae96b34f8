"""Plans as text in the terminal: a verdict, one small table, and details on request."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from bert_jax.planning import rows
from bert_jax.planning.estimate import Plan
from bert_jax.planning.planning import QUICK_NOTE
from bert_jax.planning.prices import Prices
from bert_jax.planning.verdict import summary, verdict


def show_plans(
    plans: Sequence[Plan],
    prices: Prices,
    *,
    console: Console,
    details: bool = False,
    suggestions: bool = False,
) -> None:
    """Prints the verdict of each plan and the summary.

    `suggestions` adds the settings that fit. `details` adds them too, with time, memory, work,
    collectives, cycles by kind and kernel, and notes.
    """
    for found in plans:
        name = f"{rows.name_of(found)}: " if len(plans) > 1 else ""
        style = "bold green" if found.fits else "bold red"
        console.print(name + verdict(found, prices), style=style, markup=False, soft_wrap=True)
    console.print(_table(summary(plans, prices)._replace(title=""), narrow=True))
    shown = []
    if details:
        shown += [rows.overview(plans, prices), rows.memory(plans), rows.work(plans)]
        shown.append(rows.collectives(plans))
        shown += [each for found in plans for each in rows.cycles(found)]
    if details or suggestions:
        shown.append(rows.suggestions(plans))
    for each in shown:
        if each.rows:
            console.print(_table(each))
    if details:
        console.print(rows.sources(prices), style="dim", markup=False)
        lines = [line for found in plans for line in rows.notes(found)]
    else:
        lines = [f"Compiled: memory. {rows.estimated(prices)}. --details shows the rest."]
        lines += dict.fromkeys(
            line for found in plans for line in found.notes if line != QUICK_NOTE
        )
    for line in lines:
        console.print(line, style="yellow" if details else "dim", markup=False, highlight=False)


def _table(of: rows.Rows, *, narrow: bool = False) -> Table:
    """Returns a table; a narrow one has no lines between its columns and fits 80 of a terminal."""
    if narrow:
        table = Table(box=box.SIMPLE_HEAD, padding=0, collapse_padding=True, pad_edge=False)
    else:
        table = Table(title=of.title or None, box=box.HEAVY_HEAD)
    for at, heading in enumerate(of.headings):
        words = at < of.texts
        table.add_column(heading, justify="left" if words else "right", no_wrap=not words)
    for row in of.rows:
        table.add_row(*row)
    return table
