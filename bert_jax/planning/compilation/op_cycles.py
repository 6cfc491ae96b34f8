"""Estimates the cycles of an operation from its work, without generated code.

The compiler writes `estimated_cycles` only when it generates code. Before that, the products, bytes
and elementwise work of an operation are known. `op_cycles.yaml` has a cost model for each TPU
generation, fitted to the compiler's estimates of whole steps, or to their schedules (v6e). The
error of one operation may be a third, the error of a whole step a few percent; see
docs/planning.md.
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
# Kinds without `estimated_cycles` from the compiler; `cycles` counts them by their bytes.
_BY_BYTES: Final = ("gathers and scatters", "random bits", COLLECTIVES)
_ESTIMATED: Final = frozenset(
    ("fusion", "copy", "convert", "broadcast", "reduce", "reshape", "convolution", "dot")
)
_REGISTER: Final = 1024  # elements of a vector register; smaller operations get no estimate
# Generations without a fitted model, and the most similar generation with one.
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
    """Work of an operation, in cycles at peak rate or in vector registers."""

    products: float  # FLOPs divided by the peak of the matrix units
    hbm: float  # bytes in HBM divided by the HBM bandwidth
    on_chip: float  # bytes in on-chip memory divided by the HBM bandwidth
    elementwise: float  # registers of all elementwise results
    transcendental: float  # registers of exponentials, roots and divisions
    moved: float  # registers of copies and slices


class LinearCost(Section):
    """Cycles per unit of each feature, plus constant cycles per operation."""

    weights: Features
    start: float


class CostModel(Section):
    """Cost model of one generation. Of overlapping work, only the longer part counts."""

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
    """The cost models in `op_cycles.yaml`, and the compiler versions that they are valid for."""

    date: datetime.date
    libtpu: tuple[str, ...]  # versions
    models: dict[str, CostModel]  # models by generation


@lru_cache(maxsize=1)
def fitted() -> Fitted:
    """Returns the cost models of the package."""
    return validate(Fitted, read_yaml(str(_FILE)), source=str(_FILE))


def estimates(accelerator: Accelerator) -> Estimate:
    """Returns a function that estimates the cycles of the exact form."""
    model = fitted().models[_LIKE.get(accelerator.name, accelerator.name)]

    def estimate(operation: Operation) -> int | None:
        if not is_estimated(operation):
            return None
        return model.cycles(operation.kind, features_of(operation, accelerator))

    return estimate


def is_estimated(operation: Operation) -> bool:
    """Returns whether the compiler would write `estimated_cycles` for an operation."""
    each = operation.instruction
    if each.opcode not in _ESTIMATED:
        return False
    large = each.opcode == "fusion" or sum(one.elements for one in each.arrays) > _REGISTER
    return large and operation.kind not in _BY_BYTES


def features_of(operation: Operation, accelerator: Accelerator) -> Features:
    """Returns the work of an operation on one JAX device."""
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
    """Returns the peak bfloat16 FLOPs per cycle of one JAX device's matrix units."""
    return accelerator.peak_flops["bfloat16"] / accelerator.devices_per_chip / accelerator.clock_hz


def _elements(around: Computation, part: Instruction) -> int:
    """Returns the number of elements that an operation processes."""
    results = sum(array.elements for array in part.arrays)
    if part.opcode not in ("reduce", "reduce-window"):
        return results
    read = (array.elements for name in part.operands for array in around[name].arrays)
    return max(results, *read)
