"""`fused` attention: scores, softmax, dropout and the sum over values in one kernel, in VMEM.

Nothing of size length × length reaches HBM. Dropout's words are those of `random_bits`, as
everywhere else, multiplied in the kernel and again in its backward pass: `fused` and `xla` drop the
same elements. Held to `bert_jax.model.xla_attention`.

Several heads narrower than the 128 lanes of a vector register lie side by side in one block, as
they come out of the projections: no transpose. A product for one head runs over all lanes; the
matrix unit pads to 128 in any case. In the lanes of the other heads stand segments, so that the
product which makes the scores masks them as well: no element is compared or replaced.

The backward kernel holds scores as [keys, queries]: two of its three products with scores on the
left then need no transpose of them, and log-sums lie along lanes.
"""

import dataclasses
import functools
import math
from typing import Any, Final, TypeAlias

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.kernels.random_bits import column_factors, kept, line_words, row_factors
from bert_jax.parallel.rules import LogicalAxes, per_shard

Array = jax.Array

LANES: Final = 128
LONGEST: Final = 512  # tokens: scores of one head, and what is made of them, must fit into VMEM
# Added to a score for every bit in which the segments of query and key differ; the exponent of two
# that softmax takes of it is 0 beside any score there is.
_MASKED: Final = -(2.0**15)
_CODE: Final = 32  # lanes that a segment is written in, two a bit

# What kernels read and write, and what the axes mean: `heads` are split over devices, or lanes.
_AXES: Final[dict[str, LogicalAxes]] = {
    "words": ("rest", "batch", "heads", "length"),
    "row": ("batch", "length", "heads"),
    "slopes": ("rest", "batch", "length", "heads"),
    "segments": ("batch", "length"),
    "logs": ("batch", "heads", "rest", "length"),
    "sums": ("rest", "batch", "rest", "heads"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shape:
    """What a kernel is compiled for.

    Attributes:
        length: tokens of a row, as the caller has them.
        heads: of a device.
        columns: of a head.
        rate: of dropout; 0 draws nothing.
    """

    length: int
    heads: int
    columns: int
    rate: float

    @property
    def padded(self) -> int:
        """Tokens of a row in the kernel: whole vector registers."""
        return -(-self.length // LANES) * LANES

    @property
    def width(self) -> int:
        """Lanes of a block: whole heads, and whole registers or all that there is."""
        whole = math.lcm(self.columns, LANES)
        return whole if self.heads * self.columns % whole == 0 else self.heads * self.columns

    @property
    def group(self) -> int:
        """Heads of a block."""
        return self.width // self.columns

    @property
    def lanes_of_segments(self) -> int:
        """Lanes of a block of segments; one head alone has them beside it."""
        return self.width if self.group > 1 else LANES

    def array(self, name: str, *, batch: int, dtype: Any) -> jax.ShapeDtypeStruct:
        """Returns what a result looks like on one device."""
        width = self.heads * self.columns
        sizes = {
            "row": (batch, self.padded, width),
            "slopes": (3, batch, self.padded, width),
            "logs": (batch, self.heads // self.group, self.group, self.padded),
            "sums": (3, batch, 1, width),
        }
        exact = name in ("logs", "sums")
        return jax.ShapeDtypeStruct(sizes[name], jnp.float32 if exact else dtype)

    def block(self, name: str) -> pl.BlockSpec:
        """Returns the part of an array that one run of a kernel sees: a row, a group of heads."""
        blocks = {
            "words": ((2, 1, 1, self.group, self.padded), lambda b, t: (0, b, t, 0, 0)),
            "segments": ((2, 1, self.padded, self.lanes_of_segments), lambda b, _: (0, b, 0, 0)),
            "row": ((1, self.padded, self.width), lambda b, t: (b, 0, t)),
            "slopes": ((3, 1, self.padded, self.width), lambda b, t: (0, b, 0, t)),
            "logs": ((1, 1, self.group, self.padded), lambda b, t: (b, t, 0, 0)),
            "sums": ((3, 1, 1, self.width), lambda b, t: (0, b, 0, t)),
        }
        return pl.BlockSpec(*blocks[name])


def fused_attention(
    qkv_BLW: tuple[Array, Array, Array],
    bias_3W: Array,
    segment_ids: Array,
    seeds: Array | None,
    *,
    columns: int,
    rate: float,
) -> Array:
    """Returns softmax(q·kᵀ/√columns) · v for each head, with dropout: [B, L, heads · columns].

    Biases are added here because the backward kernel sums their gradients while they are on the
    chip. On a TPU the kernels run compiled, elsewhere interpreted, for tests.

    Args:
        qkv_BLW: queries, keys and values [B, L, heads · columns] without their biases. Their
            gradients are parts of one array [3, B, L, heads · columns].
        bias_3W: float32 [3, heads · columns].
        segment_ids: int32 [B, L]; a token attends to its own segment alone.
        seeds: of dropout, int32 [2, B, heads]; None draws nothing.
        columns: of a head.
        rate: share of probabilities dropped.
    """
    if seeds is None:
        seeds = jnp.zeros((2, len(segment_ids), bias_3W.shape[1] // columns), jnp.int32)
        rate = 0.0
    return _attend(qkv_BLW, bias_3W, segment_ids, seeds, columns, rate)


_Triple: TypeAlias = tuple[Array, Array, Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attend(
    qkv: _Triple, bias: Array, segment_ids: Array, seeds: Array, columns: int, rate: float
) -> Array:
    return _forward(qkv, bias, segment_ids, seeds, columns, rate)[0]


def _forward(
    qkv: _Triple, bias: Array, segment_ids: Array, seeds: Array, columns: int, rate: float
) -> tuple[Array, tuple[Array, ...]]:
    length = segment_ids.shape[1]
    kernel = _Kernel(_forward_kernel, length=length, columns=columns, rate=rate)
    # Padding is a segment of its own, since others' padding may be one that is read: 0.
    segments = _padded(segment_ids + 1)
    words = line_words(jnp.arange(segments.shape[1], dtype=jnp.int32), seeds[..., None])
    operands = (words, segments, *_scaled(qkv, bias, columns))
    out, logs = kernel(
        operands, ("words", "segments", "row", "row", "row"), results=("row", "logs")
    )
    return out[:, :length], (*operands, out, logs)


def _backward(
    columns: int, rate: float, kept: tuple[Array, ...], gradient: Array
) -> tuple[_Triple, Array, None, None]:
    length = gradient.shape[1]
    kernel = _Kernel(_backward_kernel, length=length, columns=columns, rate=rate)
    names = ("words", "segments", "row", "row", "row", "row", "logs", "row")
    found, sums = kernel((*kept, _padded(gradient)), names, results=("slopes", "sums"))
    of_q, of_k, of_v = found[:, :, :length]
    return (of_q, of_k, of_v), sums.sum((1, 2)), None, None


_attend.defvjp(_forward, _backward)


def _coded(segments: Array, shape: Shape, dtype: Any) -> Array:
    """Returns segments [B, L] of queries and of keys, [2, B, L, lanes].

    A bit takes two lanes, in one of which a product of the two is not zero if they differ.
    """
    lane = jnp.arange(shape.lanes_of_segments, dtype=jnp.int32) % _CODE
    of_queries = (segments[..., None] >> (lane // 2)) + lane & 1
    return jnp.stack([of_queries, (1 - of_queries) * int(_MASKED)]).astype(dtype)


def _scale(columns: int) -> float:
    """Of queries; exponentials are taken to base two, which is what the hardware has."""
    return columns**-0.5 * math.log2(math.e)


def _scaled(qkv: _Triple, bias: Array, columns: int) -> list[Array]:
    """Returns queries, keys and values as the kernels read them."""
    with_bias = [x.astype(jnp.float32) + each for x, each in zip(qkv, bias, strict=True)]
    with_bias[0] *= _scale(columns)
    return [_padded(x.astype(qkv[0].dtype)) for x in with_bias]


def _padded(x: Array) -> Array:
    """Returns an array [B, L, …] whose tokens fill whole vector registers."""
    missing = -x.shape[1] % LANES
    return jnp.pad(x, [(0, missing if at == 1 else 0) for at in range(x.ndim)]) if missing else x


class _Kernel:
    """A kernel, run by every device for each of its rows and groups of heads."""

    def __init__(self, body: Any, *, length: int, columns: int, rate: float) -> None:
        self._body = body
        self._shape = functools.partial(Shape, length=length, columns=columns, rate=rate)

    def __call__(
        self, operands: tuple[Array, ...], names: tuple[str, ...], *, results: tuple[str, ...]
    ) -> tuple[Array, ...]:
        """Returns the results.

        Args:
            operands: the words first.
            names: of each, in `_AXES`; a gradient has that of its array.
            results: their names.
        """

        def run(*arrays: Array) -> tuple[Array, ...]:
            return self._call(names, arrays, results)

        arguments, made = ([_AXES[name] for name in each] for each in (names, results))
        return per_shard(run, arguments=arguments, results=made)(*operands)

    def _call(
        self, names: tuple[str, ...], arrays: tuple[Array, ...], results: tuple[str, ...]
    ) -> tuple[Array, ...]:
        words, segments, *others = arrays
        _, batch, heads, _ = words.shape
        shape = self._shape(heads=heads)
        words = words.reshape(2, batch, -1, shape.group, shape.padded)
        arrays = (words, _coded(segments, shape, others[0].dtype), *others)
        made = [shape.array(name, batch=batch, dtype=arrays[-1].dtype) for name in results]
        forward = self._body is _forward_kernel
        scores = batch * heads * shape.padded**2
        call = functools.partial(
            pl.pallas_call,
            functools.partial(self._body, shape=shape),
            grid=(batch, heads // shape.group),
            in_specs=[shape.block(name) for name in names],
            out_specs=[shape.block(name) for name in results],
            out_shape=made,
            cost_estimate=pl.CostEstimate(
                flops=(2 if forward else 5) * 2 * scores * shape.columns,
                transcendentals=scores,
                bytes_accessed=sum(x.size * x.dtype.itemsize for x in (*arrays, *made)),
            ),
            name="attention_forward" if forward else "attention_backward",
        )
        parallel = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"))
        return jax.lax.platform_dependent(
            *arrays, tpu=call(compiler_params=parallel), default=call(interpret=True)
        )


def _forward_kernel(
    words: Any, segments: Any, q: Any, k: Any, v: Any, out: Any, logs: Any, *, shape: Shape
) -> None:
    """One row, one group of heads; scores as [queries, keys]."""
    q_LW, k_LW, v_LW = q[0], k[0], v[0]
    total = jnp.zeros(q_LW.shape, jnp.float32)
    for head in range(shape.group):
        inside = _lanes_of(head, shape)
        q_LX, k_LX = (_beside(x, segments[at, 0], head, shape) for at, x in enumerate((q_LW, k_LW)))
        scores = _dot(q_LX, k_LX, 1, 1)
        largest = scores.max(axis=1, keepdims=True)
        weights = jnp.exp2(scores - largest)
        sums = weights.sum(axis=1, keepdims=True)
        log_sums = jnp.log2(sums)
        logs[0, 0, pl.ds(head, 1), :] = jnp.transpose(largest + log_sums)
        if shape.rate:
            weights = jnp.where(_keep(words, head, shape, query_axis=0), weights, 0.0)
        # Dividing the sum over values is cheaper than dividing every weight, and taking the power
        # again cheaper than an exact quotient.
        inverse = jnp.exp2(-math.log2(1 - shape.rate) - log_sums)
        found = _dot(weights.astype(v_LW.dtype), v_LW, 1, 0) * inverse
        total = jnp.where(inside, found, total)
    out[0] = total.astype(out.dtype)


def _backward_kernel(
    words: Any,
    segments: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    logs: Any,
    gradient: Any,
    slopes_of_qkv: Any,
    sums: Any,
    *,
    shape: Shape,
) -> None:
    """The same, scores as [keys, queries]."""
    q_LW, k_LW, v_LW, g_LW = q[0], k[0], v[0], gradient[0]
    # Σ weights · their gradients, for each query and head: what softmax takes off.
    product_WL = jnp.transpose(g_LW.astype(jnp.float32) * out[0].astype(jnp.float32))
    g_LW = (g_LW.astype(jnp.float32) * (1 / (1 - shape.rate))).astype(g_LW.dtype)
    total = [jnp.zeros(q_LW.shape, jnp.float32)] * 3
    for head in range(shape.group):
        inside = _lanes_of(head, shape)
        first = head * shape.columns
        taken_off = product_WL[first : first + shape.columns].sum(axis=0, keepdims=True)
        q_LX, k_LX = (_beside(x, segments[at, 0], head, shape) for at, x in enumerate((q_LW, k_LW)))
        scores = _dot(k_LX, q_LX, 1, 1)
        weights = jnp.exp2(scores - logs[0, 0, pl.ds(head, 1), :])
        g_of_head = _where_inside(head, shape, g_LW, jnp.zeros_like(g_LW))
        slopes = _dot(v_LW, g_of_head, 1, 1)
        kept = weights
        if shape.rate:
            keep = _keep(words, head, shape, query_axis=1)
            kept, slopes = jnp.where(keep, weights, 0.0), jnp.where(keep, slopes, 0.0)
        slopes = (weights * (slopes - taken_off)).astype(q_LW.dtype)
        found = (
            _dot(slopes, k_LW, 0, 0),
            _dot(slopes, q_LW, 1, 0),
            _dot(kept.astype(g_LW.dtype), g_LW, 1, 0),
        )
        total = [jnp.where(inside, new, old) for new, old in zip(found, total, strict=True)]
    # log 2: the derivative of 2ˣ. Queries came scaled.
    factors = (_scale(shape.columns) * math.log(2), math.log(2), 1.0)
    for at, (each, factor) in enumerate(zip(total, factors, strict=True)):
        of_one = each * factor
        slopes_of_qkv[at, 0] = of_one.astype(slopes_of_qkv.dtype)
        sums[at, 0] = of_one.sum(axis=0, keepdims=True)


def _dot(a: Array, b: Array, a_axis: int, b_axis: int) -> Array:
    contracted = (((a_axis,), (b_axis,)), ((), ()))
    return jax.lax.dot_general(a, b, contracted, preferred_element_type=jnp.float32)


def _beside(x_LW: Array, segments: Array, head: int, shape: Shape) -> Array:
    """Returns one head, with segments in the lanes of the others; one alone has more lanes."""
    if shape.group == 1:
        return jnp.concatenate([x_LW, segments], axis=1)
    return _where_inside(head, shape, x_LW, segments)


def _column(row: Array) -> Array:
    """[1, L] → [L, 1]."""
    return row.reshape(row.shape[1], 1)


def _where_inside(head: int, shape: Shape, x_LW: Array, other_LW: Array) -> Array:
    """Returns a head's columns of one array, the others of another."""
    return jnp.where(_lanes_of(head, shape), x_LW, other_LW)


def _lanes_of(head: int, shape: Shape) -> Array:
    """Returns where in a block a head's columns lie, bool [1, width]."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, shape.width), 1)
    return (lane >= head * shape.columns) & (lane < (head + 1) * shape.columns)


def _keep(words: Any, head: int, shape: Shape, *, query_axis: int) -> Array:
    """Returns which probabilities stay: a query is a row of the tile, as in `dropout`."""
    of_queries, of_keys = (words[which, 0, 0, pl.ds(head, 1), :] for which in range(2))
    rows, columns = row_factors(of_queries), column_factors(of_keys, shape.rate)
    if query_axis == 0:
        return kept(tuple(map(_column, rows)), columns)
    return kept(rows, tuple(map(_column, columns)))
