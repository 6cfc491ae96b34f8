"""The largest logit of each piece over the tokens of a text, which sparse encoders read.

Shape suffixes: B texts, P tokens, V pieces, D hidden size, S devices that share the batch. For
shares, see `tied_embedding`.
"""

from typing import Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bert_jax.kernels.cross_entropy import NO_PIECE
from bert_jax.model.tied_embedding import decoded
from bert_jax.parallel.sharding_rules import constrain

_UNROLL: Final = 8  # tokens per iteration on a CPU


def largest_logits(
    rows_BPD: Float[Array, "batch tokens hidden"],
    table_VD: Float[Array, "vocab hidden"],
    shares_SVD: Float[Array, "devices vocab hidden"],
    is_token_BP: Bool[Array, "batch tokens"],
) -> Float[Array, "batch vocab"]:
    """Returns the maximum of ``rows · tableᵀ`` over the tokens of each text, float32.

    The gradient belongs to the first of equal logits. A text without tokens has −1e9 or less.
    """
    flat_ND = rows_BPD.reshape(-1, rows_BPD.shape[-1])
    logits_NV = constrain(decoded(flat_ND, table_VD, shares_SVD), "batch", "vocab")
    logits_BPV = logits_NV.reshape(*rows_BPD.shape[:2], -1)
    return _first_largest(logits_BPV + jnp.where(is_token_BP, 0.0, NO_PIECE)[..., None])


@jax.custom_vjp
def _first_largest(logits_BPV: Array) -> Array:
    """Returns the maximum over P. The backward pass does not need the logits."""
    return logits_BPV.max(axis=1)


def _first_largest_forward(logits_BPV: Array) -> tuple[Array, tuple[Array, Array]]:
    largest_BV = logits_BPV.max(axis=1)
    places_P = jnp.arange(logits_BPV.shape[1])
    # Two reductions, because XLA's CPU compiler emits a scalar loop for an argmax.
    is_largest_BPV = logits_BPV == largest_BV[:, None]
    first_BV = jnp.where(is_largest_BPV, places_P[:, None], len(places_P)).min(axis=1)
    return largest_BV, (first_BV, places_P)


def _first_largest_backward(kept: tuple[Array, Array], gradient_BV: Array) -> tuple[Array]:
    first_BV, places_P = kept
    return (jnp.where(first_BV[:, None] == places_P[:, None], gradient_BV[:, None], 0.0),)


_first_largest.defvjp(_first_largest_forward, _first_largest_backward)


@jax.custom_vjp
def cpu_largest_logits(
    rows_BPD: Float[Array, "batch tokens hidden"],
    table_VD: Float[Array, "vocab hidden"],
    shares_SVD: Float[Array, "1 vocab hidden"],
    is_token_BP: Bool[Array, "batch tokens"],
) -> Float[Array, "batch vocab"]:
    """Returns `largest_logits` in float32, on one CPU.

    A piece's logit has one gradient per text, at one token. So the backward pass gathers and adds
    B · V rows instead of computing two products with B · P · V gradients, nearly all of them zero.
    On a CPU it takes a sixth of the time; an accelerator is faster at products.
    """
    return _on_cpu_forward(rows_BPD, table_VD, shares_SVD, is_token_BP)[0]


def _on_cpu_forward(
    rows_BPD: Array, table_VD: Array, shares_SVD: Array, is_token_BP: Array
) -> tuple[Array, tuple[Array, ...]]:
    del shares_SVD
    flat_ND = rows_BPD.reshape(-1, rows_BPD.shape[-1])
    logits_BPV = jnp.matmul(flat_ND, table_VD.T).reshape(*rows_BPD.shape[:2], -1)

    def compare(place: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        largest_BV, first_BV = found
        here_BV = jax.lax.dynamic_index_in_dim(logits_BPV, place, axis=1, keepdims=False)
        is_larger_BV = (here_BV > largest_BV) & is_token_BP[:, place, None]
        return jnp.where(is_larger_BV, here_BV, largest_BV), jnp.where(
            is_larger_BV, place, first_BV
        )

    shape = len(rows_BPD), len(table_VD)
    none = jnp.full(shape, NO_PIECE), jnp.zeros(shape, jnp.int32)
    # A loop reads the logits once. Reductions would read them twice, and not in vectors.
    largest_BV, first_BV = jax.lax.fori_loop(
        0, rows_BPD.shape[1], compare, none, unroll=min(_UNROLL, rows_BPD.shape[1])
    )
    return largest_BV, (rows_BPD, table_VD, first_BV)


def _on_cpu_backward(
    kept: tuple[Array, ...], gradient_BV: Array
) -> tuple[Array, None, Array, None]:
    rows_BPD, table_VD, first_BV = kept

    def add(of_table_VD: Array, text: tuple[Array, ...]) -> tuple[Array, Array]:
        rows_PD, gradient_V, first_V = text
        slopes_V1 = gradient_V[:, None]
        of_rows_PD = jnp.zeros_like(rows_PD).at[first_V].add(slopes_V1 * table_VD)
        return of_table_VD + slopes_V1 * rows_PD[first_V], of_rows_PD

    of_table_VD, of_rows_BPD = jax.lax.scan(
        add, jnp.zeros_like(table_VD), (rows_BPD, gradient_BV, first_BV)
    )
    return of_rows_BPD, None, of_table_VD[None], None


cpu_largest_logits.defvjp(_on_cpu_forward, _on_cpu_backward)
