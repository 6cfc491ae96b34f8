"""Cross-entropy of logits, and of a product with the vocabulary's table.

Shape suffixes: N rows, D hidden size, V pieces, S devices that share the batch.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.kernels.cross_entropy import decode, decode_backward
from bert_jax.model.layers import placed
from bert_jax.parallel.sharding_rules import constrain, parts_in_use

# `cpu_cross_entropy` takes the maximum of [rows, pieces / 128, 128] over axis 1 first. XLA then
# adds the bias while it reads the logits, instead of writing the sums first.
_LANES: Final = 128
_MOST_PREDICTIONS: Final = 4096  # of a device in `scored_in_parts`
_LINES: Final = 8  # rows of a product: with one row, XLA's CPU compiler emits a scalar loop

_Arrays = TypeVar("_Arrays", bound=tuple[Any, ...])


class Scored(NamedTuple):
    """Losses and hits of predictions."""

    loss: Float[Array, "batch items"]  # −log p(label), nats
    right: Float[Array, "batch items"]  # 1 where no class has a higher logit than the label


def scored_in_parts(
    score: Callable[[Array, Array], Scored],
    hidden_BLD: Float[Array, "batch length hidden"],
    labels_BL: Int[Array, "batch length"],
) -> Scored:
    """Returns `score` of all tokens, computed for a part of every row after the other.

    Only one part's logits are in memory, at most `_MOST_PREDICTIONS` on a device: the backward pass
    computes them again. With all logits, a row of 512 tokens and 30,522 pieces takes 62 MB.
    """
    batch, length = labels_BL.shape
    parts = token_parts((hidden_BLD, labels_BL), most=_MOST_PREDICTIONS)
    if len(parts[0]) == 1:
        return score(hidden_BLD, labels_BL)

    def part(_: None, tokens: tuple[Array, Array]) -> tuple[None, Scored]:
        hidden_BPD, labels_BP = tokens
        return None, score(constrain(hidden_BPD, "batch", "length", "hidden"), labels_BP)

    _, found = jax.lax.scan(jax.checkpoint(part), None, parts)
    return Scored(*(x.swapaxes(0, 1).reshape(batch, -1)[:, :length] for x in found))


def token_parts(arrays: _Arrays, *, most: int) -> _Arrays:
    """Cuts [B, L, …] into parts of at most `most` tokens per device: [parts, B, L / parts, …].

    The length is cut, because the batch is split over devices. The last part is padded with zeros.
    """
    batch, length = jax.tree.leaves(arrays)[0].shape[:2]
    parts = -(-length // max(1, most * parts_in_use("batch") // batch))
    size = -(-length // parts)

    def cut(x: Array) -> Array:
        x = jnp.pad(x, ((0, 0), (0, parts * size - length), *((0, 0),) * (x.ndim - 2)))
        return x.reshape(batch, parts, size, *x.shape[2:]).swapaxes(0, 1)

    return jax.tree.map(cut, arrays)


def cross_entropy(
    logits: Float[Array, "batch items classes"], labels: Int[Array, "batch items"]
) -> Scored:
    """Returns −log p(label) in float32, and whether the label is the most probable class.

    The label's logit is compared with the largest logit, because an argmax would read all logits
    once more. The hand-written gradient reads the logits once; the gradient of JAX would write two
    arrays of their size. Rows are flattened to one axis, as in the product that computes the
    logits. Another shape would require a copy.
    """
    flat = _cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    return Scored(*(each.reshape(labels.shape) for each in flat))


def soft_target_loss(
    logits: Float[Array, "*rows classes"],
    targets: Float[Array, "*rows classes"],
    *,
    temperature: float,
) -> Float[Array, "*rows"]:
    """Returns T² · KL(softmax(targets / T) ‖ softmax(logits / T)) of each row, float32.

    The factor T² keeps the size of the gradient independent of the temperature (arXiv 1503.02531,
    section 2). `targets` are the logits of a teacher.
    """
    ours, theirs = (
        jax.nn.log_softmax(each.astype(jnp.float32) / temperature) for each in (logits, targets)
    )
    return temperature**2 * (jnp.exp(theirs) * (theirs - ours)).sum(axis=-1)


def _cross_entropy_forward(logits: Array, labels: Array) -> tuple[Scored, tuple[Array, ...]]:
    wide = logits.astype(jnp.float32)
    picked = jax.lax.platform_dependent(wide, labels, cpu=_indexed, default=_compared)
    largest = wide.max(axis=-1)
    total = largest + jnp.log(jnp.exp(wide - largest[..., None]).sum(axis=-1))
    scored = Scored(total - picked, (picked >= largest).astype(jnp.float32))
    return scored, (logits, labels, total)


def _cross_entropy_backward(kept: tuple[Array, ...], gradient: Scored) -> tuple[Array, None]:
    logits, labels, total = kept
    probabilities = jnp.exp(logits.astype(jnp.float32) - total[..., None])
    slope = probabilities - _is_label(logits, labels)
    return (slope * gradient.loss[..., None]).astype(logits.dtype), None


def _compared(logits: Array, labels: Array) -> Array:
    """Returns the labels' logits by comparison with an iota, in the pass that reads all logits.

    If the classes are sharded, each device compares its own classes, and the results are summed.
    """
    return jnp.where(_is_label(logits, labels), logits, 0.0).sum(axis=-1)


def _indexed(logits: Array, labels: Array) -> Array:
    """Returns the labels' logits by indexing. On a CPU, XLA would store all comparisons."""
    return jnp.take_along_axis(logits, labels[..., None], axis=-1, mode="clip")[..., 0]


def _is_label(logits: Array, labels: Array) -> Array:
    return labels[..., None] == jnp.arange(logits.shape[-1])


_cross_entropy = jax.custom_vjp(lambda *arguments: _cross_entropy_forward(*arguments)[0])
_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def decoded_cross_entropy(
    rows_ND: Float[Array, "rows hidden"],
    table_VD: Float[Array, "vocab hidden"],
    shares_SVD: Float[Array, "devices vocab hidden"],
    bias_V: Float[Array, "vocab"],
    labels_N: Int[Array, "rows"],
) -> Scored:
    """Returns `cross_entropy` of the logits ``rows · tableᵀ + bias``, computed by a kernel.

    The gradient of the table is returned through `shares_SVD`, see `tied_embedding`. The dtype of
    `rows_ND` is the dtype of the product. `table_VD` and `bias_V` are float32.
    """
    return _decoded(rows_ND, table_VD, shares_SVD, bias_V, labels_N)


def _decoded_forward(
    rows: Array, table: Array, shares: Array, bias: Array, labels: Array
) -> tuple[Scored, tuple[Array, ...]]:
    del shares
    table = placed(table, rows.dtype, ("vocab", "hidden"))
    found, logits = decode(rows, table, bias, labels)
    right = (found.picked >= found.largest).astype(jnp.float32)
    scored = Scored(found.log_total - found.picked, right)
    return scored, (rows, table, labels, found.log_total, logits)


def _decoded_backward(
    kept: tuple[Array, ...], gradient: Scored
) -> tuple[Array, None, Array, Array, None]:
    rows, table, labels, log_total, logits = kept
    of_rows, of_table, of_bias = decode_backward(
        rows, table, labels, log_total, logits, gradient.loss
    )
    return of_rows, None, of_table, of_bias, None


_decoded = jax.custom_vjp(lambda *arguments: _decoded_forward(*arguments)[0])
_decoded.defvjp(_decoded_forward, _decoded_backward)


@jax.custom_vjp
def cpu_cross_entropy(
    rows_ND: Float[Array, "rows hidden"],
    table_VD: Float[Array, "vocab hidden"],
    shares_SVD: Float[Array, "1 vocab hidden"],
    bias_V: Float[Array, "vocab"],
    labels_N: Int[Array, "rows"],
) -> Scored:
    """Returns `cross_entropy` of ``rows · tableᵀ + bias`` in float32, on one CPU.

    XLA's CPU compiler would write the logits both with and without their bias, and read them once
    for each reduction. This function makes half as many passes. It writes only the logits without
    their bias, and the exponentials. In the gradient, the softmax's normaliser and the loss weight
    form one factor per row. The factor scales the small operands and results of the matrix
    products, not the [rows, vocab] logits. The vocabulary must be a multiple of 128 pieces.
    """
    return _on_cpu_forward(rows_ND, table_VD, shares_SVD, bias_V, labels_N)[0]


def _on_cpu_forward(
    rows: Array, table: Array, shares: Array, bias: Array, labels: Array
) -> tuple[Scored, tuple[Array, ...]]:
    del shares
    logits = jnp.matmul(rows, table.T)
    each_row = jnp.arange(len(rows))
    picked = logits[each_row, labels] + bias[labels]
    in_lanes = logits.reshape(len(rows), -1, _LANES) + bias.reshape(-1, _LANES)
    largest = in_lanes.max(axis=1).max(axis=-1)
    powers = jnp.exp(logits + bias - largest[:, None])
    total = powers.sum(axis=-1)
    right = (picked >= largest).astype(jnp.float32)
    return Scored(largest + jnp.log(total) - picked, right), (rows, table, labels, powers, total)


def _on_cpu_backward(
    kept: tuple[Array, ...], gradient: Scored
) -> tuple[Array, None, Array, Array, None]:
    rows, table, labels, powers, total = kept
    # The gradient of the logits is factor · (powers − total at the label).
    factor = gradient.loss / total
    slopes = powers.at[jnp.arange(len(rows)), labels].add(-total)
    of_rows = factor[:, None] * jnp.matmul(slopes, table)
    of_table = jax.lax.dot_general(slopes, factor[:, None] * rows, (((0,), (0,)), ((), ())))
    of_bias = jnp.matmul(jnp.broadcast_to(factor, (_LINES, len(rows))), slopes)[0]
    return of_rows, None, of_table[None], of_bias, None


cpu_cross_entropy.defvjp(_on_cpu_forward, _on_cpu_backward)
