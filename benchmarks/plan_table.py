"""The table of docs/planning.md: configurations × topologies, as Markdown, each row as it is known.

``python -m benchmarks.plan_table [--config base large …] [--topology v5e:4x4 …] [--slices 2]
[--exact]``. What has been compiled before is kept, so a table that was stopped goes on where it
was. No TPU is needed, only libtpu; minutes for each row where all are new.
"""

import argparse
import datetime
import importlib.metadata
from collections.abc import Iterable, Iterator

from rich.console import Console

from bert_jax.config import load_config
from bert_jax.errors import UserError
from bert_jax.parallel.accelerators import GIB
from bert_jax.planning.estimate import Plan
from bert_jax.planning.prices import Prices, load_prices
from bert_jax.planning.rows import name_of
from bert_jax.verbs.plan import plan

# Names of the table: a configuration and what is changed of it.
CONFIGS = {
    "base": ("pretrain/base.yaml",),
    "large": ("pretrain/base.yaml", "model.size=large"),
    "large, LAMB": ("pretrain/large_lamb.yaml",),
}
TOPOLOGIES = (
    *("v3:4x4", "v3:8x8", "v3:16x16"),
    *("v4:2x2x4", "v4:4x4x4", "v4:4x8x8"),
    *("v5e:4x4", "v5e:8x8", "v5e:16x16"),
    *("v5p:2x2x4", "v5p:4x4x4", "v5p:4x8x8"),
    *("v6e:4x4", "v6e:8x8", "v6e:16x16"),
)
HEADINGS = (
    *("Model", "Slice, chips", "Steps × batch × tokens", "Fits", "Parameters + optimizer, GiB"),
    *("Temporaries", "Peak of HBM", "Million cycles", "Step", "Bound", "MFU", "Hours"),
    "On demand",
)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--config", nargs="+", default=list(CONFIGS), choices=list(CONFIGS))
    parser.add_argument("--topology", nargs="+", default=list(TOPOLOGIES))
    parser.add_argument("--slices", type=int, default=1, help="of each topology")
    parser.add_argument("--vocab-size", type=int, default=30_522)
    parser.add_argument("--exact", action="store_true", help="code and all, in minutes each")
    asked = parser.parse_args()
    prices = load_prices(None)
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("jax", "libtpu"))
    today = datetime.datetime.now(datetime.UTC).date()
    print(f"{today}, {versions}, prices of {prices.date}.\n")
    print(row(HEADINGS), row("---" for _ in HEADINGS), sep="\n", flush=True)
    for name in asked.config:
        file, *overrides = CONFIGS[name]
        config = load_config(f"configs/{file}", overrides)
        for topology in asked.topology:
            try:
                (found,) = plan(
                    config,
                    [topology],
                    slices=asked.slices,
                    vocab_size=asked.vocab_size,
                    exact=asked.exact,
                    suggest=False,
                    console=Console(stderr=True),
                )
            except UserError as error:
                blank = ("",) * (len(HEADINGS) - 3)
                print(row((name, f"`{topology}`", str(error), *blank)), flush=True)
                continue
            for cells in rows(name, found, prices):
                print(row(cells), flush=True)


def rows(name: str, found: Plan, prices: Prices) -> Iterator[tuple[str, ...]]:
    """Yields a row for each phase; bytes are of a chip."""
    unit = GIB / found.topology.accelerator.devices_per_chip
    hours, dollars = found.hours, found.dollars(prices, spot=False)
    total = (
        "" if hours is None else f"{hours:,.1f}",
        "" if dollars is None else f"${dollars:,.0f}",
    )
    for at, phase in enumerate(found.phases):
        head = (name, f"`{name_of(found)}`, {found.chips}") if at == 0 else ("", "")
        size = f"{phase.steps:,} × {phase.batch_size:,} × {phase.seq_length}"
        step = phase.train
        if step.memory is None or step.cycles is None:
            yield (*head, size, "no", "", "", f"{(step.needed_bytes or 0) / unit:.1f}")
            continue
        estimate, memory = found.estimate(step), step.memory
        yield (
            *(*head, size, "yes", f"{(memory.parameters + memory.optimizer) / unit:.2f}"),
            *(f"{memory.temporaries / unit:.1f}", f"{memory.peak / unit:.1f}"),
            *(f"{step.cycles.total / 1e6:,.1f}", f"{estimate.seconds * 1e3:,.1f} ms"),
            *(estimate.bound, f"{estimate.mfu:.1%}", *(total if at == 0 else ("", ""))),
        )


def row(cells: Iterable[str]) -> str:
    """Returns a line of Markdown."""
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
