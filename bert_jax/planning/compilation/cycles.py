"""Cycles of one core, by kind of operation.

The compiler writes its own estimate, `estimated_cycles`, beside every operation that it schedules.
It counts a loop's body once, so each is multiplied by the trips of all loops around it. An
operation without an estimate (random bits, gathers, sorts) is charged the time that its arrays take
through HBM, and summed apart. Pallas kernels count by their schedule, see `kernel_schedule`.
"""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping
from typing import Final

from bert_jax.planning.compilation.execution import Executed, Program, opcodes_inside
from bert_jax.planning.compilation.hlo import HloModule, Instruction
from bert_jax.planning.compilation.kernel_schedule import KernelSchedule

COLLECTIVES: Final = "collectives"
# The first that a fusion holds names its kind.
_KINDS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("matrix products", ("convolution", "dot")),
    ("random bits", ("rng-bit-generator", "rng")),
    ("gathers and scatters", ("gather", "scatter", "sort")),
    (COLLECTIVES, ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")),
    ("reductions", ("reduce", "reduce-window")),
    # What a scanned layer reads and writes of the arrays that hold all layers.
    ("slices of stacked arrays", ("dynamic-slice", "dynamic-update-slice")),
    ("copies", ("copy", "transpose", "slice", "pad", "concatenate")),
)
OTHER: Final = "elementwise"
KERNEL: Final = "custom kernels"

# Nothing to execute, or executed by someone else than the core (copies by DMA beside its work).
_FREE: Final = frozenset(
    (
        *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional"),
        *("call", "after-all", "partition-id", "replica-id", "opt-barrier", "iota"),
        *("async-start", "async-update", "async-done", "copy-start", "copy-done"),
        *("slice", "slice-start", "slice-done", "add-dependency"),
    )
)
_COLLECTIVES: Final = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "send",
    "recv",
)
_KERNEL_TARGET: Final = 'custom_call_target="tpu_custom_call"'
_KERNEL_BODY: Final = re.compile(r'"body":"([^"]*)"')


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelCycles:
    """A Pallas kernel of a program, all calls of it that take the same."""

    name: str  # as its `pallas_call` says
    calls: int  # of one run of the program
    bundles: int  # of one call: cycles without waiting for memory
    cycles: int  # of one call
    busiest: str  # the unit of the core that has most to do, `MATMUL`, `VALU` …
    busiest_bundles: int  # that it alone would need; no schedule takes fewer
    slots: Mapping[str, int]  # the same for every unit
    copied_bytes: int  # of one call, between HBM and the chip


@dataclasses.dataclass(frozen=True)
class Cycles:
    """Cycles of one run of a program on one device."""

    scheduled: int  # the compiler's own, times trips
    by_bytes: int  # of operations without an estimate, bytes at the HBM's bandwidth
    in_kernels: int  # of Pallas kernels, by their schedules
    by_kind: Mapping[str, int]  # all three, by kind of operation
    kernels: tuple[KernelCycles, ...]  # those with a schedule, costliest first
    uncounted: Mapping[str, int]  # those without, by name, with the times each runs
    unknown_loops: tuple[str, ...]  # loops whose trips the program does not say; each counts once

    @property
    def total(self) -> int:
        """All that are counted."""
        return self.scheduled + self.by_bytes + self.in_kernels


def count_cycles(
    program: Program, *, bytes_per_cycle: float, schedules: Mapping[str, KernelSchedule]
) -> Cycles:
    """Returns the cycles of a program.

    `bytes_per_cycle`: through the HBM of one device; `schedules`: by the name of their instruction.
    """
    by_source: Counter[str] = Counter()
    by_kind: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for found in program.executed:
        if found.trips == 0 or not runs_on_core(found):
            continue
        name, own = found.instruction.name, found.instruction.cycles
        kind = kind_of(program.module, found)
        if kind == COLLECTIVES:  # in a fusion: timed with the others
            continue
        source = "scheduled"
        if kind == KERNEL:
            calls[name] += found.trips
            if name not in schedules:
                continue
            source, own = "kernels", schedules[name].cycles(bytes_per_cycle=bytes_per_cycle)
        elif own is None:
            source, own = "bytes", round(hbm_bytes(found) / bytes_per_cycle)
        by_source[source] += own * found.trips
        by_kind[kind] += own * found.trips
    loops = [f"a loop inside {name}" for name in calls if _has_unknown_loop(schedules.get(name))]
    return Cycles(
        scheduled=by_source["scheduled"],
        by_bytes=by_source["bytes"],
        in_kernels=by_source["kernels"],
        by_kind=dict(by_kind.most_common()),
        kernels=_kernels(calls, schedules, bytes_per_cycle=bytes_per_cycle),
        uncounted={name: count for name, count in calls.items() if name not in schedules},
        unknown_loops=(*program.unknown_loops, *loops),
    )


def kernels_called(program: Program) -> dict[str, str]:
    """Returns the program of each Pallas kernel, by the name of the instruction that calls it."""
    instructions = (found.instruction for found in program.executed)
    calls = filter(is_kernel, instructions)
    bodies = ((each.name, _KERNEL_BODY.search(each.attributes)) for each in calls)
    return {name: body[1] if body else name for name, body in bodies}


def _has_unknown_loop(schedule: KernelSchedule | None) -> bool:
    return schedule is not None and schedule.unknown_loops > 0


def _kernels(
    calls: Mapping[str, int], schedules: Mapping[str, KernelSchedule], *, bytes_per_cycle: float
) -> tuple[KernelCycles, ...]:
    """Returns kernels, calls of one name and one schedule added up: those of unrolled layers."""
    found: dict[tuple[str, int, int], KernelCycles] = {}
    for name, count in calls.items():
        if (schedule := schedules.get(name)) is None:
            continue
        busiest, most = max(schedule.slots.items(), key=lambda slot: slot[1])
        one = KernelCycles(
            name=name.partition(".")[0],
            calls=count,
            bundles=schedule.bundles,
            cycles=schedule.cycles(bytes_per_cycle=bytes_per_cycle),
            busiest=busiest,
            busiest_bundles=most,
            slots=schedule.slots,
            copied_bytes=schedule.copied_bytes,
        )
        key = (one.name, one.bundles, one.cycles)
        before = found[key].calls if key in found else 0
        found[key] = dataclasses.replace(one, calls=before + count)
    return tuple(sorted(found.values(), key=lambda one: -one.cycles * one.calls))


def kind_of(module: HloModule, found: Executed) -> str:
    """Returns the kind of an operation; of a fusion, that of its heaviest part."""
    inside = opcodes_inside(module, found.instruction)
    if is_kernel(found.instruction):
        return KERNEL
    return next((kind for kind, opcodes in _KINDS if inside.keys() & set(opcodes)), OTHER)


def is_kernel(instruction: Instruction) -> bool:
    """Whether it calls a Pallas kernel; other custom calls are the compiler's own."""
    return _KERNEL_TARGET in instruction.attributes


def runs_on_core(found: Executed) -> bool:
    """Whether an instruction takes time of the core."""
    instruction = found.instruction
    if instruction.opcode == "custom-call":
        return is_kernel(instruction)
    # Collectives are timed by their bytes over the network, see collectives.py.
    return not (instruction.opcode in _FREE or instruction.opcode.startswith(_COLLECTIVES))


def hbm_bytes(found: Executed) -> int:
    """Returns the bytes of operands and results that lie in HBM and not on the chip."""
    arrays = list(found.instruction.arrays)
    for name in found.instruction.operands:
        if name in found.computation:
            arrays += found.computation[name].arrays
    return sum(array.bytes for array in arrays if array.in_hbm)
