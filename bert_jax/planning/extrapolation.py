"""A step of many unrolled layers, from the same step with one and with two.

Layers of one kind cost the same each, so every figure of the compiler is that of the shallower
program and the difference for each layer more: seconds of compiling where the whole takes minutes.
What the compiler does for deep programs alone is not in it; docs/planning.md says how far that is.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Final, TypeVar

import numpy as np

from bert_jax.planning.collectives import Collective
from bert_jax.planning.compiled_step import CompiledStep, Memory
from bert_jax.planning.cycles import Cycles, KernelCycles
from bert_jax.planning.work import Work

COMPILED_DEPTHS: Final = (1, 2)

Key = TypeVar("Key", bound=Hashable)
Figures = TypeVar("Figures", Memory, Work)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Depths:
    """How a figure grows: that of the shallower program and `more` differences."""

    more: int

    @classmethod
    def to(cls, layers: int) -> Depths:
        """Returns what leads to so many layers."""
        shallow, deep = COMPILED_DEPTHS
        return cls(more=(layers - shallow) // (deep - shallow))

    def number(self, shallow: int, deep: int) -> int:
        """Returns a figure of the whole."""
        return shallow + self.more * (deep - shallow)

    def numbers(self, shallow: Mapping[Key, int], deep: Mapping[Key, int]) -> dict[Key, int]:
        """Returns a table of the whole, largest first."""
        found = {
            key: self.number(shallow.get(key, 0), deep.get(key, 0)) for key in {**deep, **shallow}
        }
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def extrapolated(
    shallow: CompiledStep, deep: CompiledStep, *, layers: int, hbm_bytes: int, clock_hz: float
) -> CompiledStep:
    """Returns the step with all its layers.

    Args:
        shallow: with the first of `COMPILED_DEPTHS`.
        deep: with the second; it may be one that does not fit, and then the whole does not.
        layers: of the whole.
        hbm_bytes: of a device, which the whole must not exceed.
        clock_hz: of the chip.
    """
    depths = Depths.to(layers)
    flops = shallow.useful_flops + depths.more * (deep.useful_flops - shallow.useful_flops)
    whole = dataclasses.replace(
        deep,
        useful_flops=flops,
        compile_seconds=shallow.compile_seconds + deep.compile_seconds,
        extrapolated=True,
    )
    if shallow.memory is None or shallow.cycles is None or deep.memory is None or not deep.cycles:
        return whole
    memory = _each(depths, shallow.memory, deep.memory)
    if memory.peak > hbm_bytes:
        return dataclasses.replace(
            whole,
            memory=None,
            cycles=None,
            work=None,
            collectives=(),
            needed_bytes=memory.peak,
            available_bytes=hbm_bytes,
        )
    return dataclasses.replace(
        whole,
        memory=memory,
        cycles=_cycles(depths, shallow.cycles, deep.cycles),
        work=_each(depths, shallow.work, deep.work) if shallow.work and deep.work else None,
        collectives=_collectives(depths, shallow, deep, clock_hz=clock_hz),
    )


def _each(depths: Depths, shallow: Figures, deep: Figures) -> Figures:
    """Returns a record of numbers with each of them of the whole."""
    names = [field.name for field in dataclasses.fields(shallow)]
    return type(shallow)(
        **{name: depths.number(getattr(shallow, name), getattr(deep, name)) for name in names}
    )


def _cycles(depths: Depths, shallow: Cycles, deep: Cycles) -> Cycles:
    def calls(of: Cycles) -> dict[tuple[str, int], int]:
        return {(one.name, one.cycles): one.calls for one in of.kernels}

    counts = depths.numbers(calls(shallow), calls(deep))
    kernels: dict[tuple[str, int], KernelCycles] = {
        (one.name, one.cycles): one for one in (*shallow.kernels, *deep.kernels)
    }
    lines = depths.numbers(shallow.by_line, deep.by_line)
    return Cycles(
        scheduled=depths.number(shallow.scheduled, deep.scheduled),
        by_bytes=depths.number(shallow.by_bytes, deep.by_bytes),
        in_kernels=depths.number(shallow.in_kernels, deep.in_kernels),
        by_kind=depths.numbers(shallow.by_kind, deep.by_kind),
        by_line={line: count for line, count in lines.items() if count > 0},
        kernels=tuple(dataclasses.replace(kernels[key], calls=n) for key, n in counts.items()),
        uncounted=depths.numbers(_together(shallow.uncounted), _together(deep.uncounted)),
        unknown_loops=tuple(sorted({*shallow.unknown_loops, *deep.unknown_loops})),
    )


def _together(counts: Mapping[str, int]) -> dict[str, int]:
    """Returns counts of calls by the name of the kernel, not of the instruction."""
    found: Counter[str] = Counter()
    for name, count in counts.items():
        found[name.partition(".")[0]] += count
    return dict(found)


def _collectives(
    depths: Depths, shallow: CompiledStep, deep: CompiledStep, *, clock_hz: float
) -> tuple[Collective, ...]:
    """Returns one collective for all of a kind: as many, as many bytes, as much time exposed."""
    before = _sums(shallow.collectives, clock_hz)
    after = _sums(deep.collectives, clock_hz)
    found = []
    for key, (example, sums) in {**before, **after}.items():
        nothing = (example, np.zeros_like(sums))
        few, many = before.get(key, nothing)[1], after.get(key, nothing)[1]
        trips, size, alone, exposed = np.maximum(few + depths.more * (many - few), 0.0).tolist()
        if trips:
            hidden = (alone - exposed) / trips * clock_hz if example.overlaps else 0
            found.append(
                dataclasses.replace(
                    example,
                    trips=round(trips),
                    bytes=round(size / trips),
                    seconds=alone / trips,
                    hidden_cycles=round(hidden),
                )
            )
    return tuple(found)


def _sums(
    collectives: Sequence[Collective], clock_hz: float
) -> dict[Hashable, tuple[Collective, np.ndarray]]:
    """Returns one of each kind, and trips, bytes, seconds alone and exposed of all of it."""
    found: dict[Hashable, tuple[Collective, np.ndarray]] = {}
    for one in collectives:
        key = (one.kind, one.dtypes, one.axes, one.group, one.link, one.overlaps)
        sums = np.array([1.0, one.bytes, one.seconds, one.exposed_seconds(clock_hz) / one.trips])
        before = found[key][1] if key in found else 0.0
        found[key] = (one, before + sums * one.trips)
    return found
