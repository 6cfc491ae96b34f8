"""Plans as tables in the terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from bert_jax.planning import rows
from bert_jax.planning.estimate import Plan
from bert_jax.planning.prices import Prices


def show_plans(
    plans: Sequence[Plan], prices: Prices, *, console: Console, with_breakdown: bool
) -> None:
    """Prints time, memory, work and collectives; on request cycles by kind, line and kernel."""
    shown = [rows.overview(plans, prices), rows.memory(plans), rows.work(plans)]
    shown.append(rows.collectives(plans))
    if with_breakdown:
        shown += [each for found in plans for each in rows.breakdown(found)]
    shown.append(rows.suggestions(plans))
    for each in shown:
        if each.rows:
            console.print(_table(each))
    console.print(rows.sources(prices), style="dim", markup=False)
    for found in plans:
        for line in rows.notes(found):
            console.print(line, style="yellow", markup=False)


def _table(of: rows.Rows) -> Table:
    table = Table(title=of.title)
    for at, heading in enumerate(of.headings):
        words = at < of.texts
        table.add_column(heading, justify="left" if words else "right", no_wrap=not words)
    for row in of.rows:
        table.add_row(*row)
    return table
