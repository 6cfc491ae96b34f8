"""The second half of an FFN: GELU and a product, with a kernel for the gradient."""

import jax
import jax.numpy as jnp

from bert_jax.kernels.gelu_product import gelu_product
from bert_jax.model.elementwise import gelu_slope, gelu_tanh
from bert_jax.model.layers import ParamUse, gradient_of_kernel, placed

Array = jax.Array


def gelu_project(y: Array, bias: Array, kernel: Array, *, use: ParamUse) -> Array:
    """Returns ``gelu_tanh(y + bias) · kernel``, in the dtype of `y`.

    The backward pass recomputes GELU: on a TPU, this is cheaper than reading it. `y` is [..., F];
    `bias` [F] and `kernel` [F, D] are float32.
    """
    out: Array = _project(y, bias, kernel, use)
    return out


def _forward(
    y: Array, bias: Array, kernel: Array, use: ParamUse
) -> tuple[Array, tuple[Array, Array]]:
    # Keep the shape of the preceding product, so that XLA fuses the sum into its epilogue.
    x = y + bias.astype(y.dtype)
    kernel = placed(kernel, x.dtype, use.axes)
    rows = gelu_tanh(_rows(x))
    out = jnp.matmul(rows, kernel, preferred_element_type=x.dtype)
    return out.reshape(*y.shape[:-1], -1), (x, kernel)


def _backward(
    use: ParamUse, kept: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array, Array]:
    # Optimization barrier: without it XLA's CSE would keep GELU in memory.
    (x, kernel), gradient = jax.lax.optimization_barrier((kept, gradient))
    rows, gradient = _rows(x), _rows(gradient)
    of_rows, of_bias = gelu_product(gradient, kernel, rows, slope=gelu_slope)
    of_kernel = gradient_of_kernel(gelu_tanh(rows), gradient, use)
    return of_rows.reshape(x.shape), of_bias, of_kernel


def _rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


_project = jax.custom_vjp(lambda *arguments: _forward(*arguments)[0], nondiff_argnums=(3,))
_project.defvjp(_forward, _backward)
