"""LayerNorm and RMSNorm kernels that read their input once, forward and backward.

The backward kernel also applies dropout to the gradient of a term, or adds the gradient of a
residual sum, and sums gradients over tokens. XLA would make four passes. The forward kernel does
not compute the residual sum, because XLA fuses it into the epilogue of the preceding product. Tests
compare the results with `bert_jax.model.elementwise` and `bert_jax.model.dropout`.

The kernels loop over chunks of tokens. A chunk stays in registers from reading to writing. Sums
along a token have a long latency, so they are computed for many tokens at once.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.kernels.pallas_call import (
    LANES,
    PACKED,
    SUBLANES,
    cores_of_device,
    launch,
    on_each_device,
)
from bert_jax.kernels.random_bits import Factors, kept
from bert_jax.parallel.sharding_rules import LogicalAxes

Array = jax.Array
Chunk: TypeAlias = tuple[Any, Any]  # index of the row in the block, slice of its tokens

# Maximum bytes of a block. The backward kernel has four blocks in VMEM, with two buffers each.
_BLOCK: Final = 2**20
# Maximum tokens of a block. More tokens do not hide more latency.
_TOKENS: Final = 512
_CHUNK: Final = PACKED  # tokens per chunk
# Maximum number of unrolled chunks. The statistics of one chunk overlap with products of other
# chunks. More chunks would spill registers.
_SIDE_BY_SIDE: Final = 8
# Maximum width of a token in float32, so that a block has at least 128 tokens.
MOST_NUMBERS: Final = _BLOCK // 4 // LANES

# Logical axes of the kernels' operands and results.
_AXES: Final[dict[str, LogicalAxes]] = {
    "tokens": ("batch", "length", "hidden"),
    "vector": ("rest", "hidden"),
    "down": ("batch", "length"),
    "across": ("batch", "hidden"),
    **dict.fromkeys(("sum", "sums"), ("batch", "rest", "hidden")),
}
# Sums over tokens that the backward kernel writes: of the scale, or of the scale and both biases.
_SUMS: Final = {"sum": 1, "sums": 3}


class Dropped(NamedTuple):
    """Dropout of a term: arguments of `random_bits.kept`, [B, L] and [B, D]."""

    rows: Factors
    columns: Factors
    scale_up: float  # scale of kept elements


class NormGradients(NamedTuple):
    """Gradients of LayerNorm(residual + dropout(term))."""

    of_sum: Array  # gradient of the sum, [B, L, D]
    of_term: Array  # gradient of the term before dropout, [B, L, D]
    of_scale: Array  # float32 [D]
    of_bias: Array  # float32 [D]
    of_term_bias: Array  # sum of `of_term` over tokens, float32 [D]


def fits(width: int) -> bool:
    """Returns whether the kernels support a hidden size."""
    return width % LANES == 0 and width <= MOST_NUMBERS


def normalised(
    x: Array, scale: Array, bias: Array | None, *, eps: float, rms: bool = False
) -> Array:
    """Returns ``(x − mean) / √(variance + eps) · scale + bias`` over the last axis.

    `x` is [B, L, D]. The result has its shape and dtype. `scale` and `bias` are float32 [D]. If
    `bias` is None, nothing is added. If `rms`, the mean counts as 0: this is RMSNorm.
    """
    operands = [("tokens", x), ("vector", scale[None])]
    if bias is not None:
        operands.append(("vector", bias[None]))
    (out,) = _run(_forward_kernel, operands, ("tokens",), eps=eps, dropped=None, rms=rms)
    return out


def norm_gradients(
    gradient: Array, x: Array, scale: Array, *, eps: float, dropped: Dropped | None
) -> NormGradients:
    """Returns the gradients of `normalised` for a residual sum `x`.

    `gradient` and `x` are [B, L, D]. `dropped` is the dropout of a term of the sum, or None without
    dropout.
    """
    operands = [("tokens", gradient), ("tokens", x), ("vector", scale[None])]
    results = ("tokens", "sums")
    if dropped is not None:
        operands += [("down", each) for each in dropped.rows]
        operands += [("across", each) for each in dropped.columns]
        results = ("tokens", *results)
    *found, sums = _run(_backward_kernel, operands, results, eps=eps, dropped=dropped)
    return NormGradients(found[0], found[-1], *sums.sum(0))


def pre_norm_gradients(
    gradient: Array, x: Array, scale: Array, of_residual: Array, *, eps: float, rms: bool = False
) -> tuple[Array, Array]:
    """Returns the gradients of `x` and `scale` for ``normalised(x, scale, None)`` next to `x`.

    `x` is also a term of a residual sum, and `of_residual` is its gradient there. All arrays are
    [B, L, D], except for `scale` and its gradient, float32 [D].
    """
    operands = [("tokens", each) for each in (gradient, x, of_residual)]
    operands.insert(2, ("vector", scale[None]))
    found, sums = _run(
        *(_backward_kernel, operands, ("tokens", "sum")),
        eps=eps,
        dropped=None,
        residual=True,
        rms=rms,
    )
    return found, sums.sum((0, 1))


def _run(
    body: Callable[..., None],
    operands: Sequence[tuple[str, Array]],
    results: Sequence[str],
    *,
    eps: float,
    dropped: Dropped | None,
    residual: bool = False,
    rms: bool = False,
) -> tuple[Array, ...]:
    """Runs a kernel on each device, for the device's rows. Returns `results`."""
    names, arrays = zip(*operands, strict=True)

    def run(*arrays: Array) -> tuple[Array, ...]:
        x = arrays[0]
        shape = _Shape(
            *x.shape,
            itemsize=x.dtype.itemsize,
            factors=0 if dropped is None else len(dropped.rows),
            scale_up=1.0 if dropped is None else dropped.scale_up,
            eps=eps,
            residual=residual,
            rms=rms,
            cores=cores_of_device(),
        )
        # The gradients of padding tokens are zero, so they do not change sums.
        rows = -(-shape.batch // SUBLANES) * SUBLANES
        sizes = {
            "tokens": (shape.batch, shape.padded, shape.width),
            "down": (rows, shape.words),
            "across": (rows, shape.width),
        }
        padded = [
            _padded(each, sizes.get(name, each.shape))
            for name, each in zip(names, arrays, strict=True)
        ]
        forward = body is _forward_kernel
        found = launch(
            functools.partial(body, shape=shape),
            *padded,
            name="norm_forward" if forward else "norm_backward",
            made=[shape.array(name, dtype=x.dtype) for name in results],
            order=("parallel", "arbitrary"),
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


def _padded(x: Array, shape: tuple[int, ...]) -> Array:
    return jnp.pad(x, [(0, size - has) for size, has in zip(shape, x.shape, strict=True)])


@dataclasses.dataclass(frozen=True)
class _Shape:
    """Sizes and settings of a kernel on one device."""

    batch: int  # rows on a device
    length: int  # tokens of a row before padding
    width: int  # hidden size
    itemsize: int  # bytes of an element
    factors: int  # number of row factors of dropout; 0 without dropout
    scale_up: float  # scale of elements that dropout keeps
    eps: float  # constant added to the variance
    residual: bool  # whether the backward kernel adds the gradient of a residual sum
    rms: bool  # whether the mean counts as 0
    cores: int  # cores of the device

    @property
    def padded(self) -> int:
        """Tokens of a row, padded to whole registers or tiles."""
        whole = _CHUNK if self.length <= self._fitting else LANES
        return -(-self.length // whole) * whole

    @property
    def tile(self) -> int:
        """Tokens of a tile: all tokens of a row, if they fit into a block."""
        if self.padded <= self._fitting:
            return self.padded
        tiles = range(LANES, self._fitting + 1, LANES)
        return max(tile for tile in tiles if self.padded % tile == 0)

    @property
    def rows(self) -> int:
        """Number of rows in a block. Short rows share a block."""
        most = max(self._fitting // self.tile, 1) if self.tile == self.padded else 1
        counts = [n for n in range(1, most + 1) if self.batch % n == 0]
        if self.factors:  # no block of dropout words ends within a register
            counts = [n for n in counts if SUBLANES % n == 0 or n % SUBLANES == 0]
        return max(counts)

    @property
    def held(self) -> int:
        """Rows in a block of dropout words: whole registers."""
        return max(self.rows, SUBLANES)

    @property
    def chunks(self) -> int:
        """Number of chunks in a block."""
        return self.rows * self.tile // _CHUNK

    @property
    def tiles(self) -> int:
        """Number of tiles of a row."""
        return self.padded // self.tile

    @property
    def grid(self) -> tuple[int, int]:
        """Number of sums over tokens, and of blocks in each sum. A core computes whole sums."""
        blocks = self.batch // self.rows * self.tiles
        sums = self.cores if blocks % self.cores == 0 else blocks
        return sums, blocks // sums

    def place(self, core: Any, step: Any) -> tuple[Any, Any]:
        """Returns the indices of a block along rows and tokens."""
        number = core * self.grid[1] + step
        if self.tiles == 1:
            return number, 0
        return jax.lax.div(number, self.tiles), jax.lax.rem(number, self.tiles)

    @property
    def _fitting(self) -> int:
        """Maximum number of tokens in a block."""
        return min(_BLOCK // (self.width * self.itemsize), _TOKENS) // _CHUNK * _CHUNK

    @property
    def across(self) -> int:
        """Number of column factors of dropout."""
        return self.factors + 1 if self.factors else 0

    @property
    def words(self) -> int:
        """Dropout words of a row: one per token, padded to whole registers for the transpose."""
        return self.padded if self.tile < self.padded else -(-self.padded // LANES) * LANES

    @property
    def turned(self) -> list[Any]:
        """Scratch arrays of the backward kernel: dropout words of tokens, repeated in all lanes."""
        tokens = self.words // self.tiles
        dtype = jnp.int32 if self.factors == 1 else jnp.float32
        return [pltpu.VMEM((self.rows, tokens, LANES), dtype)] * self.factors

    def array(self, name: str, *, dtype: Any) -> jax.ShapeDtypeStruct:
        """Returns the shape and dtype of a result on one device."""
        if name in _SUMS:
            return jax.ShapeDtypeStruct((self.grid[0], _SUMS[name], self.width), jnp.float32)
        return jax.ShapeDtypeStruct((self.batch, self.padded, self.width), dtype)

    def block(self, name: str) -> pl.BlockSpec:
        """Returns the block of an array for one invocation of a kernel."""
        rows, tile, width = self.rows, self.tile, self.width

        def held(b: Any) -> Any:
            return jax.lax.div(b * rows, self.held)

        blocks: dict[str, Any] = {
            "tokens": ((rows, tile, width), lambda b, i: (b, i, 0)),
            "vector": ((1, width), lambda b, i: (0, 0)),
            "down": ((self.held, self.words // self.tiles), lambda b, i: (held(b), i)),
            "across": ((self.held, width), lambda b, i: (held(b), 0)),
        }
        if name in _SUMS:
            return pl.BlockSpec((1, _SUMS[name], width), lambda core, step: (core, 0, 0))
        shape, index = blocks[name]
        return pl.BlockSpec(shape, lambda core, step: index(*self.place(core, step)))


def _forward_kernel(x: Any, scale: Any, *refs: Any, shape: _Shape) -> None:
    """Writes the normalised tokens of a block.

    `refs` are the bias, if there is one, and the result.
    """
    *biases, out = refs

    def of_chunk(at: Chunk, _: None) -> None:
        centred, inverse = _statistics(x[at], shape)
        found = centred * inverse * scale[...]
        for bias in biases:
            found = found + bias[...]
        out[at] = found.astype(out.dtype)

    _for_each_chunk(of_chunk, None, shape)


def _backward_kernel(gradient: Any, x: Any, scale: Any, *refs: Any, shape: _Shape) -> None:
    """Writes the gradients of a block's tokens, and sums them for scale and biases.

    `refs` are the gradient of a residual sum, the row and column factors of dropout, the results,
    and scratch arrays for transposed row factors.
    """
    residual, refs = refs[: shape.residual], refs[shape.residual :]
    count = shape.factors
    down, across, refs = refs[:count], refs[count:][: shape.across], refs[count + shape.across :]
    results, turned = refs[: len(refs) - count], refs[len(refs) - count :]
    out, *dropped, sums = results
    block, _ = shape.place(pl.program_id(0), pl.program_id(1))
    first = jax.lax.rem(block * shape.rows, shape.held)  # row of the block's words
    for words, one in zip(down, turned, strict=True):
        for row in range(shape.rows):
            lanes = jnp.broadcast_to(words[pl.ds(first + row, 1)], (LANES, words.shape[-1]))
            one[row] = jnp.transpose(lanes)

    def of_chunk(at: Chunk, total: tuple[Array, ...]) -> tuple[Array, ...]:
        of_out = gradient[at].astype(jnp.float32)
        centred, inverse = _statistics(x[at], shape)
        normed = centred * inverse
        scaled = of_out * scale[...]
        along = scaled if shape.rms else scaled - _mean(scaled)
        of_sum = inverse * (along - normed * _mean(scaled * normed))
        for one in residual:
            of_sum = of_sum + one[at].astype(jnp.float32)
        out[at] = of_sum.astype(out.dtype)
        of_term = of_sum
        for each in dropped:
            rows = tuple(jnp.concatenate([one[at]] * (shape.width // LANES), 1) for one in turned)
            keep = kept(rows, tuple(one[pl.ds(first + at[0], 1)] for one in across))
            of_term = jnp.where(keep, of_sum * shape.scale_up, 0.0)
            each[at] = of_term.astype(each.dtype)
        found = (of_out * normed, of_out, of_term)[: sums.shape[1]]
        return tuple(so_far + _folded(new) for so_far, new in zip(total, found, strict=True))

    @pl.when(pl.program_id(1) == 0)
    def _start() -> None:
        sums[...] = jnp.zeros_like(sums)

    none = (jnp.zeros((SUBLANES, shape.width), jnp.float32),) * sums.shape[1]
    for at, total in enumerate(_for_each_chunk(of_chunk, none, shape)):
        sums[0, pl.ds(at, 1)] += total.sum(axis=0, keepdims=True)


def _for_each_chunk(body: Callable[[Chunk, Any], Any], start: Any, shape: _Shape) -> Any:
    """Folds ``body(chunk, carried)`` over the chunks of a block."""
    of_row = shape.tile // _CHUNK

    def one(number: Array, carried: Any) -> Any:
        first = pl.multiple_of(jax.lax.rem(number, of_row) * _CHUNK, _CHUNK)
        row = jax.lax.div(number, of_row) if shape.rows > 1 else 0
        return body((row, pl.ds(first, _CHUNK)), carried)

    unroll = max(n for n in range(1, _SIDE_BY_SIDE + 1) if shape.chunks % n == 0)
    return jax.lax.fori_loop(0, shape.chunks, one, start, unroll=unroll)


def _statistics(x: Array, shape: _Shape) -> tuple[Array, Array]:
    """Returns the centred tokens, float32, and their inverse standard deviations."""
    wide = x.astype(jnp.float32)
    centred = wide if shape.rms else wide - _mean(wide)
    return centred, jax.lax.rsqrt(_mean(jnp.square(centred)) + shape.eps)


def _mean(x: Array) -> Array:
    return x.sum(axis=-1, keepdims=True) * (1 / x.shape[-1])


def _folded(x: Array) -> Array:
    """Sums whole registers. The caller sums within a register once, at the end."""
    return x.reshape(-1, SUBLANES, x.shape[-1]).sum(axis=0)
