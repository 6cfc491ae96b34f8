"""The kernels around LayerNorm themselves: what one run of each does with its rows and tokens.

A loop over chunks of tokens: numbers of a chunk stay in registers from where they are read to where
they are written, and sums along a token, which take long to come, are those of many tokens at once.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from bert_jax.kernels.norm_shape import CHUNK, Shape
from bert_jax.kernels.random_bits import kept
from bert_jax.kernels.registers import LANES, SUBLANES

Array = jax.Array
Chunk: TypeAlias = tuple[Any, Any]  # its row in the block, its tokens there


def forward_kernel(x: Any, scale: Any, bias: Any, out: Any, *, shape: Shape) -> None:
    """Mean and variance are computed as in `bert_jax.model.elementwise`."""

    def of_chunk(at: Chunk, _: None) -> None:
        centred, inverse = _statistics(x[at], shape)
        out[at] = (centred * inverse * scale[...] + bias[...]).astype(out.dtype)

    _for_each_chunk(of_chunk, None, shape)


def backward_kernel(gradient: Any, x: Any, scale: Any, *refs: Any, shape: Shape) -> None:
    """Sums are of all tokens of a block: gradients of scale and bias, and of the term's bias.

    `refs`: dropout's factors, of rows and of columns; results; and a place for turned factors.
    """
    count = shape.factors
    down, across, refs = refs[:count], refs[count:][: shape.across], refs[count + shape.across :]
    results, turned = refs[: len(refs) - count], refs[len(refs) - count :]
    out, *dropped, sums = results
    for words, one in zip(down, turned, strict=True):
        for row in range(shape.rows):
            lanes = jnp.broadcast_to(words[row], (LANES, words.shape[-1]))
            one[row] = jnp.transpose(lanes)

    def of_chunk(at: Chunk, total: tuple[Array, ...]) -> tuple[Array, ...]:
        of_out = gradient[at].astype(jnp.float32)
        centred, inverse = _statistics(x[at], shape)
        normed = centred * inverse
        scaled = of_out * scale[...]
        of_sum = inverse * (scaled - _mean(scaled) - normed * _mean(scaled * normed))
        out[at] = of_sum.astype(out.dtype)
        of_term = of_sum
        for each in dropped:
            rows = tuple(_all_columns(one[at], shape) for one in turned)
            keep = kept(rows, tuple(one[at[0]] for one in across))
            of_term = jnp.where(keep, of_sum * shape.scale_up, 0.0)
            each[at] = of_term.astype(each.dtype)
        found = (of_out * normed, of_out, of_term)
        return tuple(so_far + _folded(new) for so_far, new in zip(total, found, strict=True))

    none = (jnp.zeros((SUBLANES, shape.width), jnp.float32),) * sums.shape[0]
    for at, total in enumerate(_for_each_chunk(of_chunk, none, shape)):
        sums[at, 0, 0] = total.sum(axis=0, keepdims=True)


def _for_each_chunk(body: Callable[[Chunk, Any], Any], start: Any, shape: Shape) -> Any:
    """Returns what `body`, given where a chunk is and what it returned last, returns last."""
    of_row = shape.tile // CHUNK

    def one(number: Array, carried: Any) -> Any:
        first = pl.multiple_of(jax.lax.rem(number, of_row) * CHUNK, CHUNK)
        row = jax.lax.div(number, of_row) if shape.rows > 1 else 0
        return body((row, pl.ds(first, CHUNK)), carried)

    return jax.lax.fori_loop(0, shape.chunks, one, start, unroll=shape.side_by_side)


def _statistics(x: Array, shape: Shape) -> tuple[Array, Array]:
    """Returns the tokens without their means, float32, and the inverses of their deviations."""
    wide = x.astype(jnp.float32)
    centred = wide - _mean(wide)
    return centred, jax.lax.rsqrt(_mean(jnp.square(centred)) + shape.eps)


def _mean(x: Array) -> Array:
    return x.sum(axis=-1, keepdims=True) * (1 / x.shape[-1])


def _all_columns(lines: Array, shape: Shape) -> Array:
    return jnp.concatenate([lines] * (shape.width // LANES), axis=1)


def _folded(x: Array) -> Array:
    """Returns sums of whole registers; those inside of one are left to the end."""
    return x.reshape(-1, SUBLANES, x.shape[-1]).sum(axis=0)
