"""The second half of a gated FFN: activation, product with `up`, matrix, and a gradient kernel."""

from collections.abc import Callable
from typing import Final, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.kernels.geglu_gradients import geglu_gradients
from bert_jax.model.architecture import Activation
from bert_jax.model.elementwise import gelu_erf, gelu_erf_and_slope, silu_and_slope
from bert_jax.model.layers import ParamUse, placed
from bert_jax.parallel.gradient_sum import summed_shares

Array = jax.Array


class _Gate(NamedTuple):
    """An activation in float32, and a function that returns it with its derivative."""

    value: Callable[[Array], Array]
    with_slope: Callable[[Array], tuple[Array, Array]]


GATES: Final[dict[Activation, _Gate]] = {
    "gelu_erf": _Gate(gelu_erf, gelu_erf_and_slope),
    "silu": _Gate(lambda x: silu_and_slope(x.astype(jnp.float32))[0], silu_and_slope),
}
"""The activations that the kernel computes."""


def gated_project(
    gate: Array, up: Array, kernel: Array, *, activation: Activation, use: ParamUse
) -> Array:
    """Returns ``(activation(gate) · up) · kernel``, in the dtype of `gate`.

    The backward pass recomputes the activation, one of `GATES`. `gate` and `up` are [..., F];
    `kernel` is float32 [F, D].
    """
    out: Array = _project(gate, up, kernel, activation, use)
    return out


def _forward(
    gate: Array, up: Array, kernel: Array, activation: Activation, use: ParamUse
) -> tuple[Array, tuple[Array, Array, Array]]:
    kernel = placed(kernel, gate.dtype, use.axes)
    inner = _rows((GATES[activation].value(gate) * up.astype(jnp.float32)).astype(gate.dtype))
    out = jnp.matmul(inner, kernel, preferred_element_type=gate.dtype)
    return out.reshape(*gate.shape[:-1], -1), (gate, up, kernel)


def _backward(
    activation: Activation,
    use: ParamUse,
    kept: tuple[Array, Array, Array],
    gradient: Array,
) -> tuple[Array, Array, Array]:
    gate, up, kernel = kept
    of_gate, of_up, shares = geglu_gradients(
        *(_rows(gradient), kernel, _rows(gate), _rows(up)), activation=GATES[activation].with_slope
    )
    of_kernel = summed_shares(shares.astype(use.gradient_dtype), use.stored)
    return of_gate.reshape(gate.shape), of_up.reshape(up.shape), of_kernel.astype(jnp.float32)


def _rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


_project = jax.custom_vjp(lambda *arguments: _forward(*arguments)[0], nondiff_argnums=(3, 4))
_project.defvjp(_forward, _backward)
