"""Rows of the tables in ``docs/speedrun.md``."""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from benchmarks.finished_runs import RunRecord, mean_curve
from benchmarks.marked_table import insert, inserted, line
from benchmarks.report import machine
from benchmarks.significance import Spread, welch
from benchmarks.speedrun.rules import TaskVerdict, Verdict
from benchmarks.speedrun.stages import REFERENCE, Tuned
from benchmarks.speedrun.tier import TierSection
from bert_jax.version import __version__

HEADINGS: Final = (
    *("Recipe", "Corpus", "Date, version", "FLOPs", "Share", "MLM loss", "p", "Target at"),
    *("Device-hours", "Learning rate", "Fine-tuned", "Machine"),
)
ABLATION: Final = ("Switch", "FLOPs", "MLM loss", "Difference", "p")
NONE: Final = "—"


def record_rows(
    name: str,
    tier: TierSection,
    *,
    corpus: str,
    runs: Mapping[str, Sequence[RunRecord]],
    verdict: Verdict,
    tuned: Mapping[str, Tuned],
    tasks: Mapping[str, TaskVerdict],
) -> list[str]:
    """Returns the rows of the reference and of the recipe `name`, as Markdown."""
    today = datetime.datetime.now(datetime.UTC).date()
    rows = []
    for recipe, records in runs.items():
        own = recipe == REFERENCE
        hours = Spread.of([record.hours * tier.devices for record in records])
        tested = NONE if own else f"{verdict.p:.2g}" + ("" if verdict.reached else ", not reached")
        scores = [
            f"{task} {(found.reference if own else found.recipe).text()}"
            + ("" if own else f" (p {found.p:.2g}{', worse' if found.worse else ''})")
            for task, found in tasks.items()
        ]
        edge = ", at the edge of the trials" if tuned[recipe].at_edge else ""
        whole = runs[REFERENCE][0].flops
        cells = (
            *(recipe, f"`{corpus[:12]}`", f"{today}, {__version__}", f"{records[0].flops:.3g}"),
            *(f"{records[0].flops / whole:.3f}",),
            *(f"{Spread.of([record.loss for record in records]).text()}", tested),
            NONE if own else _reached_at(records, verdict.target.mean, whole),
            *(f"{hours.mean:.3g}", f"{records[0].learning_rate:.3g}{edge}"),
            *("; ".join(scores) or "not run", f"{machine()['cpu']}, {machine()['cores']} cores"),
        )
        rows.append(line(cells))
    return rows


def _reached_at(records: Sequence[RunRecord], target: float, whole: float) -> str:
    """Returns the first evaluation with a mean loss below the target, as a share of `whole`."""
    shares = (of.flops / whole for of, loss in mean_curve(records) if loss.mean <= target)
    first = next(shares, None)
    return NONE if first is None else f"{first:.3f}"


def ablation_rows(
    reference: Sequence[RunRecord], found: Mapping[str, Sequence[RunRecord]]
) -> list[str]:
    """Returns the ablation as a Markdown table, with the reference first."""
    base = [record.loss for record in reference]
    rows = [line(ABLATION), line("---" for _ in ABLATION)]
    flops = f"{reference[0].flops:.3g}"
    rows.append(line((REFERENCE, flops, Spread.of(base).text(), NONE, NONE)))
    for switch, records in found.items():
        losses = [record.loss for record in records]
        difference = Spread.of(losses).mean - Spread.of(base).mean
        p = welch(losses, base, "less")
        cells = (switch, f"{records[0].flops:.3g}", Spread.of(losses).text())
        rows.append(line((*cells, f"{difference:+.3f}", f"{p:.2g}")))
    return rows


def add_rows(page: Path, mark: str, rows: Sequence[str]) -> None:
    """Adds rows to the table `mark` of a page; replaces rows of the same recipe and corpus.

    Raises:
        ValueError: if the page lacks the marks.
    """
    kept = [row for row in inserted(page, mark) if row.startswith("| ")][2:]
    new = {_key(row): row for row in rows}
    table = {_key(row): row for row in kept} | new
    insert(page, mark, [line(HEADINGS), line("---" for _ in HEADINGS), *table.values()])


def _key(row: str) -> tuple[str, ...]:
    """Returns recipe and corpus of a row."""
    return tuple(cell.strip() for cell in row.split("|")[1:3])
