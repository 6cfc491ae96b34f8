"""The gradients of ``(activation(gate) · up) · kernel`` in one kernel.

The kernel multiplies the gradient by the transposed matrix, and computes the activation again while
the matrix units work: XLA would compute it in a pass of its own, and write it for the product with
the gradient, which is the gradient of the matrix. Tests compare the results with plain JAX.
"""

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.kernels.attention_kernels import dot
from bert_jax.kernels.pallas_call import LANES, PACKED, cores_of_device, launch, on_each_device
from bert_jax.parallel.sharding_rules import LogicalAxes

Array = jax.Array
# Returns an activation and its derivative, for float32.
Activation = Callable[[Array], tuple[Array, Array]]

_ROWS: Final = 256  # of one product; it overlaps with the activation of the previous product
_MOST_ROWS: Final = 1024
_MOST_COLUMNS: Final = 384
_BYTES: Final = 14 * 2**20  # maximum bytes of all blocks; VMEM has two buffers of each
_F32: Final = 4
# Maximum hidden size. In bfloat16, the smallest blocks then take 11 MiB.
WIDEST: Final = 4096

_AXES: Final[dict[str, LogicalAxes]] = {
    "gradient": ("batch", "hidden"),
    "kernel": ("mlp", "hidden"),
    "inner": ("batch", "mlp"),
    "of_kernel": ("batch", "mlp", "hidden"),
}


class _Cut(NamedTuple):
    """Sizes of an invocation's block, and numbers of blocks."""

    rows: int  # of a product
    of_rows: int  # of a block
    of_columns: int  # of a block; the last block may be partly outside the matrix
    grid: tuple[int, int, int]  # parts for a device's cores, blocks along columns, along rows
    padded: int  # rows, padding included


def fits(width: int) -> bool:
    """Returns whether the kernel supports a hidden size. The FFN's width is free."""
    return width % LANES == 0 and width <= WIDEST


def geglu_gradients(
    gradient: Array, kernel: Array, gate: Array, up: Array, *, activation: Activation
) -> tuple[Array, Array, Array]:
    """Returns the gradients of `gate`, `up` and `kernel` for ``(activation(gate) · up) · kernel``.

    The gradient of the matrix, float32 [S, F, D], is not summed over the S devices that split rows.

    Args:
        gradient: gradient of the product, [N, D].
        kernel: [F, D].
        gate: input of the activation, [N, F].
        up: what the activation is multiplied by, [N, F]. All arrays have the same dtype.
        activation: returns the activation and its derivative for float32.
    """
    found: Any = on_each_device(
        functools.partial(_call, activation=activation),
        (gradient, kernel, gate, up),
        axes=_AXES,
        arguments=("gradient", "kernel", "inner", "inner"),
        results=("inner", "inner", "of_kernel"),
    )
    return found


def _held(of_rows: int, of_columns: int, *, width: int, itemsize: int) -> int:
    """Returns the bytes of all blocks in VMEM."""
    of_blocks = itemsize * (of_rows * width + of_columns * width + 4 * of_rows * of_columns)
    scratch = itemsize * of_rows * of_columns
    return 2 * (of_blocks + _F32 * of_columns * width) + scratch


def _cut(*, rows: int, width: int, inner: int, itemsize: int) -> _Cut:
    """Returns the largest blocks that fit into VMEM, with the fewest columns outside the matrix."""
    down = min(_ROWS, -(-rows // PACKED) * PACKED)
    padded = -(-rows // down) * down

    def cost(choice: tuple[int, int]) -> tuple[int, int, int]:
        of_rows, of_columns = choice
        return -(-inner // of_columns) * of_columns, -of_columns, -of_rows

    choices = [
        (of_rows, of_columns)
        for of_columns in range(LANES, _MOST_COLUMNS + 1, LANES)
        for of_rows in range(down, _MOST_ROWS + 1, down)
        if padded % of_rows == 0
        and _held(of_rows, of_columns, width=width, itemsize=itemsize) <= _BYTES
    ]
    of_rows, of_columns = min(choices, key=cost, default=(down, LANES))
    cores, blocks = cores_of_device(), padded // of_rows
    parts = cores if blocks % cores == 0 else 1
    grid = parts, -(-inner // of_columns), blocks // parts
    return _Cut(down, of_rows, of_columns, grid, padded)


def _call(
    gradient: Array, kernel: Array, gate: Array, up: Array, *, activation: Activation
) -> tuple[Array, ...]:
    (rows, width), inner, dtype = gradient.shape, len(kernel), gate.dtype
    cut = _cut(rows=rows, width=width, inner=inner, itemsize=dtype.itemsize)
    # The gradients of padding rows are zero, so they do not change sums.
    padding = ((0, cut.padded - rows), (0, 0))
    gradient, gate, up = (jnp.pad(each, padding) for each in (gradient, gate, up))
    parts, across, steps = cut.grid
    of_inner = pl.BlockSpec((cut.of_rows, cut.of_columns), lambda p, f, n: (p * steps + n, f))
    of_gate, of_up, of_kernel = launch(
        functools.partial(_body, rows=cut.rows, activation=activation),
        *(gradient, kernel, gate, up),
        name="geglu_gradients",
        made=(
            *(jax.ShapeDtypeStruct(gate.shape, dtype),) * 2,
            # Whole blocks: the compiler would copy a part of a block row by row.
            jax.ShapeDtypeStruct((parts, across * cut.of_columns, width), jnp.float32),
        ),
        order=("parallel", "parallel", "arbitrary"),
        flops=2 * 2 * cut.padded * width * inner,
        transcendentals=2 * cut.padded * inner,
        grid=cut.grid,
        in_specs=[
            pl.BlockSpec((cut.of_rows, width), lambda p, f, n: (p * steps + n, 0)),
            pl.BlockSpec((cut.of_columns, width), lambda p, f, n: (f, 0)),
            *(of_inner, of_inner),
        ],
        out_specs=[
            *(of_inner, of_inner),
            pl.BlockSpec((1, cut.of_columns, width), lambda p, f, n: (p, f, 0)),
        ],
        scratch_shapes=[pltpu.VMEM((cut.of_rows, cut.of_columns), dtype)],
    )
    return of_gate[:rows], of_up[:rows], of_kernel[:, :inner].sum(axis=0, keepdims=True)


def _body(
    gradient: Any,
    kernel: Any,
    gate: Any,
    up: Any,
    of_gate: Any,
    of_up: Any,
    of_kernel: Any,
    product: Any,
    *,
    rows: int,
    activation: Activation,
) -> None:
    """Computes the products of a block. The unrolled loops let the compiler overlap them."""

    @pl.when(pl.program_id(2) == 0)
    def _start() -> None:
        of_kernel[...] = jnp.zeros_like(of_kernel)

    for first in range(0, gate.shape[1], LANES):
        across = slice(first, first + LANES)
        for top in range(0, gate.shape[0], rows):
            down = slice(top, top + rows)
            found = dot(gradient[down], kernel[across], 1, 1)
            value, slope = activation(gate[down, across].astype(jnp.float32))
            factor = up[down, across].astype(jnp.float32)
            of_up[down, across] = (found * value).astype(of_up.dtype)
            of_gate[down, across] = (found * factor * slope).astype(of_gate.dtype)
            product[down, across] = (value * factor).astype(product.dtype)
    of_kernel[0] += dot(product[...], gradient[...], 0, 0)
