"""Cycles of one core by kind of operation, and the FLOPs and bytes of a program.

The compiler estimates the cycles of every operation that it schedules and counts a loop's body
once, so each is multiplied by the trips of all loops around it. An operation without an estimate
(random bits, gathers, sorts) takes the time of its arrays through HBM, and is summed apart. Pallas
kernels count by their schedule, see `kernels`.
"""

import dataclasses
from collections import Counter
from collections.abc import Mapping

from bert_jax.parallel.accelerators import Accelerator
from bert_jax.planning.compilation.kernels import KernelSchedule
from bert_jax.planning.compilation.op_cycles import flops_per_cycle
from bert_jax.planning.compilation.program import COLLECTIVES, KERNEL, Operation, Program


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelCycles:
    """A Pallas kernel of a program, all calls of it that take the same."""

    name: str  # as its `pallas_call` says
    calls: int  # of one run of the program
    bundles: int  # of one call: cycles without waiting for memory
    cycles: int  # of one call
    busiest: str  # the unit of the core that has most to do, `MATMUL`, `VALU` …
    busiest_bundles: int  # bundles of that unit alone; no schedule takes fewer
    copied_bytes: int  # of one call, between HBM and the chip


@dataclasses.dataclass(frozen=True)
class Cycles:
    """Cycles, FLOPs and bytes of one run of a program on one device.

    Products are counted one by one, in loops times their trips. Elementwise operations are not in
    the FLOPs, nor in the useful FLOPs.
    """

    by_kind: Mapping[str, int]  # by kind of operation
    by_bytes: int  # of operations without an estimate: bytes at the HBM's bandwidth
    kernels: tuple[KernelCycles, ...]  # those with a schedule, costliest first
    uncounted: Mapping[str, int]  # those without, by name, with the times each runs
    unknown_loops: tuple[str, ...]  # loops whose trips the program does not say; each counts once
    product_flops: int  # of products that XLA compiled
    kernel_flops: int  # as Pallas kernels declare them
    hbm_bytes: int  # read and written

    @property
    def total(self) -> int:
        """Sum of all cycles that are counted."""
        return sum(self.by_kind.values())

    @property
    def in_kernels(self) -> int:
        """Cycles of Pallas kernels, by their schedules."""
        return self.by_kind.get(KERNEL, 0)


def count_cycles(
    program: Program, schedules: Mapping[str, KernelSchedule], accelerator: Accelerator
) -> Cycles:
    """Returns the figures of a program; `schedules`: by the program of each kernel."""
    by_bytes, by_kind = 0, Counter[str]()
    uncounted: Counter[str] = Counter()
    kernels: dict[tuple[str, int, int], KernelCycles] = {}
    loops = list(program.unknown_loops)
    for found in program.operations:
        if found.trips == 0 or not found.on_core or found.kind == COLLECTIVES:
            continue  # collectives in fusions are timed with the others
        own = found.cycles
        if found.kind == KERNEL:
            if (schedule := schedules.get(found.kernel or "")) is None:
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


def _call(found: Operation, schedule: KernelSchedule, accelerator: Accelerator) -> KernelCycles:
    """Returns one call of a kernel.

    It takes the longest of its bundles, of its products at the peak of the matrix units, and of
    operands and results through HBM, each once. Nothing runs beside the first step's fetch and the
    last step's write.
    """
    copies = found.hbm_bytes / accelerator.bytes_per_cycle
    work = max(schedule.bundles, round(found.kernel_flops / flops_per_cycle(accelerator)))
    busiest, most = max(schedule.slots.items(), key=lambda slot: slot[1])
    return KernelCycles(
        name=found.name.partition(".")[0],
        calls=1,
        bundles=schedule.bundles,
        cycles=round(max(work, copies) + min(work, copies) / max(schedule.steps, 1)),
        busiest=busiest,
        busiest_bundles=most,
        copied_bytes=found.hbm_bytes,
    )
