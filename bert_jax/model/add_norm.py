"""LayerNorm or RMSNorm next to a residual sum.

`add_norm` is the end of each half of a post-LayerNorm layer: bias, dropout, residual sum and
LayerNorm. `pre_norm` is the start of each half of a pre-LayerNorm layer.

With the fused kernels, the forward and the backward pass each read the residual sum once. XLA fuses
bias, dropout and sum into the epilogue of the preceding product.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.kernels.norm import Dropped, fits, norm_gradients, normalised, pre_norm_gradients
from bert_jax.model.dropout import TileFactors, drop, masked
from bert_jax.model.elementwise import layer_norm, rms_norm
from bert_jax.model.layers import Dense, LayerNorm, RmsNorm, ScaledNorm

Array = jax.Array


def add_norm(
    residual_BLD: Array,
    product_BLD: Array,
    *,
    dense: Dense,
    norm: LayerNorm,
    rate: float,
    factors: TileFactors | None,
) -> Array:
    """Returns ``norm(residual + dropout(product + bias))``, [B, L, D], in the execution's dtype.

    `product_BLD` is the product of `dense` without its bias. `factors` are the hash factors of
    dropout, see `tile_factors`, or None in evaluation.
    """
    if not norm.fused:
        y_BLD = drop(dense.with_bias(product_BLD), factors, rate)
        return norm(residual_BLD + y_BLD)
    vectors = _Vectors(dense.bias[...], norm.scale[...], norm.bias[...])
    return _add_norm(residual_BLD, product_BLD, vectors, factors, rate, norm.eps)


class _Vectors(NamedTuple):
    """Bias of the dense layer and parameters of LayerNorm, or their gradients: float32 [D]."""

    term_bias: Array
    scale: Array
    bias: Array


def _forward(
    residual: Array,
    product: Array,
    vectors: _Vectors,
    factors: TileFactors | None,
    rate: float,
    eps: float,
) -> tuple[Array, tuple[Array, Array, TileFactors | None]]:
    term = product + vectors.term_bias.astype(product.dtype)
    if factors is not None:
        term = masked(term, factors, rate)
    x = residual + term
    return normalised(x, vectors.scale, vectors.bias, eps=eps), (x, vectors.scale, factors)


def _backward(
    rate: float, eps: float, kept: tuple[Array, Array, TileFactors | None], gradient: Array
) -> tuple[Array, Array, _Vectors, None]:
    x, scale, factors = kept
    dropped = None
    if factors is not None:
        dropped = Dropped(*factors, scale_up=1 / (1 - rate))
    found = norm_gradients(gradient, x, scale, eps=eps, dropped=dropped)
    vectors = _Vectors(found.of_term_bias, found.of_scale, found.of_bias)
    return found.of_sum, found.of_term, vectors, None


_add_norm = jax.custom_vjp(lambda *arguments: _forward(*arguments)[0], nondiff_argnums=(4, 5))
_add_norm.defvjp(_forward, _backward)


def embedding_norm(x_BLD: Array, *, norm: ScaledNorm, training: bool) -> Array:
    """Returns ``norm(x)`` for float32 embeddings, [B, L, D], in the execution's dtype.

    Except in training, the fused kernel reads embeddings that are rounded to this dtype, as it
    reads residual sums. XLA would make four passes over float32 numbers.
    """
    if training or not norm.fused or not fits(norm.width):
        return norm(x_BLD)
    x_BLD = x_BLD.astype(norm.dtype)
    if not isinstance(norm, LayerNorm):
        return pre_norm(x_BLD, norm.scale[...], norm=norm)[1]
    vectors = _Vectors(jnp.zeros_like(norm.bias[...]), norm.scale[...], norm.bias[...])
    return _add_norm(x_BLD, jnp.zeros_like(x_BLD), vectors, None, 0.0, norm.eps)


def pre_norm(x_BLD: Array, scale: Array, *, norm: ScaledNorm) -> tuple[Array, Array]:
    """Returns ``(x, norm(x))``, [B, L, D], where `scale` replaces the scale of `norm`.

    `x_BLD` has the execution's dtype. Use the returned `x` for the residual sum: the backward
    kernel then adds the two gradients of `x`.
    """
    rms = isinstance(norm, RmsNorm)
    if norm.fused:
        return _pre_norm(x_BLD, scale, norm.eps, rms)
    if rms:
        return x_BLD, rms_norm(x_BLD, scale, norm.eps, norm.dtype)
    return x_BLD, layer_norm(x_BLD, scale, jnp.zeros_like(scale), norm.eps, norm.dtype)


def _pre_forward(
    x: Array, scale: Array, eps: float, rms: bool
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    return (x, normalised(x, scale, None, eps=eps, rms=rms)), (x, scale)


def _pre_backward(
    eps: float, rms: bool, kept: tuple[Array, Array], gradients: tuple[Array, Array]
) -> tuple[Array, Array]:
    of_x, of_normed = gradients
    return pre_norm_gradients(of_normed, *kept, of_x, eps=eps, rms=rms)


_pre_norm = jax.custom_vjp(lambda *arguments: _pre_forward(*arguments)[0], nondiff_argnums=(2, 3))
_pre_norm.defvjp(_pre_forward, _pre_backward)
