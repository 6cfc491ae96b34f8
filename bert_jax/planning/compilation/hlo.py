"""Parses optimized HLO text into computations and instructions.

In the compiler's text of a scheduled TPU program, the instructions of a computation are in the
order of execution.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_BITS = re.compile(r"\d+")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
_NAME = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = ")
_OPERAND = re.compile(r"%([\w.\-]+(?:#\d+)?)")
_CALLED = re.compile(
    r"\b(calls|body|condition|to_apply|true_computation|false_computation)=%([\w.\-]+)"
)
_BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
# For gathers that v6e's SparseCore executes, libtpu 0.0.50 writes 2⁶³ − 1: no estimate.
_CYCLES = re.compile(r'"estimated_cycles":"(\d{1,18})"')
# A memory space in the layout: S(1) is VMEM on the chip. Without S, the array is in HBM.
_ON_CHIP = re.compile(r"S\(\d+\)")
_PARENTHESIS = re.compile(r"[()]")


@dataclasses.dataclass(frozen=True)
class Array:
    """One array of a shape: ``bf16[16,128]{1,0:T(8,128)(2,1)S(1)}``."""

    dtype: str
    sizes: tuple[int, ...]
    in_hbm: bool

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Bytes without padding. An XLA token has 0 bytes."""
        named = _BITS.search(self.dtype)
        bits = 8 if self.dtype == "pred" else int(named[0]) if named else 0
        return self.elements * bits // 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instruction:
    """One instruction of a computation."""

    name: str  # unique in the module
    opcode: str  # `fusion`, `all-reduce` …
    arrays: tuple[Array, ...]  # arrays of the result; several for a tuple
    operands: tuple[str, ...]  # names of instructions in the same computation
    literal: str  # value of a constant, or index of a parameter
    attributes: str  # text after the operands
    is_root: bool  # whether it is the computation's result

    @property
    def cycles(self) -> int | None:
        """The compiler's `estimated_cycles` of one execution, or None."""
        found = _CYCLES.search(self.attributes)
        return int(found[1]) if found else None

    @functools.cached_property
    def called(self) -> dict[str, str]:
        """Names of called computations by role: ``{"body": …, "condition": …}``."""
        return {role: name for role, name in _CALLED.findall(self.attributes)}

    @property
    def branches(self) -> tuple[str, ...]:
        """Names of the computations of a conditional's branches."""
        if listed := _BRANCHES.search(self.attributes):
            return tuple(_OPERAND.findall(listed[1]))
        roles = ("true_computation", "false_computation")
        return tuple(self.called[role] for role in roles if role in self.called)


Computation = Mapping[str, Instruction]  # instructions by name, in the order of execution


@dataclasses.dataclass(frozen=True, kw_only=True)
class HloModule:
    """A program as computations."""

    computations: Mapping[str, Computation]  # computations by name
    entry: str  # name of the entry computation

    def inside(self, instruction: Instruction) -> Computation:
        """Returns the instructions inside a fusion; empty for other instructions."""
        if instruction.opcode != "fusion":
            return {}
        return self.computations[instruction.called["calls"]]

    def parts(
        self, computation: Computation, instruction: Instruction
    ) -> Iterator[tuple[Computation, Instruction]]:
        """Yields (computation, instruction). Replaces a fusion by the instructions inside."""
        if instruction.opcode != "fusion":
            yield computation, instruction
            return
        fused = self.inside(instruction)
        for each in fused.values():
            yield from self.parts(fused, each)


def parse_shape(text: str) -> tuple[Array, ...]:
    """Returns the arrays of a shape; several for a tuple."""
    return tuple(
        Array(
            dtype,
            tuple(int(size.lstrip("<=")) for size in sizes.split(",") if size),
            _ON_CHIP.search(layout) is None,
        )
        for dtype, sizes, layout in _ARRAY.findall(text)
    )


def parse_hlo(text: str) -> HloModule:
    """Returns a module from its text. Raises ValueError if there is no entry computation."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", None
    for line in text.splitlines():
        if current is None and (head := _HEAD.match(line)):
            current = computations.setdefault(head[2], {})
            entry = head[2] if head[1] else entry
        elif current is not None and line.startswith("}"):
            current = None
        elif current is not None and (named := _NAME.match(line)):
            parsed = _parse(line[named.end() :], named[2], is_root=bool(named[1]))
            for operand in parsed.operands:
                if "#" in operand and operand not in current:
                    current[operand] = _element(current, operand)
            current[parsed.name] = parsed
    if not entry:
        raise ValueError("HLO text without an entry computation")
    return HloModule(computations=computations, entry=entry)


def _parse(text: str, name: str, *, is_root: bool) -> Instruction:
    """Parses the text after ``%name = ``: shape, opcode, operands and attributes."""
    end = _closing(text, 0) + 1 if text.startswith("(") else text.index(" ")
    shape, rest = text[:end], text[end:].lstrip()
    opening = rest.index("(")
    closing = _closing(rest, opening)
    inside = rest[opening + 1 : closing]
    return Instruction(
        name=name,
        opcode=rest[:opening],
        arrays=parse_shape(shape),
        operands=tuple(_OPERAND.findall(inside)),
        literal=inside if "%" not in inside else "",
        attributes=rest[closing + 1 :],
        is_root=is_root,
    )


def _element(computation: Computation, name: str) -> Instruction:
    """Returns the instruction that operand ``%fusion.1#2`` stands for.

    libtpu 0.0.50 writes elements of tuples so, instead of as a ``get-tuple-element``.
    """
    of, index = name.split("#")
    return Instruction(
        name=name,
        opcode="get-tuple-element",
        arrays=(computation[of].arrays[int(index)],),  # no nested tuple is written so
        operands=(of,),
        literal="",
        attributes=f", index={index}",
        is_root=False,
    )


def _closing(text: str, opening: int) -> int:
    """Returns the index of the parenthesis that closes the one at `opening`."""
    depth = 0
    for match in _PARENTHESIS.finditer(text, opening):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    raise ValueError(f"unbalanced parentheses in HLO: {text[:80]}")
