"""Self-attention: the projections here, the core by name from one registry."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bert_jax.kernels.attention import fused_attention
from bert_jax.kernels.random_bits import tile_seeds
from bert_jax.model.config import Architecture, AttentionName, Execution
from bert_jax.model.dropout import dropout
from bert_jax.model.layers import Dense, project_together, subkey
from bert_jax.parallel.per_shard import per_shard
from bert_jax.parallel.rules import constrain

# Finite, so that a row without any visible key gives a uniform average and not a NaN.
MASKED: Final = -1e9

AttentionCore = Callable[..., Array]


def xla_attention(
    q_BLHK: Float[Array, "batch length heads head_dim"],
    k_BLHK: Float[Array, "batch length heads head_dim"],
    v_BLHK: Float[Array, "batch length heads head_dim"],
    segment_ids: Int[Array, "batch length"],
    *,
    dropout_rate: float,
    dropout_key: Array | None,
) -> Float[Array, "batch length heads head_dim"]:
    """Bidirectional attention in plain JAX: the reference every other implementation is held to.

    softmax(q·kᵀ/√K) in float32 over the keys of the query's own segment, dropout on the
    probabilities, times v (google-research/bert `modeling.py`, `attention_layer`).

    Args:
        q_BLHK: queries.
        k_BLHK: keys.
        v_BLHK: values.
        segment_ids: 1, 2, … for the packed example a token belongs to, 0 for padding. A token
            attends to its own segment only.
        dropout_rate: share of probabilities dropped.
        dropout_key: None in evaluation.
    """
    scale = q_BLHK.shape[-1] ** -0.5
    scores_BHLM = jnp.einsum("blhk,bmhk->bhlm", q_BLHK, k_BLHK, preferred_element_type=jnp.float32)
    same_segment = segment_ids[:, None, :, None] == segment_ids[:, None, None, :]
    scores_BHLM = jnp.where(same_segment, scores_BHLM * scale, MASKED)
    weights_BHLM = jax.nn.softmax(scores_BHLM, axis=-1).astype(v_BLHK.dtype)
    weights_BHLM = dropout(weights_BHLM, dropout_rate, dropout_key)
    return jnp.einsum("bhlm,bmhk->blhk", weights_BHLM, v_BLHK)


def fused(
    q_BLHK: Float[Array, "batch length heads head_dim"],
    k_BLHK: Float[Array, "batch length heads head_dim"],
    v_BLHK: Float[Array, "batch length heads head_dim"],
    segment_ids: Int[Array, "batch length"],
    *,
    dropout_rate: float,
    dropout_key: Array | None,
) -> Float[Array, "batch length heads head_dim"]:
    """The same as `xla_attention`, in one kernel (see `bert_jax.kernels.attention`)."""
    batch, _, heads, columns = q_BLHK.shape
    merged = [x.reshape(*x.shape[:2], -1) for x in (q_BLHK, k_BLHK, v_BLHK)]
    draws = dropout_key is not None and dropout_rate > 0.0
    seeds = tile_seeds(dropout_key, (batch, heads)) if draws and dropout_key is not None else ()

    def kernel(q: Array, k: Array, v: Array, segments: Array, *seeds: Array) -> Array:
        return fused_attention(q, k, v, segments, seeds or None, columns=columns, rate=dropout_rate)

    rows = ("batch", "length", "heads")
    run = per_shard(
        kernel,
        arguments=[rows, rows, rows, ("batch", "length"), *[("batch", "heads")] * len(seeds)],
        result=rows,
    )
    return run(*merged, segment_ids, *seeds).reshape(q_BLHK.shape)


# `auto` is resolved for a train step (execution.py); what only goes forward takes the reference.
IMPLEMENTATIONS: Final[dict[AttentionName, AttentionCore]] = {
    "auto": xla_attention,
    "xla": xla_attention,
    "fused": fused,
}


class SelfAttention(nnx.Module):
    """Multi-head self-attention, split by head over the tensor axis."""

    def __init__(self, *, architecture: Architecture, execution: Execution, rngs: nnx.Rngs) -> None:
        width, heads, columns = (
            architecture.hidden_size,
            architecture.num_attention_heads,
            architecture.head_dim,
        )
        dense = functools.partial(Dense, architecture=architecture, execution=execution, rngs=rngs)
        self.query, self.key, self.value = (
            dense((width, heads, columns), ("embed", "heads", "head_dim"), outputs=2)
            for _ in range(3)
        )
        self.output = dense((heads, columns, width), ("heads", "head_dim", "embed"), outputs=1)
        self.core: AttentionName = execution.attention
        # Of what `fused` keeps nothing is of size length x length.
        self.remat_core = execution.remat == "attention" and execution.attention != "fused"
        self.dropout_rate = architecture.attention_probs_dropout_prob

    def __call__(
        self,
        x_BLD: Float[Array, "batch length hidden"],
        segment_ids: Int[Array, "batch length"],
        *,
        dropout_key: Array | None,
    ) -> Float[Array, "batch length hidden"]:
        """Returns the attention's output projection, before the residual sum."""
        q_BLHK, k_BLHK, v_BLHK = (
            constrain(y_BLHK, "batch", "length", "heads", "head_dim")
            for y_BLHK in self._projected(x_BLD)
        )
        core = functools.partial(IMPLEMENTATIONS[self.core], dropout_rate=self.dropout_rate)
        if self.remat_core:
            # Scores are L² a head and cheap to compute again: the most memory for the least work.
            core = jax.checkpoint(core)
        context_BLHK = core(q_BLHK, k_BLHK, v_BLHK, segment_ids, dropout_key=subkey(dropout_key, 0))
        return self.output(context_BLHK)

    def _projected(self, x_BLD: Array) -> list[Array]:
        maps = (self.query, self.key, self.value)
        if self.core == "fused":
            # Each is what the kernel reads as it comes out; parts of a wide one would be copied.
            return [each(x_BLD) for each in maps]
        return project_together(x_BLD, maps)
