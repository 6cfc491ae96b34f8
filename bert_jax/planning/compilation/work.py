"""What a program executes: FLOPs of its products, and bytes through HBM.

Products are counted one by one, padding and dilation left out, those in loops times their trips.
Kernels count what their `cost_estimate` declares, and the copies of their schedule. Elementwise
operations are not in the FLOPs: the useful ones, which these stand beside, leave them out too.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pydantic

from bert_jax.planning.compilation.cycles import hbm_bytes, is_kernel, runs_on_core
from bert_jax.planning.compilation.execution import Program
from bert_jax.planning.compilation.hlo import Computation, HloModule, Instruction
from bert_jax.planning.compilation.kernel_schedule import KernelSchedule

# Written in another order before code is generated.
_DECLARED = re.compile(r'"cost_estimate":\{[^}]*?"flops":"(\d+)"')
_WINDOW = re.compile(r"\bwindow=\{([^}]*)\}")
_LABELS = re.compile(r"\bdim_labels=(\w+)_(\w+)->(\w+)")
_BATCH_GROUPS = re.compile(r"\bbatch_group_count=(\d+)")
_CONTRACTED = re.compile(r"\blhs_contracting_dims=\{([\d,]*)\}")
_COPIES: Final = ("copy-start", "slice", "slice-start")


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class Work:
    """Of one step on one device."""

    product_flops: int  # of products that XLA compiled
    kernel_flops: int  # that Pallas kernels declare
    hbm_bytes: int  # that operations read and write, and kernels copy

    @property
    def flops(self) -> int:
        """Of all of them."""
        return self.product_flops + self.kernel_flops


def count_work(program: Program, schedules: Mapping[str, KernelSchedule]) -> Work:
    """Returns what one run of a program executes on one device.

    The schedules of kernels are by the name of their instruction.
    """
    products = kernels = moved = 0
    for found in program.executed:
        instruction = found.instruction
        if is_kernel(instruction):
            kernels += found.trips * declared_flops(instruction)
            schedule = schedules.get(instruction.name)
            moved += found.trips * (schedule.copied_bytes if schedule else 0)
            continue
        for computation, each in operations_of(program.module, found.computation, instruction):
            products += found.trips * product_flops(computation, each)
        if runs_on_core(found) or instruction.opcode in _COPIES:
            moved += found.trips * hbm_bytes(found)
    return Work(product_flops=products, kernel_flops=kernels, hbm_bytes=moved)


def declared_flops(kernel: Instruction) -> int:
    """Returns the FLOPs that a Pallas kernel's call says it has; 0 if it says nothing."""
    declared = _DECLARED.search(kernel.attributes)
    return int(declared[1]) if declared else 0


def product_flops(computation: Computation, instruction: Instruction) -> int:
    """Returns the FLOPs of a product, a multiplication and an addition being two; 0 of others."""
    if instruction.opcode == "dot":
        left = computation[instruction.operands[0]].arrays[0]
        summed = _CONTRACTED.search(instruction.attributes)
        axes = [int(axis) for axis in summed[1].split(",") if axis] if summed else []
        return 2 * instruction.arrays[0].elements * math.prod(left.sizes[axis] for axis in axes)
    labels = _LABELS.search(instruction.attributes)
    if instruction.opcode != "convolution" or labels is None:
        return 0
    arrays = [computation[name].arrays[0] for name in instruction.operands] + [
        instruction.arrays[0]
    ]
    left, right, out = (
        dict(zip(names, array.sizes, strict=True))
        for names, array in zip(labels.groups(), arrays, strict=True)
    )
    groups = _BATCH_GROUPS.search(instruction.attributes)
    flops = 2 * right["i"] * out["f"] * left["b"] // (int(groups[1]) if groups else 1)
    for axis, window in enumerate(_windows(instruction)):
        flops *= _positions(window, inputs=left[str(axis)], outputs=out[str(axis)])
    return flops


def _windows(instruction: Instruction) -> list[dict[str, str]]:
    """Returns size, stride, pad and dilations for each spatial axis."""
    found = _WINDOW.search(instruction.attributes)
    fields = dict(field.split("=") for field in found[1].split()) if found else {}
    columns = {name: values.split("x") for name, values in fields.items()}
    axes = len(columns.get("size", ()))
    return [{name: values[axis] for name, values in columns.items()} for axis in range(axes)]


def _positions(window: Mapping[str, str], *, inputs: int, outputs: int) -> int:
    """Returns how often an element of the window meets one of the input, and not padding."""

    def number(name: str) -> int:
        return int(window.get(name, "1"))

    low = int(window.get("pad", "0_0").split("_")[0])
    out, inside = np.arange(outputs)[:, None], np.arange(number("size"))[None, :]
    at = out * number("stride") - low + inside * number("rhs_dilate")
    spread = number("lhs_dilate")
    return int(((at >= 0) & (at <= (inputs - 1) * spread) & (at % spread == 0)).sum())


def operations_of(
    module: HloModule, computation: Computation, instruction: Instruction
) -> Iterator[tuple[Computation, Instruction]]:
    """Yields an instruction with its computation, or those that a fusion holds."""
    if instruction.opcode != "fusion":
        yield computation, instruction
        return
    fused = module.computations[instruction.called["calls"]]
    for found in fused.values():
        yield from operations_of(module, fused, found)
