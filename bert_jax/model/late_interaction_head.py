"""The head of late interaction: a vector for each token, and MaxSim.

Source: ColBERT, arXiv 2004.12832.
"""

from typing import TYPE_CHECKING, Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from bert_jax.model.embedding_head import VectorHead
from bert_jax.model.layers import Linear
from bert_jax.model.pooling import unit_length
from bert_jax.model.text_head import TokenVectorsSection

if TYPE_CHECKING:
    from bert_jax.model.encoder_model import EncoderModel

NEVER: Final = -1e9
"""Similarity with a token that does not count."""
_COSINES_AT_ONCE: Final = 1 << 24  # float32: 64 MiB, over all devices


class LateInteractionHead(VectorHead[TokenVectorsSection]):
    """A linear layer in float32, and vectors of length 1. Vectors of padding are 0."""

    layer = Linear

    def __call__(
        self,
        hidden_BLD: Float[Array, "batch length hidden"],
        segment_ids: Int[Array, "batch length"],
        *,
        model: "EncoderModel",
    ) -> Float[Array, "batch length width"]:
        """Returns the vector of each token, see `VectorHead`."""
        del model
        hidden_BLD = hidden_BLD.astype(jnp.float32)
        vectors_BLW = hidden_BLD if self.settings.projection is None else self.dense(hidden_BLD)
        return unit_length(vectors_BLW) * (segment_ids != 0)[..., None]

    def compare(
        self,
        queries: Float[Array, "queries tokens width"],
        passages: Float[Array, "passages length width"],
    ) -> Float[Array, "queries passages"]:
        """Returns the MaxSim of every query with every passage."""
        return max_sim(queries, passages)


def max_sim(
    queries_QSW: Float[Array, "queries tokens width"],
    passages_PTW: Float[Array, "passages length width"],
) -> Float[Array, "queries passages"]:
    """Returns the sum, over a query's tokens, of the largest product with a passage's token.

    Tokens with the vector 0 do not count. Few passages are compared at a time, and the backward
    pass computes their products again: all products of a global batch would not fit into memory.
    """
    counts_QS = jnp.any(queries_QSW, axis=-1)

    @jax.checkpoint
    def with_passage(passage_TW: Array) -> Array:
        found_QST = jnp.einsum(
            "qsw,tw->qst", queries_QSW, passage_TW, precision=jax.lax.Precision.HIGHEST
        )
        best_QS = jnp.where(jnp.any(passage_TW, axis=-1), found_QST, NEVER).max(axis=-1)
        return jnp.where(counts_QS, best_QS, 0).sum(axis=1)

    cosines = counts_QS.size * passages_PTW.shape[1]
    together = max(_COSINES_AT_ONCE // cosines, 1)
    return jax.lax.map(with_passage, passages_PTW, batch_size=together).T
