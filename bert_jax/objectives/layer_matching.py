"""The losses of TinyBERT between layers of student and teacher (arXiv 1909.10351, section 3.1).

Shape suffixes: N states, B batch, L length, D hidden size.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.encoder_model import Encoder
from bert_jax.model.layer_stack import split_layers
from bert_jax.model.layers import Linear
from bert_jax.model.section import Execution
from bert_jax.model.xla_attention import ScoreFunction, same_segment
from bert_jax.task import Batch, Metrics


class StateProjection(nnx.Module):
    """Maps the student's states to the teacher's width: W_e and W_h of equations 8 and 9."""

    def __init__(
        self, *, width: int, architecture: EncoderArchitecture, execution: Execution
    ) -> None:
        """Creates abstract parameters. `width` is the teacher's hidden size."""
        size, axes = (architecture.hidden_size, width), ("embed", "pooled")
        parts: dict[str, Any] = {"architecture": architecture, "execution": execution}
        self.embeddings, self.layers = (Linear(size, axes, **parts) for _ in range(2))

    def __call__(
        self, states_NBLD: Float[Array, "states batch length hidden"]
    ) -> Float[Array, "states batch length width"]:
        """Returns the projections of the embeddings' output and of the layers' outputs."""
        # The batch must be the first axis of a product, because it is sharded.
        states_BNLD = states_NBLD.swapaxes(0, 1)
        parts = self.embeddings(states_BNLD[:, :1]), self.layers(states_BNLD[:, 1:])
        return jnp.concatenate(parts, axis=1).swapaxes(0, 1)


def hidden_metrics(ours_NBLD: Array, theirs_NBLD: Array, weights_BL: Array) -> Metrics:
    """Returns the sum over tokens of the mean squared difference, summed over states."""
    gap = ours_NBLD.astype(jnp.float32) - theirs_NBLD.astype(jnp.float32)
    squares_BL = jnp.square(gap).mean(axis=-1).sum(axis=0)
    return {"hidden_loss": ((squares_BL * weights_BL).sum(), weights_BL.sum())}


def attention_metrics(
    student: Encoder,
    teacher: Encoder,
    batch: Batch,
    *,
    states: tuple[Array, Array],
    layers: Sequence[int],
) -> Metrics:
    """Returns the sum over pairs of tokens of the mean squared difference of attention scores.

    The scores are those before the softmax (equation 7). Their differences are averaged over heads
    and summed over the student's layers. A pair counts as equal if one token does not see the
    other. The scores of one layer exist at a time; the backward pass computes them again.

    Args:
        student: encoder of the student.
        teacher: encoder of the teacher, with as many heads.
        batch: arrays for `EncoderModel.hidden`.
        states: the states of `every_layer` of student and teacher.
        layers: numbers of the teacher's layers, one per layer of the student.
    """
    functions = [each.score_functions(batch) for each in (student, teacher)]
    inputs = [split_layers(each, [1] * len(each)) for each in states]
    total = jnp.zeros((), jnp.float32)
    for ours, theirs in enumerate(layers):
        gap = functools.partial(_squares, functions[0][ours], functions[1][theirs])
        total += jax.checkpoint(gap)(inputs[0][ours][0], inputs[1][theirs][0])
    return {"attention_loss": (total, token_pairs(batch))}


def token_pairs(batch: Batch) -> Array:
    """Returns the number of pairs of tokens of the same example, float32."""
    segment_ids = batch["segment_ids"]
    pairs = same_segment(segment_ids, segment_ids) & (segment_ids > 0)[:, None, None, :]
    return pairs.astype(jnp.float32).sum()


def _squares(
    ours: ScoreFunction, theirs: ScoreFunction, ours_BLD: Array, theirs_BLD: Array
) -> Array:
    """Returns the sum of squared differences of a layer's scores, divided by the heads."""
    found, expected = ours(ours_BLD), theirs(theirs_BLD)
    gap = jnp.where(found.visible & expected.visible, found.scores - expected.scores, 0.0)
    return jnp.square(gap).mean(axis=1).sum()
