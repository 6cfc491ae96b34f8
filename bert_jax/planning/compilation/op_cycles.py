"""Cycles of an operation for which no code was generated, from what it computes and moves.

The compiler writes `estimated_cycles` when it generates code. Before that, an operation has known
products, bytes and element-wise work. `op_cycles.yaml` has a cost model of each generation, fitted
to the compiler's own figures of whole steps. One operation may be off by a third, the sum of a step
by a few percent, see docs/planning.md.
"""

import datetime
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from bert_jax.files.yaml_file import read_yaml
from bert_jax.parallel.accelerators import Accelerator
from bert_jax.planning.compilation.hlo import Computation, Instruction
from bert_jax.planning.compilation.program import COLLECTIVES, PRODUCTS, Estimate, Operation
from bert_jax.section import Section
from bert_jax.validation import validate

_FILE: Final = Path(__file__).with_name("op_cycles.yaml")
# The compiler gives no figure of these kinds either: they take the time of their bytes.
_BY_BYTES: Final = ("gathers and scatters", "random bits", COLLECTIVES)
_ESTIMATED: Final = frozenset(
    ("fusion", "copy", "convert", "broadcast", "reduce", "reshape", "convolution", "dot")
)
_REGISTER: Final = 1024  # elements of a vector register; less is not worth a figure
# Generations that were not fitted, and the one most like them.
_LIKE: Final = {"v2": "v3", "v7x": "v5p"}

_NO_WORK: Final = frozenset(
    (
        *("parameter", "constant", "bitcast", "tuple", "get-tuple-element", "convolution", "dot"),
        *("broadcast", "iota", "fusion"),
    )
)
_MOVES: Final = frozenset(
    (
        *("copy", "transpose", "reshape", "slice", "pad", "concatenate"),
        *("dynamic-slice", "dynamic-update-slice"),
    )
)
_TRANSCENDENTAL: Final = frozenset(
    (
        *("exponential", "log", "tanh", "logistic", "rsqrt", "sqrt", "power", "divide", "erf"),
        *("exponential-minus-one", "log-plus-one"),
    )
)


class Features(NamedTuple):
    """Work of an operation, in cycles of a chip at its peak, and in vector registers."""

    products: float  # FLOPs over the peak of the matrix units
    hbm: float  # bytes over the bandwidth of the HBM
    on_chip: float  # bytes of operands and results on the chip, over the same bandwidth
    elementwise: float  # registers of the results of every operation inside
    transcendental: float  # registers of exponentials, roots and divisions
    moved: float  # registers of copies and slices


class LinearCost(Section):
    """Cycles for each feature, and cycles that every operation takes."""

    weights: Features
    start: float


class CostModel(Section):
    """Cost model of one generation; work that overlaps counts as the longer of the two."""

    products: LinearCost
    others: LinearCost

    def cycles(self, kind: str, features: Features) -> int:
        """Returns the estimated cycles of an operation."""
        linear = self.products if kind == PRODUCTS else self.others
        products, hbm, *rest = np.multiply(linear.weights, features).tolist()
        if kind == PRODUCTS:
            return round(max(products, hbm) + sum(rest) + linear.start)
        return round(max(hbm, sum(rest)) + linear.start)


class Fitted(Section):
    """The cost models of `op_cycles.yaml`, and the compiler that they were fitted to."""

    date: datetime.date
    libtpu: str  # version
    models: dict[str, CostModel]  # by generation


@lru_cache(maxsize=1)
def fitted() -> Fitted:
    """Returns the cost models that come with the package."""
    return validate(Fitted, read_yaml(str(_FILE)), source=str(_FILE))


def estimates(accelerator: Accelerator) -> Estimate:
    """Returns a function that estimates cycles where the compiler would write its own."""
    model = fitted().models[_LIKE.get(accelerator.name, accelerator.name)]

    def estimate(operation: Operation) -> int | None:
        if not is_estimated(operation):
            return None
        return model.cycles(operation.kind, features_of(operation, accelerator))

    return estimate


def is_estimated(operation: Operation) -> bool:
    """Whether the compiler gives an operation a figure when it generates code."""
    each = operation.instruction
    if each.opcode not in _ESTIMATED:
        return False
    large = each.opcode == "fusion" or sum(one.elements for one in each.arrays) > _REGISTER
    return large and operation.kind not in _BY_BYTES


def features_of(operation: Operation, accelerator: Accelerator) -> Features:
    """Returns what an operation does on one JAX device, measured by the accelerator's peaks."""
    elementwise = transcendental = moved = 0
    for around, part in operation.parts:
        elements = _elements(around, part)
        moved += elements * (part.opcode in _MOVES)
        transcendental += elements * (part.opcode in _TRANSCENDENTAL)
        elementwise += elements * (part.opcode not in _NO_WORK | _MOVES | _TRANSCENDENTAL)
    on_chip = sum(array.bytes for array in operation.arrays) - operation.hbm_bytes
    return Features(
        products=operation.product_flops / flops_per_cycle(accelerator),
        hbm=operation.hbm_bytes / accelerator.bytes_per_cycle,
        on_chip=on_chip / accelerator.bytes_per_cycle,
        elementwise=elementwise / _REGISTER,
        transcendental=transcendental / _REGISTER,
        moved=moved / _REGISTER,
    )


def flops_per_cycle(accelerator: Accelerator) -> float:
    """Returns the peak of one JAX device's matrix units in bfloat16."""
    return accelerator.peak_flops["bfloat16"] / accelerator.devices_per_chip / accelerator.clock_hz


def _elements(around: Computation, part: Instruction) -> int:
    """Returns how many elements an operation goes through."""
    results = sum(array.elements for array in part.arrays)
    if part.opcode not in ("reduce", "reduce-window"):
        return results
    read = (array.elements for name in part.operands for array in around[name].arrays)
    return max(results, *read)
