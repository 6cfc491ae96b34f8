"""A product and the gradient of GELU in one kernel: ``(g · kᵀ) · gelu'(x)``.

The kernel also sums the result over rows, which is the gradient of a bias. With XLA, the slope of
GELU and the sum add 50% to the cycles of the product. Here, the vector units compute them during
the product. Tests compare the results with `bert_jax.model.elementwise`.
"""

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.typing import DTypeLike

from bert_jax.kernels.pallas_call import (
    LANES,
    PACKED,
    SUBLANES,
    launch,
    on_each_device,
    vector_dtype,
)
from bert_jax.parallel.sharding_rules import LogicalAxes

Array = jax.Array

# Rows and columns of one product. It overlaps with the epilogue of the previous product.
_ROWS: Final = 256
_COLUMNS: Final = (256, LANES)
# Maximum size of a block, and maximum bytes of its four arrays. VMEM has two buffers of each.
_MOST_ROWS: Final = 1024
_MOST_COLUMNS: Final = 768
_BYTES: Final = 6 * 2**20

_AXES: Final[dict[str, LogicalAxes]] = {
    "gradient": ("batch", "hidden"),
    "kernel": ("mlp", "hidden"),
    "x": ("batch", "mlp"),
    "sums": ("batch", "rest", "mlp"),
}


def fits(*, inputs: int, outputs: int) -> bool:
    """Returns whether the kernel supports a matrix [inputs, outputs] on a device."""
    smallest = LANES * (inputs + outputs) + 2 * LANES * LANES
    return inputs % LANES == outputs % LANES == 0 and 2 * smallest <= _BYTES


class _Blocks(NamedTuple):
    """Sizes of products and blocks: (rows, columns)."""

    product: tuple[int, int]  # size of one product
    block: tuple[int, int]  # size of an invocation's block
    grid: tuple[int, int]  # number of blocks along columns and rows
    padded: int  # rows, padding included


def _blocks(*, rows: int, width: int, inner: int, itemsize: int) -> _Blocks:
    """Returns the largest blocks that fit into VMEM. Prefers more rows to more columns.

    The gradient is [rows, width]. The input of GELU is [rows, inner] with `itemsize` bytes per
    element.
    """
    down = min(_ROWS, -(-rows // PACKED) * PACKED)
    across = next(count for count in _COLUMNS if inner % count == 0)
    padded = -(-rows // down) * down
    choices = [
        (of_rows, of_columns)
        for of_columns in range(across, max(_MOST_COLUMNS, across) + 1, across)
        for of_rows in range(down, max(_MOST_ROWS, down) + 1, down)
        if inner % of_columns == padded % of_rows == 0
        and itemsize * (of_rows * width + of_columns * width + 2 * of_rows * of_columns) <= _BYTES
    ]
    block = max(choices, default=(down, across))
    return _Blocks((down, across), block, (inner // block[1], padded // block[0]), padded)


def gelu_product(
    gradient: Array, kernel: Array, x: Array, *, slope: Callable[[Array], Array]
) -> tuple[Array, Array]:
    """Returns ``(gradient · kernelᵀ) · slope(x)`` [N, F] and its sum over rows, float32 [F].

    Args:
        gradient: gradient [N, D] of the product ``gelu(x) · kernel``.
        kernel: [F, D].
        x: input of GELU, [N, F]. All arrays have the same dtype.
        slope: derivative of GELU as float32, for float32 or for the dtype of `x`.
    """
    found, sums = on_each_device(
        functools.partial(_call, slope=slope),
        (gradient, kernel, x),
        axes=_AXES,
        arguments=("gradient", "kernel", "x"),
        results=("x", "sums"),
    )
    return found, sums.sum((0, 1))


def _call(
    gradient: Array, kernel: Array, x: Array, *, slope: Callable[[Array], Array]
) -> tuple[Array, ...]:
    (rows, width), inner = gradient.shape, len(kernel)
    cut = _blocks(rows=rows, width=width, inner=inner, itemsize=x.dtype.itemsize)
    # The gradients of padding rows are zero, so they do not change sums.
    gradient, x = (jnp.pad(each, ((0, cut.padded - rows), (0, 0))) for each in (gradient, x))
    of_rows, of_columns = cut.block
    made = (
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        jax.ShapeDtypeStruct((cut.grid[1], SUBLANES, inner), jnp.float32),
    )
    found, sums = launch(
        functools.partial(_body, cut=cut, slope=slope, dtype=vector_dtype(x.dtype)),
        *(gradient, kernel, x),
        name="gelu_product",
        made=made,
        order=("parallel", "parallel"),
        flops=2 * cut.padded * width * inner,
        transcendentals=cut.padded * inner,
        grid=cut.grid,
        in_specs=[
            pl.BlockSpec((of_rows, width), lambda f, n: (n, 0)),
            pl.BlockSpec((of_columns, width), lambda f, n: (f, 0)),
            pl.BlockSpec((of_rows, of_columns), lambda f, n: (n, f)),
        ],
        out_specs=[
            pl.BlockSpec((of_rows, of_columns), lambda f, n: (n, f)),
            pl.BlockSpec((1, SUBLANES, of_columns), lambda f, n: (n, 0, f)),
        ],
    )
    return found[:rows], sums


def _body(
    gradient: Any,
    kernel: Any,
    x: Any,
    out: Any,
    sums: Any,
    *,
    cut: _Blocks,
    slope: Callable[[Array], Array],
    dtype: DTypeLike,
) -> None:
    """Computes the products of a block. The unrolled loop lets the compiler overlap them."""
    rows, columns = cut.product
    for first in range(0, cut.block[1], columns):
        across = slice(first, first + columns)
        total = jnp.zeros((SUBLANES, columns), jnp.float32)
        for top in range(0, cut.block[0], rows):
            down = slice(top, top + rows)
            contracted = (((1,), (1,)), ((), ()))
            found = jax.lax.dot_general(
                gradient[down], kernel[across], contracted, preferred_element_type=jnp.float32
            )
            found *= slope(x[down, across].astype(dtype))
            out[down, across] = found.astype(out.dtype)
            total += found.reshape(-1, SUBLANES, columns).sum(axis=0)
        sums[0, :, across] = total
