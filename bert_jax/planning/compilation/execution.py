"""What runs how often: the instructions of a module with the trips of all loops around them."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from bert_jax.planning.compilation.hlo import Computation, HloModule, Instruction
from bert_jax.planning.compilation.trips import trip_count


@dataclasses.dataclass(frozen=True)
class Executed:
    """An instruction and how often one run of the program executes it.

    It is of a computation that runs as such: an entry, a loop's body or condition, a branch, call.
    What is inside a fusion is part of the fusion.
    """

    instruction: Instruction
    computation: Computation  # it is in
    trips: int  # the product over all enclosing loops


@dataclasses.dataclass(frozen=True)
class Program:
    """A module unrolled in thought."""

    module: HloModule  # as parsed
    executed: tuple[Executed, ...]  # those of a loop's body where the loop stands
    unknown_loops: tuple[str, ...]  # whose trips the text does not say; they count once

    @classmethod
    def of(cls, module: HloModule) -> Self:
        """Returns the program that a module is."""
        unknown: list[str] = []
        entry = module.computations[module.entry]
        return cls(module, tuple(_walk(module, entry, 1, unknown)), tuple(unknown))


def _walk(
    module: HloModule, computation: Computation, trips: int, unknown: list[str]
) -> Iterator[Executed]:
    for instruction in computation.values():
        yield Executed(instruction, computation, trips)
        if instruction.opcode == "while":
            count = trip_count(module, computation, instruction)
            if count is None:
                unknown.append(instruction.name)
            inside = trips * (1 if count is None else count)
            for role in ("body", "condition"):
                called = module.computations[instruction.called[role]]
                yield from _walk(module, called, inside, unknown)
        elif instruction.opcode == "conditional":
            # One branch runs; which, only the data can tell. The costliest is what to plan for.
            branches = [
                list(_walk(module, module.computations[name], trips, unknown))
                for name in instruction.branches
            ]
            yield from max(branches, key=_cycles, default=[])
        elif instruction.opcode in ("call", "async-start"):
            role = "to_apply" if instruction.opcode == "call" else "calls"
            if called := instruction.called.get(role) or instruction.called.get("calls"):
                yield from _walk(module, module.computations[called], trips, unknown)


def _cycles(branch: Sequence[Executed]) -> int:
    return sum((found.instruction.cycles or 0) * found.trips for found in branch)


def opcodes_inside(module: HloModule, instruction: Instruction) -> Mapping[str, Instruction]:
    """Returns the instructions inside a fusion, one for each opcode; of another, itself."""
    inside = {instruction.opcode: instruction}
    if instruction.opcode == "fusion":
        fused = module.computations[instruction.called["calls"]]
        for found in fused.values():
            inside |= opcodes_inside(module, found)
    return inside
