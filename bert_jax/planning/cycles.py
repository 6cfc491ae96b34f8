"""Cycles of one core, by kind of operation and by line of our source.

The compiler writes its own estimate, `estimated_cycles`, beside every operation that it schedules.
It counts a loop's body once, so each is multiplied by the trips of all loops around it. An
operation without an estimate (random bits, gathers, sorts) is charged the time that its arrays take
through HBM, and summed apart.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Final

from bert_jax.planning.execution import Executed, Program, opcodes_inside
from bert_jax.planning.hlo import HloModule

# The first that a fusion holds names its kind.
_KINDS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("matrix products", ("convolution", "dot")),
    ("random bits", ("rng-bit-generator", "rng")),
    ("gathers and scatters", ("gather", "scatter", "sort")),
    ("collectives", ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")),
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
        *("slice-start", "slice-done", "add-dependency"),
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
# A Pallas kernel; other custom calls are the compiler's own and move no data.
_KERNEL_TARGET: Final = 'custom_call_target="tpu_custom_call"'


@dataclasses.dataclass(frozen=True)
class Cycles:
    """Cycles of one run of a program on one device.

    Attributes:
        scheduled: the compiler's own, times trips.
        by_bytes: of operations without an estimate, bytes at the HBM's bandwidth.
        by_kind: both, by kind of operation.
        by_line: both, by ``file:line``; what the compiler added by itself is under "".
        uncounted: kernels without any figure, by name, with the times each runs.
        unknown_loops: loops whose trips the program does not say; each counts once.
    """

    scheduled: int
    by_bytes: int
    by_kind: Mapping[str, int]
    by_line: Mapping[str, int]
    uncounted: Mapping[str, int]
    unknown_loops: tuple[str, ...]

    @property
    def total(self) -> int:
        """All that are counted."""
        return self.scheduled + self.by_bytes


def count_cycles(program: Program, *, bytes_per_cycle: float) -> Cycles:
    """Returns the cycles of a program.

    Args:
        program: compiled.
        bytes_per_cycle: through the HBM of one device.
    """
    scheduled = by_bytes = 0
    by_kind: Counter[str] = Counter()
    by_line: Counter[str] = Counter()
    uncounted: Counter[str] = Counter()
    for found in program.executed:
        if found.trips == 0 or _is_free(found):
            continue
        kind = kind_of(program.module, found)
        own = found.instruction.cycles
        if own is None and kind == KERNEL:
            uncounted[found.instruction.name] += found.trips
            continue
        if own is None:
            cycles = round(_hbm_bytes(found) / bytes_per_cycle) * found.trips
            by_bytes += cycles
        else:
            cycles = own * found.trips
            scheduled += cycles
        by_kind[kind] += cycles
        by_line[program.module.source_line(found.instruction) or ""] += cycles
    return Cycles(
        scheduled=scheduled,
        by_bytes=by_bytes,
        by_kind=dict(by_kind.most_common()),
        by_line=dict(by_line.most_common()),
        uncounted=dict(uncounted),
        unknown_loops=program.unknown_loops,
    )


def kind_of(module: HloModule, found: Executed) -> str:
    """Returns the kind of an operation; of a fusion, that of its heaviest part."""
    inside = opcodes_inside(module, found.instruction)
    if _KERNEL_TARGET in found.instruction.attributes:
        return KERNEL
    return next((kind for kind, opcodes in _KINDS if inside.keys() & set(opcodes)), OTHER)


def _is_free(found: Executed) -> bool:
    instruction = found.instruction
    if instruction.opcode == "custom-call":
        return _KERNEL_TARGET not in instruction.attributes
    # Collectives are timed by their bytes over the network, see collectives.py.
    return instruction.opcode in _FREE or instruction.opcode.startswith(_COLLECTIVES)


def _hbm_bytes(found: Executed) -> int:
    """Returns the bytes of operands and results that lie in HBM and not on the chip."""
    arrays = list(found.instruction.arrays)
    for name in found.instruction.operands:
        if name in found.computation:
            arrays += found.computation[name].arrays
    return sum(array.bytes for array in arrays if array.in_hbm)
