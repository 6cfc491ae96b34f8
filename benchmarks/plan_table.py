"""Makes the tables of docs/results/planning.md: one Markdown row per configuration and topology.

    python -m benchmarks.plan_table --into docs/results/planning.md

``--table 1 --config base --topology v5e:4x4`` selects rows: the tables are of one slice, of two
slices, of other objectives, and of ModernBERT. ``--exact`` also generates machine code. Compiled
programs are cached, so a stopped command resumes. It needs libtpu but no TPU. A new
row takes about a minute on two cores.
"""

import argparse
import datetime
import importlib.metadata
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from benchmarks.marked_table import insert, line
from bert_jax.config import load_config
from bert_jax.errors import UserError
from bert_jax.parallel.accelerators import GIB
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.estimate import Plan
from bert_jax.planning.prices import Prices, load_prices
from bert_jax.verbs.plan import plan

# The size and the phase of ELECTRA-base (arXiv 2003.10555, table 6).
ELECTRA_BASE = (
    *("pretrain/electra-small.yaml", "model.size=base", "objective.generator.size=0.3333"),
    *("train.phases.0.steps=766000", "train.phases.0.seq_length=512"),
    "train.phases.0.batch_size=256",
)
DISENTANGLED = "objective.embedding_sharing=gradient_disentangled"

# Configuration and overrides of each table, by name.
CONFIGS = {
    "base": ("pretrain/base.yaml",),
    "large": ("pretrain/base.yaml", "model.size=large"),
    "large, LAMB": ("pretrain/large_lamb.yaml",),
    "ELECTRA-base": ELECTRA_BASE,
    "ELECTRA-base, disentangled": (*ELECTRA_BASE, DISENTANGLED),
    "ALBERT-base": ("pretrain/base.yaml", "model.kind=albert"),
    "ALBERT-base, share: attention": (
        *("pretrain/base.yaml", "model.kind=albert", "model.architecture.share=attention"),
    ),
    "ModernBERT-base": ("pretrain/modernbert-base.yaml",),
    "ModernBERT-large": ("pretrain/modernbert-large.yaml",),
}
TOPOLOGIES = (
    *("v3:4x4", "v3:8x8", "v3:16x16"),
    *("v4:2x2x4", "v4:4x4x4", "v4:4x8x8"),
    *("v5e:4x4", "v5e:8x8", "v5e:16x16"),
    *("v5p:2x2x4", "v5p:4x4x4", "v5p:4x8x8"),
    *("v6e:4x4", "v6e:8x8", "v6e:16x16"),
)
BERTS = ("base", "large", "large, LAMB")
# Microbatches of LAMB's two phases on 16 chips. More chips need fewer microbatches.
LAMB_ACCUMULATION = (16, 32)
HEADINGS = (
    *("Model", "Slice, chips", "Steps × batch × tokens", "Fits", "Parameters + optimizer, GiB"),
    *("Temporaries", "Peak of HBM", "Million cycles", "Step", "Bound", "MFU", "Hours"),
    "On demand",
)


class Table(NamedTuple):
    """What a table compares."""

    configs: tuple[str, ...]
    topologies: tuple[str, ...]
    slices: int
    vocab_size: int


# By name, which is in the marks of the page as well.
TABLES = {
    "1": Table(BERTS, TOPOLOGIES, 1, 30_522),
    "2": Table(BERTS, ("v5e:4x4",), 2, 30_522),
    "objectives": Table(
        (
            *("ELECTRA-base", "ALBERT-base", "base"),
            *("ELECTRA-base, disentangled", "ALBERT-base, share: attention"),
        ),
        ("v5e:4x4",),
        slices=1,
        vocab_size=30_522,
    ),
    "modernbert": Table(
        ("ModernBERT-base", "ModernBERT-large"),
        ("v4:2x2x4", "v5e:4x4", "v5p:2x2x4", "v6e:4x4"),
        slices=1,
        vocab_size=50_368,
    ),
}


class Row(NamedTuple):
    """One plan of a table."""

    name: str
    topology: str
    slices: int
    vocab_size: int

    def overrides(self) -> list[str]:
        """Returns the overrides of the configuration."""
        _, *changed = CONFIGS[self.name]
        if self.name != "large, LAMB":
            return changed
        chips = parse_topology(self.topology).chips * self.slices
        return changed + [
            f"train.phases.{phase}.accumulation={max(of * 16 // chips, 1)}"
            for phase, of in enumerate(LAMB_ACCUMULATION)
        ]


def main() -> None:
    """Prints the tables and, with ``--into``, writes them into the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--table", nargs="+", default=list(TABLES), choices=list(TABLES))
    parser.add_argument("--config", nargs="+", choices=list(CONFIGS), help="default: all")
    parser.add_argument("--topology", nargs="+", help="default: all")
    parser.add_argument("--exact", action="store_true", help="generate machine code too (slow)")
    parser.add_argument("--into", type=Path, help="page whose marked tables are replaced")
    asked = parser.parse_args()
    prices = load_prices(None)
    for mark in asked.table:
        made = TABLES[mark]
        wanted = [
            Row(name, each, made.slices, made.vocab_size)
            for name in made.configs
            for each in asked.topology or made.topologies
            if name in (asked.config or CONFIGS)
        ]
        lines = []
        for text in table(wanted, prices, asked):
            print(text, flush=True)
            lines.append(text)
        print(flush=True)
        if asked.into:
            insert(asked.into, f"plan_table {mark}", lines)
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    Console(stderr=True).print(f"compilers: {spent.ru_utime + spent.ru_stime:.0f} CPU seconds")


def table(wanted: Iterable[Row], prices: Prices, asked: argparse.Namespace) -> Iterator[str]:
    """Yields the lines of a table."""
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "libtpu"))
    form = "code and all" if asked.exact else "quick form"
    today = datetime.datetime.now(datetime.UTC).date()
    yield f"{today}, {versions}, {form}, prices of {prices.date}."
    yield ""
    yield from (line(HEADINGS), line("---" for _ in HEADINGS))
    for each in wanted:
        config = load_config(f"configs/{CONFIGS[each.name][0]}", each.overrides())
        try:
            (found,) = plan(
                config,
                [each.topology],
                slices=each.slices,
                vocab_size=each.vocab_size,
                exact=asked.exact,
                suggest=False,
                console=Console(stderr=True),
            )
        except UserError as error:
            blank = ("",) * (len(HEADINGS) - 4)
            yield line((each.name, f"`{each.topology}`", str(error), "no", *blank))
            continue
        yield from map(line, rows(each.name, found, prices))


def rows(name: str, found: Plan, prices: Prices) -> Iterator[tuple[str, ...]]:
    """Yields a row for each phase. Bytes are per chip."""
    unit = GIB / found.topology.accelerator.devices_per_chip
    hours, dollars = found.hours, found.dollars(prices)
    total = (
        "" if hours is None else f"{hours:,.1f}",
        "" if dollars is None else f"${dollars:,.0f}",
    )
    for at, phase in enumerate(found.phases):
        head = (name, f"`{found.name}`, {found.chips}") if at == 0 else ("", "")
        size = f"{phase.steps:,} × {phase.batch_size:,} × {phase.seq_length}"
        step = phase.train
        if step.memory is None or step.cycles is None:
            yield (*head, size, "no", "", "", f"{(step.needed_bytes or 0) / unit:.1f}", *("",) * 6)
            continue
        estimate, memory = found.estimate(step), step.memory
        yield (
            *(*head, size, "yes", f"{(memory.parameters + memory.optimizer) / unit:.2f}"),
            *(f"{memory.temporaries / unit:.1f}", f"{memory.peak / unit:.1f}"),
            *(f"{step.cycles.total / 1e6:,.1f}", f"{estimate.seconds * 1e3:,.1f} ms"),
            *(estimate.bound, f"{estimate.mfu:.1%}", *(total if at == 0 else ("", ""))),
        )


if __name__ == "__main__":
    main()
