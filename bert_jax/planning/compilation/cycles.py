"""Counts the cycles of one core by kind of operation, and the FLOPs and bytes of a program.

The compiler estimates the cycles of one execution of each scheduled operation. The estimate is
multiplied by the trips of all enclosing loops. For operations without an estimate (random bits,
gathers, sorts), the cycles are their bytes divided by the HBM bandwidth, and `by_bytes` is the sum
of these cycles. The cycles of Pallas kernels come from their schedules, see `kernels`. Where the
compiler's estimates mislead, the cycles of all operations do, see `by_schedule`.
"""

import dataclasses
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import Final

from bert_jax.parallel.accelerators import Accelerator
from bert_jax.planning.compilation.kernels import Schedule
from bert_jax.planning.compilation.op_cycles import flops_per_cycle
from bert_jax.planning.compilation.program import (
    COLLECTIVES,
    KERNEL,
    Estimate,
    Operation,
    Program,
    compilers_own,
)

# Names of the matrix units in schedules. libtpu 0.0.51 lists products and weights apart.
MATRIX_UNITS: Final = ("MXU", "MATMUL", "MATPUSH")


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelCycles:
    """All calls of a Pallas kernel with equal bundles and cycles."""

    name: str  # name in the `pallas_call`
    calls: int  # number of calls in one run of the program
    bundles: int  # bundles of one call: cycles without waits for memory
    cycles: int  # cycles of one call
    busiest: str  # the core's busiest unit: `MXU`, `VALU`, …
    busiest_bundles: int  # bundles that this unit alone needs, a lower bound for any schedule
    copied_bytes: int  # bytes that one call copies between HBM and the chip


@dataclasses.dataclass(frozen=True)
class Cycles:
    """Cycles, FLOPs and bytes of one run of a program on one device.

    The FLOPs count all executed matrix products, and no elementwise operations.
    """

    by_kind: Mapping[str, int]  # cycles by kind of operation
    by_bytes: int  # cycles of operations without an estimate: bytes over the HBM bandwidth
    kernels: tuple[KernelCycles, ...]  # kernels with a schedule, slowest first
    uncounted: Mapping[str, int]  # number of executions of each kernel without a schedule
    unknown_loops: tuple[str, ...]  # loops with unknown trips, which count as one trip
    product_flops: int  # FLOPs of products that XLA compiled
    kernel_flops: int  # FLOPs that Pallas kernels declare
    hbm_bytes: int  # bytes read from and written to HBM
    # `by_kind` in the other reading, if code was generated. If `by_kind` has the compiler's
    # estimates, these cycles are by schedule, and vice versa.
    other_reading: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def total(self) -> int:
        """Sum of all counted cycles."""
        return sum(self.by_kind.values())

    @property
    def in_kernels(self) -> int:
        """Cycles of Pallas kernels with a schedule."""
        return self.by_kind.get(KERNEL, 0)


def by_schedule(schedules: Mapping[Hashable, Schedule], accelerator: Accelerator) -> Estimate:
    """Returns a function that reads an operation's cycles from its schedule.

    The cycles are the largest of the bundles, the bytes over the HBM bandwidth, and the time of the
    matrix units. Operations with loops of unknown length keep the compiler's estimate.
    """

    def cycles(operation: Operation) -> int | None:
        found = schedules.get(operation.code)
        if found is None or found.unknown_loops:
            return compilers_own(operation)
        memory = operation.hbm_bytes / accelerator.bytes_per_cycle
        products = operation.product_flops / flops_per_cycle(accelerator)
        return round(max(found.bundles, memory, products))

    return cycles


def count_cycles(
    program: Program, schedules: Mapping[Hashable, Schedule], accelerator: Accelerator
) -> Cycles:
    """Returns the cycles of a program. `schedules` has the schedules by the operations' code."""
    by_bytes, by_kind = 0, Counter[str]()
    uncounted: Counter[str] = Counter()
    kernels: dict[tuple[str, int, int], KernelCycles] = {}
    loops = list(program.unknown_loops)
    for found in program.operations:
        if found.trips == 0 or not found.on_core or found.kind == COLLECTIVES:
            continue  # `collectives` estimates the time of collectives, also inside fusions
        own = found.cycles
        if found.kind == KERNEL:
            if (schedule := schedules.get(found.code)) is None:
                uncounted[found.name] += found.trips
                continue
            call = _call(found, schedule, accelerator)
            key = call.name, call.bundles, call.cycles
            before = kernels[key].calls if key in kernels else 0
            kernels[key] = dataclasses.replace(call, calls=before + found.trips)
            loops += [f"a loop inside {found.name}"] if schedule.unknown_loops else []
            own = call.cycles
        elif own is None:
            own = round(found.hbm_bytes / accelerator.bytes_per_cycle)
            by_bytes += own * found.trips
        by_kind[found.kind] += own * found.trips
    return Cycles(
        by_kind=dict(by_kind.most_common()),
        by_bytes=by_bytes,
        kernels=tuple(sorted(kernels.values(), key=lambda one: -one.cycles * one.calls)),
        uncounted=dict(uncounted),
        unknown_loops=tuple(loops),
        product_flops=sum(each.trips * each.product_flops for each in program.operations),
        kernel_flops=sum(each.trips * each.kernel_flops for each in program.operations),
        hbm_bytes=sum(each.trips * each.moved_bytes for each in program.operations),
    )


def _call(found: Operation, schedule: Schedule, accelerator: Accelerator) -> KernelCycles:
    """Returns the cycles of one call of a kernel.

    Work is the larger of its bundles and its products at the peak of the matrix units. Copies move
    each operand and result once between HBM and the chip. Work and copies overlap, except for one
    step of the grid, because nothing runs during the first fetch and the last write.
    """
    copies = found.moved_bytes / accelerator.bytes_per_cycle
    work = max(schedule.bundles, round(found.kernel_flops / flops_per_cycle(accelerator)))
    busiest, most = max(schedule.slots.items(), key=lambda slot: slot[1])
    return KernelCycles(
        name=found.name.partition(".")[0],
        calls=1,
        bundles=schedule.bundles,
        cycles=round(max(work, copies) + min(work, copies) / max(schedule.steps, 1)),
        busiest=busiest,
        busiest_bundles=most,
        copied_bytes=found.moved_bytes,
    )
