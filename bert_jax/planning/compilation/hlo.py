"""Optimized HLO text → computations and instructions.

The text is what `jax.stages.Compiled.as_text` prints of a scheduled TPU program: within a
computation the instructions stand in the order in which the core runs them.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from typing import Final

# Bits of one element. Types that are left out (token, opaque) hold nothing.
_BITS: Final[dict[str, int]] = {
    **{"pred": 8, "s4": 4, "u4": 4, "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32},
    **{"s64": 64, "u64": 64, "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128},
    **{"f8e4m3fn": 8, "f8e5m2": 8, "f8e4m3": 8, "s2": 2, "u2": 2},
}
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_NAME = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = ")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(
    r"\b(calls|body|condition|to_apply|true_computation|false_computation)=%([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
# Memory spaces: 0 (unwritten) is HBM; 1 is VMEM on the chip.
_ON_CHIP = re.compile(r"S\(\d+\)")


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of a shape: ``bf16[16,128]{1,0:T(8,128)(2,1)S(1)}``."""

    dtype: str
    sizes: tuple[int, ...]
    in_hbm: bool

    @property
    def elements(self) -> int:
        """Of all axes."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Without the padding of tiles."""
        return self.elements * _BITS.get(self.dtype, 0) // 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instruction:
    """One line of a computation."""

    name: str  # unique in the module
    opcode: str  # `fusion`, `all-reduce` …
    shape: str  # of the result, as text
    operands: tuple[str, ...]  # names of instructions of the same computation
    literal: str  # of a constant or parameter, what its parentheses hold
    attributes: str  # the rest of the line
    is_root: bool  # whether it is the computation's result

    @functools.cached_property
    def arrays(self) -> tuple[Array, ...]:
        """The arrays of the result: several of a tuple."""
        return parse_shape(self.shape)

    @property
    def cycles(self) -> int | None:
        """The compiler's `estimated_cycles`, for one execution; None where it gives none."""
        found = _CYCLES.search(self.attributes)
        return int(found[1]) if found else None

    @functools.cached_property
    def called(self) -> dict[str, str]:
        """Computations by role: ``{"body": …, "condition": …}``."""
        return {role: name for role, name in _CALLED.findall(self.attributes)}

    @property
    def branches(self) -> tuple[str, ...]:
        """Computations of a conditional."""
        if listed := _BRANCHES.search(self.attributes):
            return tuple(_OPERAND.findall(listed[1]))
        roles = ("true_computation", "false_computation")
        return tuple(self.called[role] for role in roles if role in self.called)


Computation = Mapping[str, Instruction]  # by name, in the order of the schedule


@dataclasses.dataclass(frozen=True, kw_only=True)
class HloModule:
    """A program."""

    computations: Mapping[str, Computation]  # by name
    entry: str  # the name of the one that runs first


def parse_shape(text: str) -> tuple[Array, ...]:
    """Returns the arrays of a shape, those of a tuple in order."""
    return tuple(
        Array(
            dtype,
            tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size),
            _ON_CHIP.search(layout or "") is None,
        )
        for dtype, sizes, layout in _ARRAY.findall(text)
    )


def parse_hlo(text: str) -> HloModule:
    """Returns a module from its text.

    Raises:
        ValueError: the text has no entry computation.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if current is None and (head := _HEAD.match(line)):
            current = computations.setdefault(head[2], {})
            entry = head[2] if head[1] else entry
        elif current is not None and line.startswith("}"):
            current = None
        elif current is not None and (named := _NAME.match(line)):
            instruction = _parse_instruction(line[named.end() :], named[2], bool(named[1]))
            current[instruction.name] = instruction
    if not entry:
        raise ValueError("HLO text without an entry computation")
    return HloModule(computations=computations, entry=entry)


def _parse_instruction(text: str, name: str, is_root: bool) -> Instruction:
    """Parses what follows ``%name = ``: shape, opcode, operands, attributes."""
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    shape, rest = text[:end], text[end:].lstrip()
    opening = rest.index("(")
    closing = _closing(rest, opening)
    inside = rest[opening + 1 : closing]
    return Instruction(
        name=name,
        opcode=rest[:opening],
        shape=shape,
        operands=tuple(_OPERAND.findall(inside)),
        literal=inside if "%" not in inside else "",
        attributes=rest[closing + 1 :],
        is_root=is_root,
    )


def _closing(text: str, opening: int) -> int:
    """Returns where the parenthesis that opens at an index closes."""
    depth = 0
    for match in re.compile(r"[()]").finditer(text, opening):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    raise ValueError(f"unbalanced parentheses in HLO: {text[:80]}")
