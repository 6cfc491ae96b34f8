"""Bundles of the attention kernels, by the compiler's final schedule, beside their busiest unit.

``python -m benchmarks.kernel_schedules [--topology v5e:2x2 …] [--length 512] [--columns 64]``: one
row, as many heads as fill the lanes of a register, dropout 0.1, bfloat16. A bundle is a cycle of
one core. No TPU is needed, only libtpu.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from benchmarks.report import report
from bert_jax.kernels.attention import LANES, fused_attention
from bert_jax.parallel.topology import parse_topology
from bert_jax.planning.compiler import TPU_COMPILER
from bert_jax.planning.cycles import kernels_called
from bert_jax.planning.execution import Program
from bert_jax.planning.hlo import parse_hlo
from bert_jax.planning.kernel_schedule import KernelSchedule, read_schedules, written_to
from bert_jax.planning.optimized_text import optimized_text
from bert_jax.planning.program import open_devices

BATCH = 8


def main() -> None:
    """Prints a line of JSON for each topology, forward and backward."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter, allow_abbrev=False
    )
    default = ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2"]
    parser.add_argument("--topology", nargs="+", default=default)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--columns", type=int, default=64, help="of a head")
    parser.add_argument("--dropout", type=float, default=0.1)
    asked = parser.parse_args()
    os.environ.update(TPU_COMPILER)
    # Libtpu reads its flags once, so every topology has a process of its own.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for name in asked.topology:
            job = pool.submit(schedules, name, asked.length, asked.columns, asked.dropout)
            for kernel, schedule in job.result().items():
                line(asked, name, kernel, schedule)


def schedules(name: str, length: int, columns: int, rate: float) -> dict[str, KernelSchedule]:
    """Returns those of both kernels for `BATCH` rows."""
    topology = parse_topology(name)
    with tempfile.TemporaryDirectory() as folder:
        with written_to(Path(folder)):
            device = SingleDeviceSharding(open_devices(topology, slices=1)[0])

        def of(dtype: Any, *shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, dtype, sharding=device)

        def loss(q: Any, k: Any, v: Any, bias: Any, segments: Any, seeds: Any) -> jax.Array:
            out = fused_attention((q, k, v), bias, segments, seeds, columns=columns, rate=rate)
            return out.astype(jnp.float32).sum()

        x = of(jnp.bfloat16, BATCH, length, LANES)
        rest = (of(jnp.int32, BATCH, length), of(jnp.int32, 2, BATCH, LANES // columns))
        step = jax.jit(jax.grad(loss, (0, 1, 2, 3)))
        compiled = step.lower(x, x, x, of(jnp.float32, 3, LANES), *rest).compile()
        program = Program.of(parse_hlo(optimized_text(compiled, name="jit_loss")))
        return read_schedules(
            Path(folder), kernels_called(program), accelerator=topology.accelerator.name
        )


def line(asked: argparse.Namespace, topology: str, kernel: str, schedule: KernelSchedule) -> None:
    """Prints one kernel's figures, of one row."""
    # A chip's two cores share the grid where they are one device.
    rows = BATCH / (2 if parse_topology(topology).accelerator.megacore else 1)
    slots = {name: round(bundles / rows) for name, bundles in schedule.slots.items()}
    busiest = max(slots, key=lambda name: slots[name])
    report(
        "kernel_schedules.bundles",
        round(schedule.bundles / rows),
        "bundles",
        packages=("jax", "libtpu"),
        topology=topology,
        kernel=kernel.partition(".")[0],
        heads=LANES // asked.columns,
        length=asked.length,
        columns=asked.columns,
        dropout=asked.dropout,
        busiest=busiest,
        ratio=round(schedule.bundles / rows / slots[busiest], 3),
        slots=slots,
    )


if __name__ == "__main__":
    main()
