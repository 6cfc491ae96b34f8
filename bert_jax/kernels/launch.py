"""How a kernel runs: compiled on a TPU, interpreted elsewhere, for tests."""

from collections.abc import Callable
from typing import Any, Literal

import jax
from jax.experimental.pallas import tpu as pltpu

Array = jax.Array
# Of an axis of the grid: whether cores may share it.
Order = Literal["parallel", "arbitrary"]


def launch(call: Callable[..., Any], *arrays: Array, order: tuple[Order, ...]) -> Any:
    """Returns the results of a kernel.

    `call`: `pl.pallas_call` with all but how it runs; `order`: of each axis of its grid.
    """
    params = pltpu.CompilerParams(dimension_semantics=order)
    return jax.lax.platform_dependent(
        *arrays, tpu=call(compiler_params=params), default=call(interpret=True)
    )
