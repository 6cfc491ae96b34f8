"""Cycles of an operation for which no code was generated, from what it computes and moves.

The compiler writes `estimated_cycles` when it generates code. Before that there are an operation's
products, bytes and element-wise work, and a cost model of each generation, fitted to the compiler's
own figures of whole steps (`python -m benchmarks.op_cycles`). One operation may be off by a third;
the sum of a step by a few percent, see docs/planning.md.
"""

import dataclasses
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from bert_jax.parallel.accelerators import Accelerator
from bert_jax.planning.cycles import hbm_bytes, is_kernel, kind_of, runs_on_core
from bert_jax.planning.execution import Executed
from bert_jax.planning.hlo import Computation, HloModule, Instruction
from bert_jax.planning.work import operations_of, product_flops

PRODUCTS: Final = "matrix products"
# Of the other kinds the compiler gives no figure either: they take the time of their bytes.
_BY_BYTES: Final = ("gathers and scatters", "random bits", "collectives")
# Outside of a fusion the engines that copy do it, beside the core: nothing of the core's time.
_BESIDE: Final = "slice"
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


class LinearCost(NamedTuple):
    """Cycles for each of `Features`, and those of any operation at all."""

    weights: Features
    start: float


class CostModel(NamedTuple):
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


COST_MODELS: Final[Mapping[str, CostModel]] = {
    "v3": CostModel(
        LinearCost(Features(1.06, 1.31, 3.8, 0.207, 1.49e-07, 15.9), 2462),
        LinearCost(Features(0, 1.79, 0.553, 1.04, 1.13, 1.22), 250),
    ),
    "v4": CostModel(
        LinearCost(Features(0.816, 3.33, 0.607, 0.204, 8.8e-07, 7.16), 1760),
        LinearCost(Features(0, 2.77, 0.946, 0.434, 0.367, 2.95), 810),
    ),
    "v5e": CostModel(
        LinearCost(Features(1.07, 1.76, 0.0013, 0.0174, 1.54e-06, 3.52), 399),
        LinearCost(Features(0, 3.09, 0.326, 1.29, 0.021, 4.84), 1890),
    ),
    "v5p": CostModel(
        LinearCost(Features(1.06, 3.56, 0.177, 0.0173, 0.00163, 0.635), 5396),
        LinearCost(Features(0, 1.98, 0.0364, 0.675, 1.2, 1.44), 2138),
    ),
    "v6e": CostModel(
        LinearCost(Features(0.878, 1.66, 0.262, 0.176, 0.00899, 3.79), 1080),
        LinearCost(Features(0, 2.02, 0.129, 0.659, 2.69e-07, 1.65), 2130),
    ),
}
# Generations that were not fitted, and the one most like them.
_LIKE: Final = {"v2": "v3", "v7x": "v5p"}


def with_estimates(module: HloModule, accelerator: Accelerator) -> HloModule:
    """Returns the module with `estimated_cycles` where the compiler would write its own."""
    model = COST_MODELS[_LIKE.get(accelerator.name, accelerator.name)]
    fused = {
        each.called["calls"]
        for computation in module.computations.values()
        for each in computation.values()
        if each.opcode == "fusion"
    }

    def estimated(computation: Computation, each: Instruction) -> Instruction:
        found = Executed(each, computation, 1)
        if each.opcode == _BESIDE:
            cycles = 0
        elif is_estimated(module, found):
            kind = kind_of(module, found)
            cycles = model.cycles(kind, features_of(module, found, accelerator))
        else:
            return each
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
