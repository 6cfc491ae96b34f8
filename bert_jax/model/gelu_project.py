"""The second half of an FFN: GELU and a product, with a kernel for the gradient."""

from collections.abc import Callable
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.kernels.gelu_product import gelu_product
from bert_jax.model.architecture import Activation
from bert_jax.model.elementwise import gelu_erf, gelu_erf_slope, gelu_slope, gelu_tanh
from bert_jax.model.layers import ParamUse, gradient_of_kernel, placed

Array = jax.Array


class Gelu(NamedTuple):
    """A form of GELU."""

    value: Callable[[Array], Array]  # computed in float32, returned in the dtype of its input
    slope: Callable[[Array], Array]  # derivative, float32, computed in the dtype of its input


GELUS: Final[dict[Activation, Gelu]] = {
    "gelu_tanh": Gelu(gelu_tanh, gelu_slope),
    "gelu_erf": Gelu(lambda x: gelu_erf(x).astype(x.dtype), gelu_erf_slope),
}
"""The forms of GELU that the kernel supports, by activation."""


def gelu_project(y: Array, bias: Array, kernel: Array, *, gelu: Gelu, use: ParamUse) -> Array:
    """Returns ``gelu(y + bias) · kernel``, in the dtype of `y`.

    The backward pass recomputes GELU: on a TPU, this is cheaper than reading it. `y` is [..., F];
    `bias` [F] and `kernel` [F, D] are float32.
    """
    out: Array = _project(y, bias, kernel, gelu, use)
    return out


def _forward(
    y: Array, bias: Array, kernel: Array, gelu: Gelu, use: ParamUse
) -> tuple[Array, tuple[Array, Array]]:
    # Keep the shape of the preceding product, so that XLA fuses the sum into its epilogue.
    x = y + bias.astype(y.dtype)
    kernel = placed(kernel, x.dtype, use.axes)
    rows = gelu.value(_rows(x))
    out = jnp.matmul(rows, kernel, preferred_element_type=x.dtype)
    return out.reshape(*y.shape[:-1], -1), (x, kernel)


def _backward(
    gelu: Gelu, use: ParamUse, kept: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array, Array]:
    # Optimization barrier: without it XLA's CSE would keep GELU in memory.
    (x, kernel), gradient = jax.lax.optimization_barrier((kept, gradient))
    rows, gradient = _rows(x), _rows(gradient)
    of_rows, of_bias = gelu_product(gradient, kernel, rows, slope=gelu.slope)
    of_kernel = gradient_of_kernel(gelu.value(rows), gradient, use)
    return of_rows.reshape(x.shape), of_bias, of_kernel


def _rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


_project = jax.custom_vjp(lambda *arguments: _forward(*arguments)[0], nondiff_argnums=(3, 4))
_project.defvjp(_forward, _backward)
