"""How often a loop's body runs, from its condition, its first value and its step."""

import math
import re
from collections.abc import Iterator
from typing import Final

from bert_jax.planning.compilation.hlo import Computation, HloModule, Instruction

_KNOWN = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_INDEX = re.compile(r"\bindex=(\d+)")
_DIRECTION = re.compile(r"\bdirection=(\w+)")
_FLIPPED: Final = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}
_TRANSPARENT: Final = ("copy", "bitcast", "convert", "copy-done", "copy-start", "reshape")


def trip_count(module: HloModule, caller: Computation, loop: Instruction) -> int | None:
    """Returns how often the body of a `while` runs; None where the text does not say.

    A counter goes from its first value in steps up (or down) to a constant: the loops of
    `jax.lax.scan`, and the windowed products that the compiler makes, which count in twos.
    """
    if known := _KNOWN.search(loop.attributes):
        return int(known[1])
    condition = module.computations[loop.called["condition"]]
    body = module.computations[loop.called["body"]]
    initial = caller[loop.operands[0]]
    for counter, bound, direction in _comparisons(module, condition):
        limit = _constant(condition, bound)
        if limit is None and (index := _element(condition, bound)) is not None:
            limit = _initial(caller, initial, index)  # it travels through the loop unchanged
        index = _element(condition, counter)
        if index is None or limit is None:
            continue
        first, step = _initial(caller, initial, index), _step(body, index)
        if first is not None and step:
            return _count(limit - first, step, direction)
    return None


def _count(distance: int, step: int, direction: str) -> int:
    if direction in ("LE", "GE"):
        distance += 1 if step > 0 else -1
    return max(math.ceil(distance / step), 0)


def _comparisons(module: HloModule, condition: Computation) -> Iterator[tuple[str, str, str]]:
    """Yields counter, bound and direction, for either operand as the counter."""
    root = _root(condition)
    operands = root.operands
    if root.opcode == "fusion":  # the comparison alone, fused
        fused = module.computations[root.called["calls"]]
        root = _root(fused)
        inside = [_parameter(fused, operand) for operand in root.operands]
        operands = tuple(operands[at] for at in inside if at is not None)
    direction = _DIRECTION.search(root.attributes)
    if root.opcode == "compare" and direction is not None and len(operands) == 2:
        left, right = operands
        yield left, right, direction[1]
        yield right, left, _FLIPPED.get(direction[1], direction[1])


def _root(computation: Computation) -> Instruction:
    return next(found for found in computation.values() if found.is_root)


def _parameter(computation: Computation, name: str) -> int | None:
    found = computation[name]
    return int(found.literal) if found.opcode == "parameter" else None


def _behind(computation: Computation, name: str) -> Instruction:
    """Returns what a copy, a conversion or a reshape is of."""
    found = computation[name]
    while found.opcode in _TRANSPARENT and found.operands:
        found = computation[found.operands[0]]
    return found


def _constant(computation: Computation, name: str) -> int | None:
    found = _behind(computation, name)
    if found.opcode != "constant" or not re.fullmatch(r"-?\d+", found.literal):
        return None
    return int(found.literal)


def _element(computation: Computation, name: str) -> int | None:
    """Returns which element of the loop's state a value is."""
    found = _behind(computation, name)
    index = _INDEX.search(found.attributes)
    if found.opcode != "get-tuple-element" or index is None:
        return None
    source = computation[found.operands[0]]
    return int(index[1]) if source.opcode == "parameter" else None


def _initial(caller: Computation, state: Instruction, index: int) -> int | None:
    """Returns the value with which an element of the state enters the loop, if it is constant."""
    if state.opcode != "tuple":
        return None
    return _constant(caller, state.operands[index])


def _step(body: Computation, index: int) -> int | None:
    """Returns by how much the body changes an element of the state; additions may be chained."""
    root, total = _root(body), 0
    if root.opcode != "tuple":
        return None
    found = _behind(body, root.operands[index])
    while found.opcode in ("add", "subtract"):
        left, right = found.operands
        sign = 1 if found.opcode == "add" else -1
        if (by := _constant(body, right)) is not None:
            total, found = total + sign * by, _behind(body, left)
        elif found.opcode == "add" and (by := _constant(body, left)) is not None:
            total, found = total + by, _behind(body, right)
        else:
            return None
    return total if _element(body, found.name) == index else None
