"""FLOPs of one product, with padding and dilation left out."""

import math
import re
from collections.abc import Mapping

import numpy as np

from bert_jax.planning.compilation.hlo import Computation, Instruction

_WINDOW = re.compile(r"\bwindow=\{([^}]*)\}")
_LABELS = re.compile(r"\bdim_labels=(\w+)_(\w+)->(\w+)")
_BATCH_GROUPS = re.compile(r"\bbatch_group_count=(\d+)")
_CONTRACTED = re.compile(r"\blhs_contracting_dims=\{([\d,]*)\}")


def product_flops(computation: Computation, instruction: Instruction) -> int:
    """Returns the FLOPs of a product, two for a multiplication and an addition; 0 of others."""
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
    """Returns how often an element of the window meets one of the input, and not padding."""
    names = ("size", "stride", "rhs_dilate", "lhs_dilate")
    size, stride, apart, spread = (int(window.get(name, "1")) for name in names)
    low = int(window.get("pad", "0_0").split("_")[0])
    at = np.arange(outputs)[:, None] * stride - low + np.arange(size)[None, :] * apart
    return int(((at >= 0) & (at <= (inputs - 1) * spread) & (at % spread == 0)).sum())
