"""The gradient of the vocabulary's table, which both the embedding lookup and the decoder use.

The gradient of the decoder covers the whole table, and the gradient of the lookup a few rows. Two
separate gradients would be two arrays of the table's size, and their sum a third. Instead, the
decoder passes its gradient to the backward pass of the lookup, as the gradient of `shares`: an
array with a part for each device, which is zero in the forward pass. The lookup adds its rows to
the shares. Only then are the shares summed over devices.

Shape suffixes: S devices that share the batch, V pieces, D hidden size, B batch, L length.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.kernels.precision import precision_of
from bert_jax.model.layers import placed
from bert_jax.model.section import Dtype
from bert_jax.parallel.gradient_sum import device_shares, summed_shares
from bert_jax.parallel.sharding_rules import constrain, parts_in_use

_TABLE = ("vocab", "hidden")
_SHARES = ("batch", *_TABLE)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def shares_of(table_VD: Float[Array, "vocab hidden"], dtype: Dtype) -> Array:
    """Returns zeros [S, V, D]. Summed over S in `dtype`, their gradient is the table's."""
    del dtype
    shape = (parts_in_use("batch"), *table_VD.shape)
    return constrain(jnp.zeros(shape, jnp.float32), *_SHARES)


def _shares_forward(table: Array, dtype: Dtype) -> tuple[Array, None]:
    return shares_of(table, dtype), None


def _shares_backward(dtype: Dtype, _: None, shares: Array) -> tuple[Array]:
    return (summed_shares(shares.astype(dtype), ("vocab", "embed")).astype(jnp.float32),)


shares_of.defvjp(_shares_forward, _shares_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def looked_up(
    table_VD: Float[Array, "vocab hidden"],
    shares_SVD: Float[Array, "devices vocab hidden"],
    input_ids: Int[Array, "batch length"],
    dtype: Dtype,
) -> tuple[Array, Array]:
    """Returns the embeddings [B, L, D], float32, and the shares for the decoder.

    The lookup and the decoder read the same array, the table in `dtype`. So the devices gather it
    once. The gradient is returned through the shares, not the table.
    """
    return placed(table_VD, dtype, _TABLE)[input_ids].astype(jnp.float32), shares_SVD


def _looked_up_forward(
    table: Array, shares: Array, input_ids: Array, dtype: Dtype
) -> tuple[tuple[Array, Array], Array]:
    return looked_up(table, shares, input_ids, dtype), input_ids


def _looked_up_backward(
    dtype: Dtype, input_ids: Array, gradient: tuple[Array, Array]
) -> tuple[None, Array, None]:
    del dtype
    of_rows, shares = gradient

    def share(shares: Array, numbers: Array, ids: Array, of_rows: Array) -> Array:
        """Adds the rows of this device's pieces to its share, and drops other rows."""
        own = ids.reshape(-1) - numbers[0]
        own = jnp.where(own >= 0, own, len(numbers))  # a negative index would wrap around
        of_rows = of_rows.reshape(-1, of_rows.shape[-1])
        return shares[0].at[own].add(of_rows, mode="drop")

    numbers = jnp.arange(shares.shape[1], dtype=jnp.int32)
    found = device_shares(
        share,
        *(shares, numbers, input_ids, of_rows),
        arguments=(_SHARES, ("vocab",), ("batch", "length"), ("batch", "length", "hidden")),
        axes=_TABLE,
    )
    return None, found, None


looked_up.defvjp(_looked_up_forward, _looked_up_backward)


@jax.custom_vjp
def decoded(
    rows_ND: Float[Array, "rows hidden"],
    table_VD: Float[Array, "vocab hidden"],
    shares_SVD: Float[Array, "devices vocab hidden"],
) -> Array:
    """Returns ``rows · tableᵀ``, float32 [N, V]. The shares receive the table's gradient."""
    return _decoded_forward(rows_ND, table_VD, shares_SVD)[0]


def _decoded_forward(rows: Array, table: Array, shares: Array) -> tuple[Array, tuple[Array, Array]]:
    del shares
    table = placed(table, rows.dtype, _TABLE)
    logits = jnp.matmul(
        rows, table.T, precision=precision_of(rows.dtype), preferred_element_type=jnp.float32
    )
    return logits, (rows, table)


def _decoded_backward(kept: tuple[Array, Array], gradient: Array) -> tuple[Array, None, Array]:
    rows, table = kept
    precision = precision_of(rows.dtype)

    def share(gradient: Array, rows: Array) -> Array:
        return jax.lax.dot_general(
            *(gradient, rows, (((0,), (0,)), ((), ()))),
            precision=precision,
            preferred_element_type=jnp.float32,
        )

    arguments = ("batch", "vocab"), ("batch", "hidden")
    shares = device_shares(share, gradient, rows, arguments=arguments, axes=_TABLE)
    of_rows = jnp.matmul(gradient, table, precision=precision, preferred_element_type=rows.dtype)
    return of_rows, None, shares


decoded.defvjp(_decoded_forward, _decoded_backward)
