"""LayerNorm as kernels: one reading of what it normalises, forward and backward.

Backward, dropout of what was normalised and the sums over tokens are in the same pass: XLA makes
four of it. Forward, whatever makes the input is left to XLA, which computes it in the
epilogue of the product before. Held to `bert_jax.model.elementwise` and `bert_jax.model.dropout`.

The kernels are in `norm_bodies`, what they see at a time in `norm_shape`.
"""

import functools
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bert_jax.kernels.launch import launch
from bert_jax.kernels.norm_bodies import backward_kernel, forward_kernel
from bert_jax.kernels.norm_shape import Shape
from bert_jax.kernels.random_bits import Factors, column_factors, line_words, row_factors
from bert_jax.parallel.rules import LogicalAxes, per_shard

Array = jax.Array

# What kernels read and write, and what the axes mean.
_AXES: Final[dict[str, LogicalAxes]] = {
    "tokens": ("batch", "length", "hidden"),
    "vector": ("rest", "hidden"),
    "down": ("batch", "rest", "length"),
    "across": ("batch", "rest", "hidden"),
    "sums": ("rest", "batch", "rest", "rest", "hidden"),
}


class Dropped(NamedTuple):
    """Dropout's factors, as `random_bits.kept` takes them, of arrays [B, L] and [B, D]."""

    rows: Factors
    columns: Factors
    scale_up: float  # of what is kept


class NormGradients(NamedTuple):
    """Gradients around LayerNorm of a sum, one of whose terms went through dropout."""

    of_sum: Array  # [B, L, D]
    of_term: Array  # the same through dropout
    of_scale: Array  # float32 [D], as those below
    of_bias: Array
    of_term_bias: Array  # the sum of `of_term` over tokens


def normalised(x: Array, scale: Array, bias: Array, *, eps: float) -> Array:
    """Returns ``(x − mean) / √(variance + eps) · scale + bias`` over the last axis.

    `x`: [B, L, D], and so the result in its dtype; `scale` and `bias`: float32 [D].
    """
    kernel = _Kernel(forward_kernel, x, eps=eps, dropped=None)
    (out,) = kernel((x, scale[None], bias[None]), ("tokens", "vector", "vector"), ("tokens",))
    return out


def norm_gradients(
    gradient: Array, x: Array, scale: Array, *, eps: float, dropped: Dropped | None
) -> NormGradients:
    """Returns the gradients of `normalised` of a sum.

    `gradient` and `x`: [B, L, D]; `dropped`: what the term went through, None in evaluation.
    """
    kernel = _Kernel(backward_kernel, x, eps=eps, dropped=dropped)
    operands, names = (gradient, x, scale[None]), ("tokens", "tokens", "vector")
    if dropped is None:
        of_sum, sums = kernel(operands, names, ("tokens", "sums"))
        of_term = of_sum
    else:
        operands += tuple(each[:, None] for each in (*dropped.rows, *dropped.columns))
        names += ("down",) * len(dropped.rows) + ("across",) * len(dropped.columns)
        of_sum, of_term, sums = kernel(operands, names, ("tokens", "tokens", "sums"))
    return NormGradients(of_sum, of_term, *sums.sum((1, 2, 3)))


def lower_alone(
    *, batch: int, length: int, width: int, dtype: DTypeLike, rate: float
) -> jax.stages.Lowered:
    """Returns both kernels lowered without a program around them, for the mesh that is set.

    `rate`: of dropout; 0: there is none.
    """

    def both(x: Array, vector: Array, down: Array, across: Array) -> object:
        words = line_words(down, down), line_words(across, across)
        dropped = None
        if rate:
            factors = row_factors(words[0]), column_factors(words[1], rate)
            dropped = Dropped(*factors, scale_up=1 / (1 - rate))
        out = normalised(x, vector, vector, eps=1e-12)
        return norm_gradients(out, x, vector, eps=1e-12, dropped=dropped)

    x = jax.ShapeDtypeStruct((batch, length, width), dtype)
    vector = jax.ShapeDtypeStruct((width,), jnp.float32)
    lines = [jax.ShapeDtypeStruct((batch, count), jnp.int32) for count in (length, width)]
    return jax.jit(both).lower(x, vector, *lines)


class _Kernel:
    """A kernel, run by every device for its rows."""

    def __init__(self, body: Any, x: Array, *, eps: float, dropped: Dropped | None) -> None:
        self._body = body
        _, length, width = x.shape
        self._shape = functools.partial(
            Shape,
            length=length,
            width=width,
            itemsize=x.dtype.itemsize,
            factors=0 if dropped is None else len(dropped.rows),
            scale_up=1.0 if dropped is None else dropped.scale_up,
            eps=eps,
            forward=body is forward_kernel,
        )

    def __call__(
        self, operands: Sequence[Array], names: Sequence[str], results: Sequence[str]
    ) -> tuple[Array, ...]:
        """Returns the results, by their names; tokens of the operands' length."""

        def run(*arrays: Array) -> tuple[Array, ...]:
            return self._call(names, arrays, results)

        arguments, made = ([_AXES[name] for name in each] for each in (names, results))
        return per_shard(run, arguments=arguments, results=made)(*operands)

    def _call(
        self, names: Sequence[str], arrays: Sequence[Array], results: Sequence[str]
    ) -> tuple[Array, ...]:
        x = arrays[0]
        shape = self._shape(batch=len(x))
        # Tokens of zeros have gradients of zeros, and add nothing to sums.
        sizes = {"tokens": (1, shape.padded), "down": (2, shape.words)}
        arrays = [
            _padded(each, *sizes[name]) if name in sizes else each
            for name, each in zip(names, arrays, strict=True)
        ]
        made = [shape.array(name, dtype=x.dtype) for name in results]
        found = launch(
            functools.partial(self._body, shape=shape),
            *arrays,
            name="norm_forward" if shape.forward else "norm_backward",
            made=made,
            order=("parallel", "parallel"),
            flops=0,  # no products
            transcendentals=shape.batch * shape.padded,
            grid=shape.grid,
            in_specs=[shape.block(name) for name in names],
            out_specs=[shape.block(name) for name in results],
            scratch_shapes=shape.turned,
        )
        return tuple(
            each[:, : shape.length] if name == "tokens" else each
            for name, each in zip(results, found, strict=True)
        )


def _padded(x: Array, axis: int, size: int) -> Array:
    missing = size - x.shape[axis]
    return jnp.pad(x, [(0, missing if at == axis else 0) for at in range(x.ndim)])
