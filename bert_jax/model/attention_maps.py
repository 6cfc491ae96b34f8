"""Attention probabilities of every layer and head."""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bert_jax.model.attention import SelfAttention
from bert_jax.model.bert import Bert
from bert_jax.model.xla_attention import masked_scores, same_segment


def attention_maps(
    model: Bert, batch: Mapping[str, Array]
) -> Float[Array, "layers batch heads length length"]:
    """Returns the attention probabilities of every layer and head: float32, no dropout.

    ``maps[layer, row, head, query, key]`` is the share of `key`'s value in `query`. It sums to 1
    over the tokens of the query's segment; padding has 0, as query and as key. Queries and keys are
    in the execution's dtype, as in training. All maps are in memory together, layers · B · heads ·
    L² numbers: enough for a few sentences. The batch is as for `Bert.hidden`.
    """
    entering_NBLD = model.every_layer(batch)[:-1]
    attention_def, stacked = nnx.split(model.encoder.layers.attention)

    def layer(_: None, state_and_params: tuple[Array, nnx.State]) -> tuple[None, Array]:
        x_BLD, params = state_and_params
        return None, _weights(nnx.merge(attention_def, params), x_BLD, batch["segment_ids"])

    _, maps_NBHLM = jax.lax.scan(layer, None, (entering_NBLD, stacked))
    return maps_NBHLM


def _weights(
    attention: SelfAttention,
    x_BLD: Float[Array, "batch length hidden"],
    segment_ids: Int[Array, "batch length"],
) -> Float[Array, "batch heads length length"]:
    """The probabilities within `xla_attention`, which keeps them to itself."""
    q_BLHK, k_BLHK, _ = attention.projected(x_BLD)
    visible = same_segment(segment_ids, segment_ids) & (segment_ids > 0)[:, None, None, :]
    scores_BHLM = masked_scores(q_BLHK.swapaxes(1, 2), k_BLHK.swapaxes(1, 2), visible)
    # A padding query sees no key: replace its uniform average by zeros.
    return jnp.where(visible, jax.nn.softmax(scores_BHLM, axis=-1), 0.0)
