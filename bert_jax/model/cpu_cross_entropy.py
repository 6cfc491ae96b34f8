"""The loss of a vocabulary's pieces on one CPU, with half the passes over the logits.

XLA's CPU compiler writes logits with their bias beside those without, and takes a pass for every
reduction. Here the logits are written without their bias, and their exponentials once. What softmax
divides by, and a row's weight in the loss, multiply the rows of the products instead.
Held to `bert_jax.model.cross_entropy`.

Shape suffixes: N rows, D their columns, V pieces.
"""

from typing import Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.model.cross_entropy import Scored

# Pieces side by side: a maximum over an outer axis adds the bias as it reads; for one over the last
# axis the sums would be written.
_LANES: Final = 128
# A product of one row is a loop of scalars.
_LINES: Final = 8


@jax.custom_vjp
def cpu_cross_entropy(
    rows_ND: Float[Array, "rows hidden"],
    table_VD: Float[Array, "vocab hidden"],
    shares_SVD: Float[Array, "1 vocab hidden"],
    bias_V: Float[Array, "vocab"],
    labels_N: Int[Array, "rows"],
) -> Scored:
    """Returns `cross_entropy` of the logits ``rows · tableᵀ + bias``, in float32.

    The table's gradient goes to its shares (`bert_jax.model.tied`), not to the table.
    The vocabulary is a multiple of 128 pieces.
    """
    return _forward(rows_ND, table_VD, shares_SVD, bias_V, labels_N)[0]


def _forward(
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


def _backward(kept: tuple[Array, ...], gradient: Scored) -> tuple[Array, None, Array, Array, None]:
    rows, table, labels, powers, total = kept
    # Of the logits it would be factor · (powers − total at the label).
    factor = gradient.loss / total
    slopes = powers.at[jnp.arange(len(rows)), labels].add(-total)
    of_rows = factor[:, None] * jnp.matmul(slopes, table)
    of_table = jax.lax.dot_general(slopes, factor[:, None] * rows, (((0,), (0,)), ((), ())))
    of_bias = jnp.matmul(jnp.broadcast_to(factor, (_LINES, len(rows))), slopes)[0]
    return of_rows, None, of_table[None], of_bias, None


cpu_cross_entropy.defvjp(_forward, _backward)
