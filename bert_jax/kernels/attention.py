"""`fused` attention: scores, softmax, dropout and the sum over values in one kernel, in VMEM.

Nothing of size length × length reaches HBM. Dropout's bits are those of `random_bits`, as
everywhere else, computed in the kernel and again in its backward pass: `fused` and `xla` drop the
same elements. Held to `bert_jax.model.attention.xla_attention`.

Several heads narrower than the 128 lanes of a vector register lie side by side in one block, as
they come out of the projections: no transpose. A product for one head runs over all lanes, those of
the other heads zero. The matrix unit pads to 128 lanes in any case, so that costs nothing.

The backward kernel holds scores as [keys, queries]: two of its three products with scores on the
left then need no transpose of them, and log-sums lie along lanes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from bert_jax.kernels.random_bits import below, words

Array = jax.Array

LANES: Final = 128
LONGEST: Final = 512  # tokens: scores of one head, and what is made of them, must fit into VMEM
# Finite, so that a row without any visible key gives an average and not a NaN; the exponent of two
# that softmax takes of it is 0 beside any score there is.
_MASKED: Final = -30_000.0
_SEED_COUNT: Final = 2


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


def fused_attention(
    q_BLW: Array,
    k_BLW: Array,
    v_BLW: Array,
    segment_ids: Array,
    seeds: tuple[Array, ...] | None,
    *,
    columns: int,
    rate: float,
) -> Array:
    """Returns softmax(q·kᵀ/√columns) · v for each head, with dropout: [B, L, heads · columns].

    On a TPU it runs compiled, elsewhere interpreted, for tests.

    Args:
        q_BLW: queries [B, L, heads · columns], as k_BLW and v_BLW.
        k_BLW: keys.
        v_BLW: values.
        segment_ids: int32 [B, L]; a token attends to its own segment alone.
        seeds: of dropout, two of int32 [B, heads]; None draws nothing.
        columns: of a head.
        rate: share of probabilities dropped.
    """
    batch, length, width = q_BLW.shape
    heads = width // columns
    shape = Shape(length=length, heads=heads, columns=columns, rate=0.0 if seeds is None else rate)
    if seeds is None:
        seeds = (jnp.zeros((batch, heads), jnp.int32),) * _SEED_COUNT
    # The exponential is taken to base two, which is what the hardware has.
    scaled = q_BLW * jnp.asarray(columns**-0.5 * math.log2(math.e), q_BLW.dtype)
    pad = ((0, 0), (0, shape.padded - length), (0, 0))
    arrays = [jnp.pad(x, pad) if shape.padded > length else x for x in (scaled, k_BLW, v_BLW)]
    # Padding is a segment of its own, since others' padding may be one that is read: −1.
    segments = jnp.pad(segment_ids, pad[:2], constant_values=-1).astype(jnp.float32)
    out: Array = _attend(*arrays, segments[:, None, :], jnp.stack(seeds), shape)
    return out[:, :length]


@functools.partial(jax.custom_vjp, nondiff_argnums=(5,))
def _attend(q: Array, k: Array, v: Array, segments: Array, seeds: Array, shape: Shape) -> Array:
    return _forward(q, k, v, segments, seeds, shape)[0]


def _forward(
    q: Array, k: Array, v: Array, segments: Array, seeds: Array, shape: Shape
) -> tuple[Array, tuple[Array, ...]]:
    logs = jax.ShapeDtypeStruct(
        (len(q), shape.heads // shape.group, shape.group, shape.padded), jnp.float32
    )
    out, logs = _call(
        _forward_kernel, shape, (q, k, v, segments), seeds, (q, logs), name="attention_forward"
    )
    return out, (q, k, v, segments, seeds, out, logs)


def _backward(shape: Shape, kept: tuple[Array, ...], gradient: Array) -> tuple[Any, ...]:
    q, k, v, segments, seeds, out, logs = kept
    operands = (q, k, v, segments, out, logs, gradient)
    found = _call(_backward_kernel, shape, operands, seeds, (q, k, v), name="attention_backward")
    return *found, None, None


_attend.defvjp(_forward, _backward)


def _call(
    kernel: Any, shape: Shape, operands: tuple[Array, ...], seeds: Array, results: Any, *, name: str
) -> Any:
    """Runs a kernel for every row and group of heads; blocks follow from the arrays' shapes."""
    block = pl.BlockSpec((1, shape.padded, shape.width), lambda b, t, _: (b, 0, t))
    row = pl.BlockSpec((1, 1, shape.padded), lambda b, t, _: (b, 0, 0))
    logs = pl.BlockSpec((1, 1, shape.group, shape.padded), lambda b, t, _: (b, t, 0, 0))

    def spec(x: Any) -> pl.BlockSpec:
        return logs if x.ndim == 4 else row if x.shape[1] == 1 else block

    batch, products = len(operands[0]), 2 if kernel is _forward_kernel else 5
    flops = products * 2 * batch * shape.heads * shape.padded**2 * shape.columns
    moved = sum(math.prod(x.shape) * x.dtype.itemsize for x in (*operands, *results))
    call = functools.partial(
        pl.pallas_call,
        functools.partial(kernel, shape=shape),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(batch, shape.heads // shape.group),
            in_specs=[spec(x) for x in operands],
            out_specs=[spec(x) for x in results],
        ),
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in results],
        cost_estimate=pl.CostEstimate(
            flops=flops,
            transcendentals=batch * shape.heads * shape.padded**2,
            bytes_accessed=moved,
        ),
        name=name,
    )
    parallel = pltpu.CompilerParams(dimension_semantics=("parallel", "parallel"))
    return jax.lax.platform_dependent(
        seeds,
        *operands,
        tpu=call(compiler_params=parallel),
        default=call(interpret=True),
    )


def _forward_kernel(
    seeds: Any, q: Any, k: Any, v: Any, segments: Any, out: Any, logs: Any, *, shape: Shape
) -> None:
    """One row, one group of heads; scores as [queries, keys]."""
    q_LW, k_LW, v_LW = q[0], k[0], v[0]
    same = _column(segments[0]) == segments[0]
    total = jnp.zeros(q_LW.shape, jnp.float32)
    for head in range(shape.group):
        inside = _lanes_of(head, shape)
        scores = _dot(jnp.where(inside, q_LW, jnp.zeros_like(q_LW)), k_LW, 1, 1)
        scores = jnp.where(same, scores, _MASKED)
        largest = scores.max(axis=1, keepdims=True)
        weights = jnp.exp2(scores - largest)
        sums = weights.sum(axis=1, keepdims=True)
        logs[0, 0, pl.ds(head, 1), :] = jnp.transpose(largest + jnp.log2(sums))
        if shape.rate:
            weights = jnp.where(_keep(seeds, head, shape, query_axis=0), weights, 0.0)
        # Dividing the sum over values is cheaper than dividing every weight.
        found = _dot(weights.astype(v_LW.dtype), v_LW, 1, 0) * (1 / ((1 - shape.rate) * sums))
        total = jnp.where(inside, found, total)
    out[0] = total.astype(out.dtype)


def _backward_kernel(
    seeds: Any,
    q: Any,
    k: Any,
    v: Any,
    segments: Any,
    out: Any,
    logs: Any,
    gradient: Any,
    dq: Any,
    dk: Any,
    dv: Any,
    *,
    shape: Shape,
) -> None:
    """The same, scores as [keys, queries]."""
    q_LW, k_LW, v_LW, g_LW = q[0], k[0], v[0], gradient[0]
    same = _column(segments[0]) == segments[0]
    # Σ weights · their gradients, for each query and head: what softmax takes off.
    product_WL = jnp.transpose(g_LW.astype(jnp.float32) * out[0].astype(jnp.float32))
    g_LW = (g_LW.astype(jnp.float32) * (1 / (1 - shape.rate))).astype(g_LW.dtype)
    total = [jnp.zeros(q_LW.shape, jnp.float32)] * 3
    for head in range(shape.group):
        inside = _lanes_of(head, shape)
        first = head * shape.columns
        taken_off = product_WL[first : first + shape.columns].sum(axis=0, keepdims=True)
        scores = _dot(k_LW, jnp.where(inside, q_LW, jnp.zeros_like(q_LW)), 1, 1)
        weights = jnp.exp2(jnp.where(same, scores, _MASKED) - logs[0, 0, pl.ds(head, 1), :])
        slopes = _dot(v_LW, jnp.where(inside, g_LW, jnp.zeros_like(g_LW)), 1, 1)
        kept = weights
        if shape.rate:
            keep = _keep(seeds, head, shape, query_axis=1)
            kept, slopes = jnp.where(keep, weights, 0.0), jnp.where(keep, slopes, 0.0)
        slopes = (weights * (slopes - taken_off)).astype(q_LW.dtype)
        found = (
            _dot(slopes, k_LW, 0, 0),
            _dot(slopes, q_LW, 1, 0),
            _dot(kept.astype(g_LW.dtype), g_LW, 1, 0),
        )
        total = [jnp.where(inside, new, old) for new, old in zip(found, total, strict=True)]
    base = math.log(2)  # the derivative of 2ˣ
    dq[0] = (total[0] * base).astype(dq.dtype)
    dk[0] = (total[1] * base).astype(dk.dtype)
    dv[0] = total[2].astype(dv.dtype)


def _dot(a: Array, b: Array, a_axis: int, b_axis: int) -> Array:
    contracted = (((a_axis,), (b_axis,)), ((), ()))
    return jax.lax.dot_general(a, b, contracted, preferred_element_type=jnp.float32)


def _column(row: Array) -> Array:
    """[1, L] → [L, 1]."""
    return row.reshape(row.shape[1], 1)


def _lanes_of(head: int, shape: Shape) -> Array:
    """Returns where in a block a head's columns lie, bool [1, width]."""
    lane = jax.lax.broadcasted_iota(jnp.int32, (1, shape.width), 1)
    return (lane >= head * shape.columns) & (lane < (head + 1) * shape.columns)


def _keep(seeds: Any, head: int, shape: Shape, *, query_axis: int) -> Array:
    """Returns which probabilities stay; their number is query · length + key, as in `dropout`."""
    square = (shape.padded, shape.padded)
    query = jax.lax.broadcasted_iota(jnp.int32, square, query_axis)
    key = jax.lax.broadcasted_iota(jnp.int32, square, 1 - query_axis)
    row, at = pl.program_id(0), pl.program_id(1) * shape.group + head
    first, second = seeds[0, row, at], seeds[1, row, at]
    return words(query * shape.length + key, first, second) >= below(shape.rate)
