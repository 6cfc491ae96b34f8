"""The operations of a program, with their trips, products, bytes and cycles."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Final, Self

import numpy as np

from bert_jax.planning.compilation.hlo import Array, Computation, HloModule, Instruction

PRODUCTS: Final = "matrix products"
COLLECTIVES: Final = "collectives"
KERNEL: Final = "custom kernels"
OTHER: Final = "elementwise"
# The kind of a fusion is the first entry with an opcode that occurs inside the fusion.
_KINDS: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    (PRODUCTS, frozenset(("convolution", "dot"))),
    ("random bits", frozenset(("rng-bit-generator", "rng"))),
    ("gathers and scatters", frozenset(("gather", "scatter", "sort"))),
    (COLLECTIVES, frozenset(("all-reduce", "all-gather", "reduce-scatter", "all-to-all"))),
    ("reductions", frozenset(("reduce", "reduce-window"))),
    # A scanned layer reads and writes slices of arrays with a row for each layer.
    ("slices of stacked arrays", frozenset(("dynamic-slice", "dynamic-update-slice"))),
    ("copies", frozenset(("copy", "transpose", "slice", "pad", "concatenate"))),
)

# Opcodes that the core does not execute. DMA runs copies while the core computes.
_FREE: Final = frozenset(
    (
        *("parameter", "constant", "get-tuple-element", "tuple", "bitcast", "while", "conditional"),
        *("call", "after-all", "partition-id", "replica-id", "opt-barrier", "iota"),
        *("async-start", "async-update", "async-done", "copy-start", "copy-done"),
        *("slice", "slice-start", "slice-done", "add-dependency"),
    )
)
# `collectives` estimates the time of these opcodes from their bytes.
_NETWORK: Final = (
    *("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"),
    *("send", "recv"),
)
_DMA: Final = ("copy-start", "slice", "slice-start")
_KERNEL_TARGET: Final = 'custom_call_target="tpu_custom_call"'
_KERNEL_BODY: Final = re.compile(r'"body":"([^"]*)"')
# The order of the fields differs before and after code generation.
_FLOPS = re.compile(r'"cost_estimate":\{[^}]*?"flops":"(\d+)"')
_BYTES = re.compile(r'"cost_estimate":\{[^}]*?"bytes_accessed":"(\d+)"')

_WINDOW = re.compile(r"\bwindow=\{([^}]*)\}")
_LABELS = re.compile(r"\bdim_labels=(\w+)_(\w+)->(\w+)")
_BATCH_GROUPS = re.compile(r"\bbatch_group_count=(\d+)")
_CONTRACTED = re.compile(r"\blhs_contracting_dims=\{([\d,]*)\}")

_INDEX = re.compile(r"\bindex=(\d+)")
_DIRECTION = re.compile(r"\bdirection=(\w+)")
_FLIPPED: Final = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}
_TRANSPARENT: Final = ("copy", "bitcast", "convert", "copy-done", "copy-start", "reshape")


@dataclasses.dataclass(frozen=True)
class Operation:
    """An instruction, and how often one run of the program executes it.

    Its computation is the entry, the body or condition of a loop, a branch, or a called
    computation. Instructions inside a fusion are not operations, but parts of the fusion.
    """

    instruction: Instruction
    computation: Computation  # computation that contains the instruction
    module: HloModule
    trips: int  # number of executions: product of the trips of all enclosing loops
    estimate: "Estimate"

    @functools.cached_property
    def cycles(self) -> int | None:
        """Cycles of one execution, or None without an estimate."""
        return self.estimate(self)

    @property
    def name(self) -> str:
        """Name of the instruction."""
        return self.instruction.name

    @functools.cached_property
    def parts(self) -> tuple[tuple[Computation, Instruction], ...]:
        """The instruction and its computation. For a fusion, the instructions inside it instead."""
        return tuple(self.module.parts(self.computation, self.instruction))

    @functools.cached_property
    def kind(self) -> str:
        """Kind of the operation. For a fusion, the kind of its heaviest part."""
        if self.kernel is not None:
            return KERNEL
        inside = {part.opcode for _, part in self.parts}
        return next((kind for kind, opcodes in _KINDS if inside & opcodes), OTHER)

    @functools.cached_property
    def kernel(self) -> str | None:
        """The program of the called Pallas kernel, or None for other operations."""
        attributes = self.instruction.attributes
        if _KERNEL_TARGET not in attributes:
            return None
        body = _KERNEL_BODY.search(attributes)
        return body[1] if body else self.name

    @functools.cached_property
    def code(self) -> Hashable:
        """Identifies the machine code. The compiler generates the code of equal operations once."""
        parts = tuple((part.opcode, part.arrays) for _, part in self.parts)
        return self.kernel or (self.instruction.opcode, tuple(self.arrays), parts)

    @property
    def on_core(self) -> bool:
        """Whether the core executes the operation."""
        opcode = self.instruction.opcode
        if opcode == "custom-call":  # the compiler also makes custom calls
            return self.kernel is not None
        return not (opcode in _FREE or opcode.startswith(_NETWORK))

    @property
    def arrays(self) -> list[Array]:
        """The arrays of results and operands."""
        named = (self.computation.get(name) for name in self.instruction.operands)
        operands = [array for one in named if one is not None for array in one.arrays]
        return [*self.instruction.arrays, *operands]

    @functools.cached_property
    def hbm_bytes(self) -> int:
        """Bytes of the results and operands in HBM."""
        return sum(array.bytes for array in self.arrays if array.in_hbm)

    @property
    def moved_bytes(self) -> int:
        """Bytes that the core or DMA moves between HBM and the chip in one execution.

        A Pallas kernel may declare that it moves fewer bytes than its arrays have.
        """
        if not (self.on_core or self.instruction.opcode in _DMA):
            return 0
        declared = self.kernel is not None and _BYTES.search(self.instruction.attributes)
        return min(self.hbm_bytes, int(declared[1])) if declared else self.hbm_bytes

    @functools.cached_property
    def product_flops(self) -> int:
        """FLOPs of the products that XLA compiled, in one execution."""
        return sum(_product_flops(around, part) for around, part in self.parts)

    @property
    def kernel_flops(self) -> int:
        """FLOPs that a Pallas kernel declares in its `cost_estimate`, or 0."""
        declared = self.kernel is not None and _FLOPS.search(self.instruction.attributes)
        return int(declared[1]) if declared else 0


Estimate = Callable[[Operation], int | None]  # cycles of one execution


def compilers_own(operation: Operation) -> int | None:
    """Returns the compiler's `estimated_cycles` of an operation, or None."""
    return operation.instruction.cycles


@dataclasses.dataclass(frozen=True)
class Program:
    """The operations of a module in the order of execution. A loop precedes its body."""

    operations: tuple[Operation, ...]
    unknown_loops: tuple[str, ...]  # loops with unknown trips, which count as one trip

    @classmethod
    def of(cls, module: HloModule, estimate: Estimate = compilers_own) -> Self:
        """Returns the program of a module."""
        unknown: list[str] = []

        def walk(name: str, trips: int) -> Iterator[Operation]:
            computation = module.computations[name]
            for each in computation.values():
                yield Operation(each, computation, module, trips, estimate)
                yield from walk_called(computation, each, trips)

        def walk_called(
            computation: Computation, each: Instruction, trips: int
        ) -> Iterator[Operation]:
            called = each.called
            if each.opcode == "while":
                count = _trip_count(module, computation, each)
                if count is None:
                    unknown.append(each.name)
                inside = trips * (1 if count is None else count)
                yield from walk(called["body"], inside)
                yield from walk(called["condition"], inside)
            elif each.opcode == "conditional":
                # The chosen branch depends on data. Count the slowest branch.
                branches = [list(walk(branch, trips)) for branch in each.branches]
                yield from max(branches, key=_cycles, default=[])
            elif each.opcode in ("call", "async-start"):
                yield from walk(called.get("to_apply") or called["calls"], trips)

        return cls(tuple(walk(module.entry, 1)), tuple(unknown))


def _cycles(branch: Sequence[Operation]) -> int:
    return sum((found.cycles or 0) * found.trips for found in branch)


def _product_flops(computation: Computation, instruction: Instruction) -> int:
    """Returns the FLOPs of a product without padding and dilation, or 0 for other instructions."""
    attributes = instruction.attributes
    if instruction.opcode == "dot":
        left = computation[instruction.operands[0]].arrays[0]
        summed = _CONTRACTED.search(attributes)
        axes = [int(axis) for axis in summed[1].split(",") if axis] if summed else []
        return 2 * instruction.arrays[0].elements * math.prod(left.sizes[axis] for axis in axes)
    labels = _LABELS.search(attributes)
    if instruction.opcode != "convolution" or labels is None:
        return 0
    operands = (computation[name] for name in instruction.operands)
    left, right, out = (
        dict(zip(names, each.arrays[0].sizes, strict=True))
        for names, each in zip(labels.groups(), (*operands, instruction), strict=True)
    )
    groups = _BATCH_GROUPS.search(attributes)
    flops = 2 * right["i"] * out["f"] * left["b"] // (int(groups[1]) if groups else 1)
    found = _WINDOW.search(attributes)
    fields = dict(field.split("=") for field in found[1].split()) if found else {}
    columns = {name: values.split("x") for name, values in fields.items()}
    for axis in range(len(columns.get("size", ()))):
        window = {name: values[axis] for name, values in columns.items()}
        flops *= _positions(window, inputs=left[str(axis)], outputs=out[str(axis)])
    return flops


def _positions(window: Mapping[str, str], *, inputs: int, outputs: int) -> int:
    """Returns the number of (output, window) positions that read an input element, not padding."""
    names = ("size", "stride", "rhs_dilate", "lhs_dilate")
    size, stride, apart, spread = (int(window.get(name, "1")) for name in names)
    low = int(window.get("pad", "0_0").split("_")[0])
    at = np.arange(outputs)[:, None] * stride - low + np.arange(size)[None, :] * apart
    return int(((at >= 0) & (at <= (inputs - 1) * spread) & (at % spread == 0)).sum())


def _trip_count(module: HloModule, caller: Computation, loop: Instruction) -> int | None:
    """Returns the trip count of a `while`, if the text determines it.

    The counter must run from a constant to a constant in equal steps. This covers `jax.lax.scan`,
    and the compiler's windowed products, which count in steps of two.
    """
    condition, body = (module.computations[loop.called[role]] for role in ("condition", "body"))
    state, result = caller[loop.operands[0]], _root(body)
    if state.opcode != "tuple" or result.opcode != "tuple":
        return None
    for counter, bound, direction in _comparisons(module, condition):
        index = _element(condition, counter)
        limit = _constant(condition, bound)
        if limit is None and (carried := _element(condition, bound)) is not None:
            limit = _constant(caller, state.operands[carried])  # a constant in the loop state
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
    """Yields counter, bound and direction of a comparison, for both orders of its operands."""
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
    """Returns the source of a value, looking through copies, conversions and reshapes."""
    found = computation[name]
    while found.opcode in _TRANSPARENT and found.operands:
        found = computation[found.operands[0]]
    return found


def _constant(computation: Computation, name: str) -> int | None:
    found = _behind(computation, name)
    is_number = found.opcode == "constant" and re.fullmatch(r"-?\d+", found.literal)
    return int(found.literal) if is_number else None


def _element(computation: Computation, name: str) -> int | None:
    """Returns the index of a value in the loop's state, or None for other values."""
    found = _behind(computation, name)
    if found.opcode != "get-tuple-element":
        return None
    index = _INDEX.search(found.attributes)
    of_state = computation[found.operands[0]].opcode == "parameter"
    return int(index[1]) if index and of_state else None


def _step(body: Computation, name: str, index: int) -> int | None:
    """Returns the constant that the body adds to an element of the state, or None."""
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
