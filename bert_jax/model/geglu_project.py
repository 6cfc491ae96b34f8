"""The second half of a GeGLU: GELU, a product with `up`, and a matrix, with a gradient kernel."""

import jax
import jax.numpy as jnp

from bert_jax.kernels.geglu_gradients import geglu_gradients
from bert_jax.model.elementwise import gelu_erf, gelu_erf_and_slope
from bert_jax.model.layers import ParamUse, placed
from bert_jax.parallel.gradient_sum import summed_shares

Array = jax.Array


def geglu_project(gate: Array, up: Array, kernel: Array, *, use: ParamUse) -> Array:
    """Returns ``(gelu_erf(gate) · up) · kernel``, in the dtype of `gate`.

    The backward pass recomputes GELU. `gate` and `up` are [..., F]; `kernel` is float32 [F, D].
    """
    out: Array = _project(gate, up, kernel, use)
    return out


def _forward(
    gate: Array, up: Array, kernel: Array, use: ParamUse
) -> tuple[Array, tuple[Array, Array, Array]]:
    kernel = placed(kernel, gate.dtype, use.axes)
    inner = _rows((gelu_erf(gate) * up.astype(jnp.float32)).astype(gate.dtype))
    out = jnp.matmul(inner, kernel, preferred_element_type=gate.dtype)
    return out.reshape(*gate.shape[:-1], -1), (gate, up, kernel)


def _backward(
    use: ParamUse, kept: tuple[Array, Array, Array], gradient: Array
) -> tuple[Array, Array, Array]:
    gate, up, kernel = kept
    of_gate, of_up, shares = geglu_gradients(
        _rows(gradient), kernel, _rows(gate), _rows(up), activation=gelu_erf_and_slope
    )
    of_kernel = summed_shares(shares.astype(use.gradient_dtype), use.stored)
    return of_gate.reshape(gate.shape), of_up.reshape(up.shape), of_kernel.astype(jnp.float32)


def _rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


_project = jax.custom_vjp(lambda *arguments: _forward(*arguments)[0], nondiff_argnums=(3,))
_project.defvjp(_forward, _backward)
