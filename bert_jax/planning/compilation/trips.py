"""How often a loop's body runs, from its condition, its counter's first value and its step."""

import math
import re
from collections.abc import Iterator
from typing import Final

from bert_jax.planning.compilation.hlo import Computation, HloModule, Instruction

_INDEX = re.compile(r"\bindex=(\d+)")
_DIRECTION = re.compile(r"\bdirection=(\w+)")
_FLIPPED: Final = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}
_TRANSPARENT: Final = ("copy", "bitcast", "convert", "copy-done", "copy-start", "reshape")


def trip_count(module: HloModule, caller: Computation, loop: Instruction) -> int | None:
    """Returns how often the body of a `while` runs; None where the text does not say.

    A counter goes from its first value in steps up or down to a constant: the loops of
    `jax.lax.scan`, and the compiler's windowed products, which count in twos.
    """
    condition, body = (module.computations[loop.called[role]] for role in ("condition", "body"))
    state, result = caller[loop.operands[0]], _root(body)
    if state.opcode != "tuple" or result.opcode != "tuple":
        return None
    for counter, bound, direction in _comparisons(module, condition):
        index = _element(condition, counter)
        limit = _constant(condition, bound)
        if limit is None and (carried := _element(condition, bound)) is not None:
            limit = _constant(caller, state.operands[carried])  # the loop does not change it
        if index is None or limit is None:
            continue
        first = _constant(caller, state.operands[index])
        step = _step(body, result.operands[index], index)
        if first is not None and step:
            distance = limit - first
            if direction in ("LE", "GE"):
                distance += 1 if step > 0 else -1
            return max(math.ceil(distance / step), 0)
    return None


def _comparisons(module: HloModule, condition: Computation) -> Iterator[tuple[str, str, str]]:
    """Yields counter, bound and direction, with either operand as the counter."""
    root = _root(condition)
    operands = root.operands
    if fused := module.inside(root):
        root = _root(fused)
        parameters = [fused[name] for name in root.operands]
        operands = tuple(
            operands[int(each.literal)] for each in parameters if each.opcode == "parameter"
        )
    direction = _DIRECTION.search(root.attributes)
    if root.opcode == "compare" and direction is not None and len(operands) == 2:
        left, right = operands
        yield left, right, direction[1]
        yield right, left, _FLIPPED.get(direction[1], direction[1])


def _root(computation: Computation) -> Instruction:
    return next(found for found in computation.values() if found.is_root)


def _behind(computation: Computation, name: str) -> Instruction:
    """Returns the instruction that copies, conversions and reshapes lead back to."""
    found = computation[name]
    while found.opcode in _TRANSPARENT and found.operands:
        found = computation[found.operands[0]]
    return found


def _constant(computation: Computation, name: str) -> int | None:
    found = _behind(computation, name)
    is_number = found.opcode == "constant" and re.fullmatch(r"-?\d+", found.literal)
    return int(found.literal) if is_number else None


def _element(computation: Computation, name: str) -> int | None:
    """Returns the index of a value in the loop's state; None: it is no element of the state."""
    found = _behind(computation, name)
    if found.opcode != "get-tuple-element":
        return None
    index = _INDEX.search(found.attributes)
    of_state = computation[found.operands[0]].opcode == "parameter"
    return int(index[1]) if index and of_state else None


def _step(body: Computation, name: str, index: int) -> int | None:
    """Returns by how much the body changes an element of the state; additions may be chained."""
    found, total = _behind(body, name), 0
    while found.opcode in ("add", "subtract"):
        left, right = found.operands
        sign = 1 if found.opcode == "add" else -1
        if (by := _constant(body, right)) is None and sign > 0:
            left, right = right, left
            by = _constant(body, right)
        if by is None:
            return None
        total, found = total + sign * by, _behind(body, left)
    return total if _element(body, found.name) == index else None
