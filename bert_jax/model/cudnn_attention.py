"""Attention by cuDNN, without dropout, on NVIDIA GPUs.

cuDNN reads which keys a query sees from one [length, length] array per row, which all heads and
layers share. It stores no scores. Tests compare it with `bert_jax.model.xla_attention`.
"""

from typing import Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from bert_jax.parallel.sharding_rules import per_shard

_STATES: Final = ("batch", "length", "heads", "head_dim")
_VISIBLE: Final = ("batch", "rest", "length", "length")

WIDEST_HEAD: Final = 128
"""Maximum width of a head. It must be a multiple of 8."""


def cudnn_attention(
    q_BQHK: Float[Array, "batch queries heads head_dim"],
    k_BLHK: Float[Array, "batch length heads head_dim"],
    v_BLHK: Float[Array, "batch length heads head_dim"],
    visible: Bool[Array, "batch 1 queries length"],
) -> Float[Array, "batch queries heads head_dim"]:
    """Returns softmax(q·kᵀ/√K)·v over the visible keys, for arrays in bfloat16.

    `visible` says which keys a query sees, see `xla_attention.visible_keys`.
    """
    run = per_shard(_attended, arguments=(*(_STATES,) * 3, _VISIBLE), results=(_STATES,))
    return run(q_BQHK, k_BLHK, v_BLHK, visible)[0]


def _attended(q: Array, k: Array, v: Array, visible: Array) -> tuple[Array]:
    queries = q.shape[1]
    # JAX refuses the gradients of an odd number of queries or keys.
    q, k, v = (jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0))) for x in (q, k, v))
    visible = jnp.pad(visible, ((0, 0), (0, 0), *((0, size % 2) for size in visible.shape[2:])))
    out = jax.nn.dot_product_attention(q, k, v, mask=visible, implementation="cudnn")
    return (out[:, :queries],)
