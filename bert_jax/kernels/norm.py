"""LayerNorm as kernels: one reading of the input, forward and backward.

Backward, dropout of a term and the sums over tokens are in the same pass: XLA makes four of it.
Forward, the input is left to XLA, which computes it in the epilogue of the product before. Held to
`bert_jax.model.elementwise` and `bert_jax.model.dropout`.

A loop over chunks of tokens: numbers of a chunk stay in registers from reading to writing, and sums
along a token, which take long to come, are computed for many tokens at once.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.kernels.launch import LANES, PACKED, SUBLANES, launch, on_each_device
from bert_jax.kernels.random_bits import Factors, kept
from bert_jax.parallel.rules import LogicalAxes

Array = jax.Array
Chunk: TypeAlias = tuple[Any, Any]  # its row in the block, its tokens there

# Bytes of a block of one array: backward four of them are in VMEM twice.
_BLOCK: Final = 2**20
# Tokens of a block from which on more hide nothing: of short rows several make one.
_TOKENS: Final = 512
_CHUNK: Final = PACKED  # tokens that are worked on at a time
# Chunks that are written out one after the other, for statistics of some to be made while others
# are multiplied: more spill.
_SIDE_BY_SIDE: Final = 8
# Numbers of the longest token: a block has tokens of float32 to fill a register's lanes.
MOST_NUMBERS: Final = _BLOCK // 4 // LANES

# Arrays of the kernels, and what their axes mean.
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
    scale_up: float  # of kept elements


class NormGradients(NamedTuple):
    """Gradients around LayerNorm of a sum, one of whose terms went through dropout."""

    of_sum: Array  # [B, L, D]
    of_term: Array  # the same through dropout
    of_scale: Array  # float32 [D], as the two below
    of_bias: Array
    of_term_bias: Array  # the sum of `of_term` over tokens


def fits(width: int) -> bool:
    """Returns whether the kernels take tokens of `width` numbers: whole registers."""
    return width % LANES == 0 and width <= MOST_NUMBERS


def normalised(x: Array, scale: Array, bias: Array, *, eps: float) -> Array:
    """Returns ``(x − mean) / √(variance + eps) · scale + bias`` over the last axis.

    `x`: [B, L, D], and so the result in its dtype; `scale` and `bias`: float32 [D].
    """
    operands = [("tokens", x), ("vector", scale[None]), ("vector", bias[None])]
    (out,) = _run(_forward_kernel, operands, ("tokens",), eps=eps, dropped=None)
    return out


def norm_gradients(
    gradient: Array, x: Array, scale: Array, *, eps: float, dropped: Dropped | None
) -> NormGradients:
    """Returns the gradients of `normalised` of a sum.

    `gradient` and `x`: [B, L, D]; `dropped`: dropout of the term, None in evaluation.
    """
    operands = [("tokens", gradient), ("tokens", x), ("vector", scale[None])]
    results = ("tokens", "sums")
    if dropped is not None:
        operands += [("down", each[:, None]) for each in dropped.rows]
        operands += [("across", each[:, None]) for each in dropped.columns]
        results = ("tokens", *results)
    *found, sums = _run(_backward_kernel, operands, results, eps=eps, dropped=dropped)
    return NormGradients(found[0], found[-1], *sums.sum((1, 2, 3)))


def _run(
    body: Callable[..., None],
    operands: Sequence[tuple[str, Array]],
    results: Sequence[str],
    *,
    eps: float,
    dropped: Dropped | None,
) -> tuple[Array, ...]:
    """Returns a kernel's results, by name; every device runs it for its own rows."""
    names, arrays = zip(*operands, strict=True)

    def run(*arrays: Array) -> tuple[Array, ...]:
        x = arrays[0]
        shape = _Shape(
            *x.shape,
            itemsize=x.dtype.itemsize,
            factors=0 if dropped is None else len(dropped.rows),
            scale_up=1.0 if dropped is None else dropped.scale_up,
            eps=eps,
        )
        # Tokens of zeros have gradients of zeros, and add nothing to sums.
        sizes = {"tokens": (1, shape.padded), "down": (2, shape.words)}
        padded = [
            _padded(each, *sizes[name]) if name in sizes else each
            for name, each in zip(names, arrays, strict=True)
        ]
        forward = body is _forward_kernel
        found = launch(
            functools.partial(body, shape=shape),
            *padded,
            name="norm_forward" if forward else "norm_backward",
            made=[shape.array(name, dtype=x.dtype) for name in results],
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

    return on_each_device(run, arrays, axes=_AXES, arguments=names, results=results)


def _padded(x: Array, axis: int, size: int) -> Array:
    missing = size - x.shape[axis]
    return jnp.pad(x, [(0, missing if at == axis else 0) for at in range(x.ndim)])


@dataclasses.dataclass(frozen=True)
class _Shape:
    """Sizes and settings that a kernel is compiled for."""

    batch: int  # rows of a device
    length: int  # tokens of a row, as the caller has them
    width: int  # numbers of a token
    itemsize: int  # bytes of a number
    factors: int  # arrays that words of rows come as, if dropout draws any
    scale_up: float  # of elements that dropout keeps
    eps: float

    @property
    def padded(self) -> int:
        """Tokens of a row in the kernel: whole registers, or whole tiles."""
        whole = _CHUNK if self.length <= self._fitting else LANES
        return -(-self.length // whole) * whole

    @property
    def tile(self) -> int:
        """Tokens of a row in a block, all if they fit."""
        if self.padded <= self._fitting:
            return self.padded
        tiles = range(LANES, self._fitting + 1, LANES)
        return max(tile for tile in tiles if self.padded % tile == 0)

    @property
    def rows(self) -> int:
        """Rows of a block: several short ones."""
        most = max(self._fitting // self.tile, 1) if self.tile == self.padded else 1
        return max(n for n in range(1, most + 1) if self.batch % n == 0)

    @property
    def chunks(self) -> int:
        """Chunks of a block, all rows of it."""
        return self.rows * self.tile // _CHUNK

    @property
    def grid(self) -> tuple[int, int]:
        """Blocks of rows, and of tokens."""
        return self.batch // self.rows, self.padded // self.tile

    @property
    def _fitting(self) -> int:
        """Tokens of the largest block."""
        return min(_BLOCK // (self.width * self.itemsize), _TOKENS) // _CHUNK * _CHUNK

    @property
    def across(self) -> int:
        """Arrays that words of columns come as."""
        return self.factors + 1 if self.factors else 0

    @property
    def words(self) -> int:
        """Tokens that words of dropout are drawn for: whole registers, turned in the kernel."""
        return self.padded if self.tile < self.padded else -(-self.padded // LANES) * LANES

    @property
    def turned(self) -> list[Any]:
        """Scratch of the backward kernel: the words of a block's tokens, one in all lanes."""
        tokens = self.words // self.grid[1]
        dtype = jnp.int32 if self.factors == 1 else jnp.float32
        return [pltpu.VMEM((self.rows, tokens, LANES), dtype)] * self.factors

    def array(self, name: str, *, dtype: Any) -> jax.ShapeDtypeStruct:
        """Returns the shape and dtype of a result on one device."""
        if name == "sums":
            return jax.ShapeDtypeStruct((3, *self.grid, 1, self.width), jnp.float32)
        return jax.ShapeDtypeStruct((self.batch, self.padded, self.width), dtype)

    def block(self, name: str) -> pl.BlockSpec:
        """Returns the part of an array that one run of a kernel sees."""
        rows, tile, width = self.rows, self.tile, self.width
        blocks = {
            "tokens": ((rows, tile, width), lambda b, i: (b, i, 0)),
            "vector": ((1, width), lambda b, i: (0, 0)),
            "down": ((rows, 1, self.words // self.grid[1]), lambda b, i: (b, 0, i)),
            "across": ((rows, 1, width), lambda b, i: (b, 0, 0)),
            "sums": ((3, 1, 1, 1, width), lambda b, i: (0, b, i, 0, 0)),
        }
        return pl.BlockSpec(*blocks[name])


def _forward_kernel(x: Any, scale: Any, bias: Any, out: Any, *, shape: _Shape) -> None:
    """Mean and variance are computed as in `bert_jax.model.elementwise`."""

    def of_chunk(at: Chunk, _: None) -> None:
        centred, inverse = _statistics(x[at], shape)
        out[at] = (centred * inverse * scale[...] + bias[...]).astype(out.dtype)

    _for_each_chunk(of_chunk, None, shape)


def _backward_kernel(gradient: Any, x: Any, scale: Any, *refs: Any, shape: _Shape) -> None:
    """Sums are over all tokens of a block: gradients of scale and bias, and of the term's bias.

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
            rows = tuple(jnp.concatenate([one[at]] * (shape.width // LANES), 1) for one in turned)
            keep = kept(rows, tuple(one[at[0]] for one in across))
            of_term = jnp.where(keep, of_sum * shape.scale_up, 0.0)
            each[at] = of_term.astype(each.dtype)
        found = (of_out * normed, of_out, of_term)
        return tuple(so_far + _folded(new) for so_far, new in zip(total, found, strict=True))

    none = (jnp.zeros((SUBLANES, shape.width), jnp.float32),) * sums.shape[0]
    for at, total in enumerate(_for_each_chunk(of_chunk, none, shape)):
        sums[at, 0, 0] = total.sum(axis=0, keepdims=True)


def _for_each_chunk(body: Callable[[Chunk, Any], Any], start: Any, shape: _Shape) -> Any:
    """Folds `body` over the chunks of a block; it takes a chunk's place and its last result."""
    of_row = shape.tile // _CHUNK

    def one(number: Array, carried: Any) -> Any:
        first = pl.multiple_of(jax.lax.rem(number, of_row) * _CHUNK, _CHUNK)
        row = jax.lax.div(number, of_row) if shape.rows > 1 else 0
        return body((row, pl.ds(first, _CHUNK)), carried)

    unroll = max(n for n in range(1, _SIDE_BY_SIDE + 1) if shape.chunks % n == 0)
    return jax.lax.fori_loop(0, shape.chunks, one, start, unroll=unroll)


def _statistics(x: Array, shape: _Shape) -> tuple[Array, Array]:
    """Returns the tokens without their means, float32, and the inverses of their deviations."""
    wide = x.astype(jnp.float32)
    centred = wide - _mean(wide)
    return centred, jax.lax.rsqrt(_mean(jnp.square(centred)) + shape.eps)


def _mean(x: Array) -> Array:
    return x.sum(axis=-1, keepdims=True) * (1 / x.shape[-1])


def _folded(x: Array) -> Array:
    """Returns sums over whole registers; sums inside a register are left to the end."""
    return x.reshape(-1, SUBLANES, x.shape[-1]).sum(axis=0)
