"""Metrics of objectives as (sum, count), and their means."""

import jax
import jax.numpy as jnp

from bert_jax.model.cross_entropy import Scored
from bert_jax.task import Batch, Metrics, Sums


def token_weights(batch: Batch) -> jax.Array:
    """Returns 1 for tokens and 0 for padding, float32 [B, L]."""
    return (batch["segment_ids"] > 0).astype(jnp.float32)


def summed(term: str, scored: Scored, weights: jax.Array) -> Metrics:
    """Returns loss and accuracy of a term as (sum, count): ``mlm_loss``, ``mlm_accuracy``."""
    count = weights.sum()
    return {
        f"{term}_loss": ((scored.loss * weights).sum(), count),
        f"{term}_accuracy": ((scored.right * weights).sum(), count),
    }


def means(sums: Sums, *names: str) -> dict[str, float]:
    """Returns sum / count of the named metrics. A count below 1 counts as 1."""
    return {name: sums[name][0] / max(sums[name][1], 1.0) for name in names}
