"""Attention with rotary positions and an optional sliding window, in one kernel.

Queries and keys are rotated on the chip, by the token's place in its row. Scores depend on the
difference of two positions alone, so that packed examples need no positions of their own. A query
of a local layer meets only the keys of its window: a row's keys and values are fetched once for all
of its queries. No [length, length] array reaches HBM.

The kernels are in `rotary_attention_kernels`, their blocks in `rotary_attention_tiles`.
"""

import functools
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from bert_jax.kernels.attention import coded_segments
from bert_jax.kernels.attention_tiles import padded
from bert_jax.kernels.pallas_call import launch, on_each_device, vmem_of_device
from bert_jax.kernels.rotary_attention_kernels import backward_kernel, forward_kernel
from bert_jax.kernels.rotary_attention_tiles import RotaryShape, is_small
from bert_jax.parallel.sharding_rules import LogicalAxes

Array = jax.Array

_AXES: Final[dict[str, LogicalAxes]] = {
    "turns": ("length", "rest"),
    "bands": ("rest", "rest", "rest"),
    **dict.fromkeys(("query_segments", "key_segments"), ("batch", "length")),
    **dict.fromkeys(("queries", "keys"), ("batch", "length", "heads")),
    "slopes": ("rest", "batch", "length", "heads"),
    "logs": ("batch", "heads", "rest", "length"),
}
_READ: Final = (
    *("turns", "turns", "bands", "query_segments", "key_segments"),
    *("queries", "keys", "keys"),
)


def rotary_attention(
    qkv_BLW: tuple[Array, Array, Array],
    segment_ids: Array,
    turn: tuple[Array, Array],
    *,
    columns: int,
    window: int | None,
    causal: bool = False,
) -> Array:
    """Returns softmax(q·kᵀ/√columns)·v of every head, [B, L, heads · columns].

    Args:
        qkv_BLW: queries, keys and values, not rotated.
        segment_ids: int32 [B, L], from 0 to 65,534. A token attends to its own segment alone. A
            token of segment −1 attends to segment 1, and no token attends to it.
        turn: cosine and sine of the angles at every place of a row, float32 [L, columns / 2].
        columns: columns of a head.
        window: tokens that a query sees, half of them before it. If None, it sees its segment.
        causal: whether a query sees no later token.
    """
    return _attend(qkv_BLW, segment_ids, turn, _Facts(columns, window, causal))


class _Facts(NamedTuple):
    """Settings of the kernels, see `rotary_attention`."""

    columns: int
    window: int | None
    causal: bool


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _attend(
    qkv: tuple[Array, Array, Array], segment_ids: Array, turn: tuple[Array, Array], facts: _Facts
) -> Array:
    return _forward(qkv, segment_ids, turn, facts)[0]


def _forward(
    qkv: tuple[Array, Array, Array], segment_ids: Array, turn: tuple[Array, Array], facts: _Facts
) -> tuple[Array, tuple[Any, ...]]:
    length = segment_ids.shape[1]
    missing = padded(length) - length

    def whole(x: Array, axis: int) -> Array:
        widths = [(0, 0)] * x.ndim
        widths[axis] = 0, missing
        return jnp.pad(x, widths) if missing else x

    # Padding is a segment of its own, since tokens may read other padding: 0.
    segments = (whole(each + 1, 1) for each in (jnp.abs(segment_ids), segment_ids))
    cosine, sine = (whole(each, 0) for each in turn)
    operands = (
        jnp.concatenate([cosine, cosine], axis=1),
        jnp.concatenate([-sine, sine], axis=1),
        *segments,
        *(whole(each, 1) for each in qkv),
    )
    out, logs = _run(forward_kernel, operands, (), ("queries", "logs"), facts)
    return out[:, :length], (operands, out, logs)


def _backward(facts: _Facts, kept: tuple[Any, ...], gradient: Array) -> tuple[Any, None, None]:
    operands, out, logs = kept
    length = gradient.shape[1]
    missing = out.shape[1] - length
    gradient = jnp.pad(gradient, ((0, 0), (0, missing), (0, 0))) if missing else gradient
    (found,) = _run(
        backward_kernel,
        (*operands, out, logs, gradient),
        ("queries", "logs", "queries"),
        ("slopes",),
        facts,
    )
    # Parts of one array: the backward pass of the projections stacks them without a copy.
    return tuple(found[at, :, :length] for at in range(3)), None, None


_attend.defvjp(_forward, _backward)


def _run(
    body: Any,
    operands: tuple[Array, ...],
    more: tuple[str, ...],
    results: tuple[str, ...],
    facts: _Facts,
) -> tuple[Array, ...]:
    """Returns a kernel's results, by name; a device runs it for its own rows and heads."""
    names = (*_READ, *more)
    forward = body is forward_kernel

    def run(*arrays: Array) -> tuple[Array, ...]:
        cosine, sine, of_queries, of_keys, q, *others = arrays
        batch, length, width = q.shape
        shape = RotaryShape(
            batch=batch,
            length=length,
            heads=width // facts.columns,
            forward=forward,
            is_small=is_small(vmem_of_device()),
            **facts._asdict(),
        )
        turns = (jnp.tile(each, (1, shape.group)) for each in (cosine, sine))
        operands = (
            *turns,
            jnp.asarray(shape.bands()),
            coded_segments(of_queries, shape, q.dtype, of_keys=False),
            coded_segments(of_keys, shape, q.dtype, of_keys=True),
            q,
            *others,
        )
        scores = batch * shape.heads * shape.scores
        return launch(
            functools.partial(body, shape=shape),
            *operands,
            name=f"rotary_attention_{'forward' if forward else 'backward'}",
            made=[shape.array(name, dtype=q.dtype) for name in results],
            order=("parallel", "parallel", "arbitrary"),
            flops=(2 if forward else 5) * 2 * scores * facts.columns,
            transcendentals=scores,
            vmem=shape.vmem,
            grid=shape.grid,
            in_specs=[shape.spec(name) for name in names],
            out_specs=[shape.spec(name) for name in results],
            scratch_shapes=shape.scratch(q.dtype),
        )

    arguments = [name for name in names if name != "bands"]
    return on_each_device(run, operands, axes=_AXES, arguments=arguments, results=results)
