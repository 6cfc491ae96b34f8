"""The gradient of GELU behind a product, in the product that gives it: ``(g · kᵀ) · gelu'(x)``.

And its sum over rows, the gradient of a bias. XLA schedules GELU's slope and the sum beside the
product for half as many cycles again; here the vector units work while the matrix unit does. Held
to `bert_jax.model.elementwise`.
"""

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bert_jax.kernels.launch import LANES, PACKED, SUBLANES, launch, on_each_device
from bert_jax.parallel.rules import LogicalAxes

Array = jax.Array

# Rows and columns of a product, beside which another product's epilogue fits.
_ROWS: Final = 256
_COLUMNS: Final = (256, LANES)
# Sizes of a block. Each of its four arrays is in VMEM twice.
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
    """Returns whether the kernel takes a device's matrix of `inputs` rows, `outputs` columns."""
    smallest = LANES * (inputs + outputs) + 2 * LANES * LANES
    return inputs % LANES == outputs % LANES == 0 and 2 * smallest <= _BYTES


class _Blocks(NamedTuple):
    """How a device's product is cut: rows and columns of each."""

    product: tuple[int, int]  # multiplied at a time
    block: tuple[int, int]  # seen by one run of the kernel
    grid: tuple[int, int]  # blocks of columns, and of rows
    padded: int  # rows in the kernel


def _blocks(*, rows: int, width: int, inner: int, itemsize: int) -> _Blocks:
    """Returns blocks with as many rows as fit, rows before columns.

    `rows` × `width` is the size of a gradient; GELU was taken of `inner` columns of `itemsize`
    bytes.
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
        gradient: [N, D], of the product ``gelu(x) · kernel``.
        kernel: [F, D].
        x: [N, F]; all three in one dtype, which is the result's.
        slope: the derivative of GELU, of float32.
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
    # Rows of zeros have gradients of zeros, and add nothing to sums.
    gradient, x = (jnp.pad(each, ((0, cut.padded - rows), (0, 0))) for each in (gradient, x))
    of_rows, of_columns = cut.block
    made = (
        jax.ShapeDtypeStruct(x.shape, x.dtype),
        jax.ShapeDtypeStruct((cut.grid[1], SUBLANES, inner), jnp.float32),
    )
    found, sums = launch(
        functools.partial(_body, cut=cut, slope=slope),
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
) -> None:
    """Products are written out one after the other: so the compiler fills one with another."""
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
            found *= slope(x[down, across].astype(jnp.float32))
            out[down, across] = found.astype(out.dtype)
            total += found.reshape(-1, SUBLANES, columns).sum(axis=0)
        sums[0, :, across] = total
