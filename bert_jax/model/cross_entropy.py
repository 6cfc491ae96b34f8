"""Losses over logits: of classes, and of the pieces of a vocabulary by one kernel."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.kernels.cross_entropy import decode, decode_backward
from bert_jax.model.layers import placed


class Scored(NamedTuple):
    """How predictions compare with their labels."""

    loss: Float[Array, "batch items"]  # −log p(label), nats
    right: Float[Array, "batch items"]  # 1 where no class has a higher logit than the label


def cross_entropy(
    logits: Float[Array, "batch items classes"], labels: Int[Array, "batch items"]
) -> Scored:
    """Returns −log p(label) in float32, and whether the label is the most probable class.

    The largest logit, which the loss needs anyway, tells whether the label won; an argmax would
    read all logits once more.
    The gradient is written out: it reads the logits once, where the derivative of the picking
    and of the sum would each write an array of their size. Rows are one axis: the product that
    makes the logits has them so, and another shape of 77 predictions a row would be a copy.
    """
    flat = _cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))
    return Scored(*(each.reshape(labels.shape) for each in flat))


@jax.custom_vjp
def _cross_entropy(logits: Array, labels: Array) -> Scored:
    return _cross_entropy_forward(logits, labels)[0]


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
    """Returns the labels' logits by comparing with an iota, in the pass that reads them anyway.

    Where the classes are split over devices, each compares its own part and one sum joins them.
    """
    return jnp.where(_is_label(logits, labels), logits, 0.0).sum(axis=-1)


def _indexed(logits: Array, labels: Array) -> Array:
    """Returns the same by indexing: XLA's CPU compiler would write all that it compares."""
    return jnp.take_along_axis(logits, labels[..., None], axis=-1, mode="clip")[..., 0]


def _is_label(logits: Array, labels: Array) -> Array:
    return labels[..., None] == jnp.arange(logits.shape[-1])


_cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)


def decoded_cross_entropy(
    rows_ND: Float[Array, "rows hidden"],
    table_VD: Float[Array, "vocab hidden"],
    shares_SVD: Float[Array, "devices vocab hidden"],
    bias_V: Float[Array, "vocab"],
    labels_N: Int[Array, "rows"],
) -> Scored:
    """Returns the same of the logits ``rows · tableᵀ + bias``, by `bert_jax.kernels.cross_entropy`.

    The table's gradient goes to its shares (`bert_jax.model.tied`), not to the table.
    `rows_ND`: in the dtype of the product; `table_VD` and `bias_V`: float32.
    """
    return _decoded(rows_ND, table_VD, shares_SVD, bias_V, labels_N)


@jax.custom_vjp
def _decoded(rows: Array, table: Array, shares: Array, bias: Array, labels: Array) -> Scored:
    return _decoded_forward(rows, table, shares, bias, labels)[0]


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


_decoded.defvjp(_decoded_forward, _decoded_backward)
