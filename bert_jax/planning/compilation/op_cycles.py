"""Cycles of an operation for which no code was generated, from what it computes and moves.

The compiler writes `estimated_cycles` when it generates code. Before that, an operation has known
products, bytes and element-wise work. `op_cycles.yaml` has a cost model of each generation, fitted
to the compiler's own figures of whole steps. One operation may be off by a third, the sum of a step
by a few percent, see docs/planning.md.
"""

import dataclasses
import datetime
from functools import lru_cache
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from bert_jax.files.yaml_file import read_yaml
from bert_jax.parallel.accelerators import Accelerator
from bert_jax.planning.compilation.cycles import hbm_bytes, is_kernel, kind_of, runs_on_core
from bert_jax.planning.compilation.execution import Executed
from bert_jax.planning.compilation.hlo import Computation, HloModule, Instruction
from bert_jax.planning.compilation.work import operations_of, product_flops
from bert_jax.section import Section
from bert_jax.validation import validate

_FILE: Final = Path(__file__).with_name("op_cycles.yaml")
PRODUCTS: Final = "matrix products"
# Of the other kinds the compiler gives no figure either: they take the time of their bytes.
_BY_BYTES: Final = ("gathers and scatters", "random bits", "collectives")
_ESTIMATED: Final = frozenset(
    ("fusion", "copy", "convert", "broadcast", "reduce", "reshape", "convolution", "dot")
)
_REGISTER: Final = 1024  # elements of a vector register; less is not worth a figure

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
_REDUCES: Final = ("reduce", "reduce-window")


class Features(NamedTuple):
    """What an operation does, in cycles of a chip at its peak, and in vector registers."""

    products: float  # FLOPs over the peak of the matrix units
    hbm: float  # bytes over the bandwidth of the HBM
    on_chip: float  # bytes of operands and results that lie on the chip, over the same
    elementwise: float  # registers of results, of every operation inside
    transcendental: float  # the same of exponentials, roots and divisions
    moved: float  # the same of copies and slices


class LinearCost(Section):
    """Cycles for each of `Features`, and those of any operation at all."""

    weights: Features
    start: float


class CostModel(Section):
    """Of one generation: what overlaps counts as the longer of the two."""

    products: LinearCost
    others: LinearCost

    def cycles(self, kind: str, features: Features) -> int:
        """Returns the cycles of an operation of a kind."""
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


# Generations that were not fitted, and the one most like them.
_LIKE: Final = {"v2": "v3", "v7x": "v5p"}


def with_estimates(module: HloModule, accelerator: Accelerator) -> HloModule:
    """Returns the module with `estimated_cycles` where the compiler would write its own."""
    model = fitted().models[_LIKE.get(accelerator.name, accelerator.name)]
    fused = {
        each.called["calls"]
        for computation in module.computations.values()
        for each in computation.values()
        if each.opcode == "fusion"
    }

    def estimated(computation: Computation, each: Instruction) -> Instruction:
        found = Executed(each, computation, 1)
        if not is_estimated(module, found):
            return each
        kind = kind_of(module, found)
        cycles = model.cycles(kind, features_of(module, found, accelerator))
        attributes = f'{each.attributes}, "estimated_cycles":"{cycles}"'
        return dataclasses.replace(each, attributes=attributes)

    return dataclasses.replace(
        module,
        computations={
            name: computation
            if name in fused
            else {one.name: estimated(computation, one) for one in computation.values()}
            for name, computation in module.computations.items()
        },
    )


def is_estimated(module: HloModule, found: Executed) -> bool:
    """Whether the compiler gives an operation a figure when it generates code."""
    each = found.instruction
    if each.opcode not in _ESTIMATED or not runs_on_core(found) or is_kernel(each):
        return False
    large = each.opcode == "fusion" or sum(one.elements for one in each.arrays) > _REGISTER
    return large and kind_of(module, found) not in _BY_BYTES


def features_of(module: HloModule, found: Executed, accelerator: Accelerator) -> Features:
    """Returns what an operation does on one JAX device, measured by the accelerator's peaks."""
    each, computation = found.instruction, found.computation
    peak = accelerator.peak_flops["bfloat16"] / accelerator.devices_per_chip / accelerator.clock_hz
    operands = (computation[name] for name in each.operands if name in computation)
    arrays = [*each.arrays, *(array for one in operands for array in one.arrays)]
    in_hbm = hbm_bytes(found)
    flops = elementwise = transcendental = moved = 0
    for around, one in operations_of(module, computation, each):
        flops += product_flops(around, one)
        elements = _elements(around, one)
        moved += elements * (one.opcode in _MOVES)
        transcendental += elements * (one.opcode in _TRANSCENDENTAL)
        elementwise += elements * (one.opcode not in _NO_WORK | _MOVES | _TRANSCENDENTAL)
    return Features(
        products=flops / peak,
        hbm=in_hbm / accelerator.bytes_per_cycle,
        on_chip=(sum(array.bytes for array in arrays) - in_hbm) / accelerator.bytes_per_cycle,
        elementwise=elementwise / _REGISTER,
        transcendental=transcendental / _REGISTER,
        moved=moved / _REGISTER,
    )


def _elements(around: Computation, each: Instruction) -> int:
    """Returns how many elements an operation goes through."""
    results = sum(array.elements for array in each.arrays)
    if each.opcode not in _REDUCES:
        return results
    read = (array.elements for name in each.operands for array in around[name].arrays)
    return max(results, *read)
