"""GELU, LayerNorm and RMSNorm with hand-written gradients, in float32 for inputs of any dtype.

The gradients take a third of the operations of JAX's gradients. The gradient of LayerNorm, whose
time is mostly memory reads, reads its input once instead of three times.
"""

import functools
import math
from typing import Final

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

Array = jax.Array

_LINEAR: Final = math.sqrt(2 / math.pi)
_CUBIC: Final = 0.044715 * _LINEAR


@jax.custom_vjp
def gelu_tanh(x: Array) -> Array:
    """Returns ``x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`` in the dtype of `x`.

    Source: arXiv 1606.08415, section 2; `gelu` in google-research/bert `modeling.py`.
    """
    wide = x.astype(jnp.float32)
    half = 0.5 * wide
    return (half + half * jnp.tanh(wide * (_LINEAR + _CUBIC * (wide * wide)))).astype(x.dtype)


def _gelu_forward(x: Array) -> tuple[Array, Array]:
    return gelu_tanh(x), x


def gelu_slope(x: Array) -> Array:
    """Returns the derivative of `gelu_tanh`, float32.

    It is computed in the dtype of `x`, except for the last sum. In bfloat16, the error is at most
    0.01, and 0.2% of the slope's size on average.
    """
    square = x * x
    tanh = jnp.tanh(x * (_LINEAR + _CUBIC * square))
    # d tanh(u) = (1 − tanh²) u'
    odd = 0.5 * tanh + (1 - tanh * tanh) * (x * (0.5 * _LINEAR + 1.5 * _CUBIC * square))
    return 0.5 + odd.astype(jnp.float32)


def _gelu_backward(x: Array, gradient: Array) -> tuple[Array]:
    # Optimization barrier: without it XLA would store tanh, which costs more than to recompute it.
    x = jax.lax.optimization_barrier(x)
    slope = gelu_slope(x.astype(jnp.float32))
    return ((gradient.astype(jnp.float32) * slope).astype(x.dtype),)


gelu_tanh.defvjp(_gelu_forward, _gelu_backward)


# artanh(2 Φ(x) − 1) / x as a polynomial of x², lowest power first; Φ is the normal distribution
# function. Fitted so that the largest error of Φ is smallest: 3e-8, and 1.4e-6 for bfloat16.
_OF_NORMAL: Final = (
    *(7.97884941e-01, 3.63330844e-02, -3.25947451e-05, -5.53063164e-05),
    *(3.96477307e-06, -1.32266271e-07, 1.75627717e-09),
)
_OF_NORMAL_BF16: Final = (
    *(7.97869712e-01, 3.63922864e-02, -8.78266704e-05),
    *(-3.66934207e-05, 1.42500422e-06),
)


def gelu_erf(x: Array) -> Array:
    """Returns ``x · Φ(x)`` in float32, for TPUs.

    The error is at most 2e-7 · (1 + |x|). For a bfloat16 `x`, it is at most 6e-6, less than the
    rounding of a result above 0.003. Its polynomial is short enough for XLA to compute GELU inside
    the product that reads it. With one more term, XLA would write GELU to memory first.
    """
    wide = x.astype(jnp.float32)
    terms = _OF_NORMAL_BF16 if x.dtype == jnp.bfloat16 else _OF_NORMAL
    return wide * (0.5 + _odd_normal(wide, wide * wide, terms))


def gelu_erf_and_slope(wide: Array) -> tuple[Array, Array]:
    """Returns ``x · Φ(x)`` and its derivative at float32 values, for TPUs.

    The error is at most 2e-7 · (1 + |x|) for the value, and 3e-7 for the derivative: a few float32
    roundings.
    """
    return wide * (0.5 + _odd_normal(wide, wide * wide, _OF_NORMAL)), gelu_erf_slope(wide)


def gelu_erf_slope(x: Array) -> Array:
    """Returns the derivative of ``x · Φ(x)``, float32, for TPUs.

    It is computed in the dtype of `x`, except for the last sum. In bfloat16, the error is at most
    0.006, and 0.2% of the slope's size on average.
    """
    square = x * x
    terms = _OF_NORMAL_BF16 if x.dtype == jnp.bfloat16 else _OF_NORMAL
    density = jnp.exp(-0.5 * square) * (1 / math.sqrt(2 * math.pi))
    return 0.5 + (_odd_normal(x, square, terms) + x * density).astype(jnp.float32)


def _odd_normal(x: Array, square: Array, terms: tuple[float, ...]) -> Array:
    """Returns Φ − ½, from the hardware's tanh, which takes half of the operations of erf."""
    total = jnp.full_like(square, terms[-1])
    for each in terms[-2::-1]:
        total = total * square + each
    return 0.5 * jnp.tanh(x * total)


def silu_and_slope(wide: Array) -> tuple[Array, Array]:
    """Returns ``x / (1 + exp(−x))`` and its derivative at float32 values, for TPUs."""
    share = 0.5 + 0.5 * jnp.tanh(0.5 * wide)
    value = wide * share
    return value, share + value * (1 - share)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def layer_norm(x: Array, scale: Array, bias: Array, eps: float, dtype: DTypeLike) -> Array:
    """Returns ``(x − mean) / √(variance + eps) · scale + bias`` over the last axis, in `dtype`.

    `x` is [..., D]; `scale` and `bias` are float32 [D]. Source: arXiv 1607.06450.
    """
    return _norm_forward(x, scale, bias, eps, dtype)[0]


def _norm_forward(
    x: Array, scale: Array, bias: Array, eps: float, dtype: DTypeLike
) -> tuple[Array, tuple[Array, ...]]:
    wide = x.astype(jnp.float32)
    mean = wide.mean(axis=-1, keepdims=True)
    # A second pass is necessary: if the mean is large, E[x²] − E[x]² cancels.
    variance = jnp.square(wide - mean).mean(axis=-1, keepdims=True)
    inverse = jax.lax.rsqrt(variance + eps)
    y = (wide - mean) * inverse * scale + bias
    return y.astype(dtype), (x, mean, inverse, scale)


def _norm_backward(
    eps: float, dtype: DTypeLike, kept: tuple[Array, ...], gradient: Array
) -> tuple[Array, Array, Array]:
    del eps, dtype
    x, mean, inverse, scale = kept
    rows = tuple(range(x.ndim - 1))
    wide = gradient.astype(jnp.float32)
    normed = (x.astype(jnp.float32) - mean) * inverse
    scaled = wide * scale
    along = scaled.mean(axis=-1, keepdims=True)
    across = (scaled * normed).mean(axis=-1, keepdims=True)
    of_x = inverse * (scaled - along - normed * across)
    return of_x.astype(x.dtype), (wide * normed).sum(rows), wide.sum(rows)


layer_norm.defvjp(_norm_forward, _norm_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def rms_norm(x: Array, scale: Array, eps: float, dtype: DTypeLike) -> Array:
    """Returns ``x / √(mean of x² + eps) · scale`` over the last axis, in `dtype`.

    `x` is [..., D]; `scale` is float32 [D]. Source: arXiv 1910.07467.
    """
    return _rms_forward(x, scale, eps, dtype)[0]


def _rms_forward(
    x: Array, scale: Array, eps: float, dtype: DTypeLike
) -> tuple[Array, tuple[Array, ...]]:
    wide = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.square(wide).mean(axis=-1, keepdims=True) + eps)
    return (wide * inverse * scale).astype(dtype), (x, inverse, scale)


def _rms_backward(
    eps: float, dtype: DTypeLike, kept: tuple[Array, ...], gradient: Array
) -> tuple[Array, Array]:
    del eps, dtype
    x, inverse, scale = kept
    wide = gradient.astype(jnp.float32)
    normed = x.astype(jnp.float32) * inverse
    scaled = wide * scale
    across = (scaled * normed).mean(axis=-1, keepdims=True)
    of_x = inverse * (scaled - normed * across)
    return of_x.astype(x.dtype), (wide * normed).sum(tuple(range(x.ndim - 1)))


rms_norm.defvjp(_rms_forward, _rms_backward)
