"""Counts the bundles of our kernels in the compiler's final schedule, and names the busiest unit.

    python -m benchmarks.kernel_schedules [--topology v5e:2x2 …] [--length 512] [--columns 64]

A bundle is one cycle of one core. The kernels, all in bfloat16:

- attention of one row with dropout 0.1 and enough heads to fill a register's lanes: once for all
  tokens, once for the tokens whose outputs pretraining reads;
- add-and-norm and GELU's gradient for one row of ``--hidden 768``;
- the loss for ``--predictions 1232 --pieces 30592``.

``--encoder deberta``: attention whose scores depend on distances; not on v4.
``--encoder modernbert``: global and local attention, LayerNorm with a residual sum, and the
gradients of GeGLU, for ``--inner 1152``.

It needs libtpu but no TPU.
"""

import argparse
import functools
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeAlias

import jax

from benchmarks.kernels_alone import (
    lower_attention,
    lower_cross_entropy,
    lower_geglu_gradients,
    lower_gelu_product,
    lower_norm,
    lower_pre_norm,
    lower_rotary_attention,
)
from benchmarks.report import report
from bert_jax.kernels.pallas_call import LANES
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compilation.kernels import (
    Schedule,
    kernels_of,
    schedules_alone,
    write_schedules,
)
from bert_jax.planning.compilation.lowering import open_devices
from bert_jax.planning.compiler import TPU_COMPILER

ROWS = 64  # enough to make the first and last step of a grid negligible


def main() -> None:
    """Prints a JSON line for each topology and kernel."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    default = ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2"]
    parser.add_argument("--topology", nargs="+", default=default)
    parser.add_argument("--encoder", choices=("bert", "deberta", "modernbert"), default="bert")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--columns", type=int, default=64, help="columns of a head")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--predictions", type=int, default=1232, help="predictions per device")
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--inner", type=int, default=1152, help="FFN width of ModernBERT")
    parser.add_argument("--pieces", type=int, default=30_592, help="size of the padded vocabulary")
    asked = parser.parse_args()
    os.environ.update(TPU_COMPILER)
    # libtpu reads its flags once per process, so every topology needs its own process.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for name in asked.topology:
            row = {"length": asked.length, "hidden": asked.hidden}
            heads = {"heads": LANES // asked.columns, "columns": asked.columns}
            if asked.encoder != "modernbert":
                wanted = of_layer(**row, **heads, dropout=asked.dropout)
                if asked.encoder == "deberta":
                    lower, facts = wanted[0]
                    by_distance: Any = functools.partial(lower, **{"distances": True})
                    wanted = [(by_distance, facts)]
            else:
                wanted = of_modernbert(**row, **heads, inner=asked.inner)
            # Sums over rows by distance stay on one core.
            per = ROWS if asked.encoder == "deberta" else rows_of(name)
            for lower, facts in wanted:
                for kernel, schedule in pool.submit(alone, name, lower).result().items():
                    say(name, kernel, schedule, per=per, **facts)
            if asked.encoder != "bert":
                continue
            sizes = {"hidden": asked.hidden, "pieces": asked.pieces}
            lower = functools.partial(
                lower_cross_entropy, rows=asked.predictions, dtype="bfloat16", **sizes
            )
            for kernel, schedule in pool.submit(alone, name, lower).result().items():
                say(name, kernel, schedule, per=1, predictions=asked.predictions, **sizes)


Lower: TypeAlias = Callable[[], jax.stages.Lowered]


def of_layer(
    *, length: int, hidden: int, dropout: float, heads: int, columns: int
) -> list[tuple[Lower, dict[str, Any]]]:
    """Returns functions that lower a layer's kernels for `ROWS` rows, and facts about each."""
    row = {"length": length, "dropout": dropout}
    attention = functools.partial(
        lower_attention,
        batch=ROWS,
        length=length,
        heads=heads,
        columns=columns,
        rate=dropout,
        dtype="bfloat16",
    )
    queries = round(0.15 * length) + 1  # masked pieces, and [CLS]
    narrow = {"width": hidden, "dtype": "bfloat16"}
    around_norm = functools.partial(lower_norm, batch=ROWS, length=length, rate=dropout, **narrow)
    of_gelu = functools.partial(lower_gelu_product, rows=ROWS * length, inner=4 * hidden, **narrow)
    wide = row | {"hidden": hidden}
    return [
        (attention, row | {"heads": heads, "columns": columns}),
        (
            functools.partial(attention, queries=queries),
            row | {"heads": heads, "columns": columns, "queries": queries},
        ),
        (around_norm, wide),
        (of_gelu, wide),
    ]


def of_modernbert(
    *, length: int, hidden: int, heads: int, columns: int, inner: int
) -> list[tuple[Lower, dict[str, Any]]]:
    """Returns the same for the kernels of ModernBERT."""
    narrow = {"width": hidden, "dtype": "bfloat16"}
    attention = functools.partial(
        lower_rotary_attention,
        batch=ROWS,
        length=length,
        heads=heads,
        columns=columns,
        dtype="bfloat16",
    )
    facts = {"length": length, "heads": heads, "columns": columns}
    wide = {"length": length, "hidden": hidden}
    of_norm = functools.partial(lower_pre_norm, batch=ROWS, length=length, **narrow)
    of_geglu = functools.partial(lower_geglu_gradients, rows=ROWS * length, inner=inner, **narrow)
    return [
        *(
            (functools.partial(attention, window=window), facts | {"window": window})
            for window in (None, 128)
        ),
        (of_norm, wide),
        (of_geglu, wide | {"inner": inner}),
    ]


def alone(name: str, lower: Lower) -> dict[str, Schedule]:
    """Returns the schedules, by name, of kernels that are lowered without a surrounding program."""
    topology = parse_topology(name)
    with tempfile.TemporaryDirectory() as folder:
        write_schedules(Path(folder))
        mesh = make_mesh(MeshSection(), open_devices(topology, slices=1)[:1])
        with jax.set_mesh(mesh):
            lowered = lower()
        found = kernels_of(lowered.as_text())
        schedules = schedules_alone(
            lowered, mesh, accelerator=topology.accelerator, written=Path(folder)
        )
    return {each.name: schedules[each.body] for each in found}


def rows_of(topology: str) -> float:
    """Returns the rows per core. If two cores form one device, they share the grid."""
    return ROWS / (2 if parse_topology(topology).accelerator.megacore else 1)


def say(topology: str, kernel: str, schedule: Schedule, *, per: float, **facts: Any) -> None:
    """Prints the metrics of one kernel, divided by `per`."""
    slots = {name: round(bundles / per) for name, bundles in schedule.slots.items()}
    busiest = max(slots, key=lambda name: slots[name])
    report(
        "kernel_schedules.bundles",
        round(schedule.bundles / per),
        "bundles",
        packages=("jax", "libtpu"),
        topology=topology,
        kernel=kernel,
        **facts,
        busiest=busiest,
        ratio=round(schedule.bundles / per / slots[busiest], 3),
        slots=slots,
    )


if __name__ == "__main__":
    main()
