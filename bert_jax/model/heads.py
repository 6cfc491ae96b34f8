"""The two pretraining heads: masked language model and next sentence."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from bert_jax.model.config import Activation, Architecture, Execution
from bert_jax.model.initial import Constant
from bert_jax.model.layers import ACTIVATIONS, Dense, LayerNorm, ParamUse, add_bias, param, product
from bert_jax.parallel.rules import constrain

# Pieces that only pad the table to a multiple of 128 must never win or weigh in a softmax.
NO_PIECE = -1e9


def gather_positions(
    hidden_BLD: Float[Array, "batch length hidden"], positions_BP: Int[Array, "batch predictions"]
) -> Float[Array, "batch predictions hidden"]:
    """Returns the hidden states at the given positions of each row.

    It comes BEFORE the vocabulary projection: at 76 of 512 positions that saves 85% of the
    largest product of the model.
    """
    return jnp.take_along_axis(hidden_BLD, positions_BP[..., None], axis=1)


class MlmHead(nnx.Module):
    """Dense, activation, LayerNorm, then the embedding table itself as the decoder.

    The table is handed in at every call: the head owns no reference to it.
    """

    def __init__(self, *, architecture: Architecture, execution: Execution) -> None:
        width = architecture.hidden_size
        self.transform = Dense(
            (width, width),
            ("embed", "pooled"),
            outputs=1,
            architecture=architecture,
            execution=execution,
        )
        self.norm = LayerNorm(architecture=architecture, execution=execution)
        self.bias = param((architecture.padded_vocab_size,), ("vocab",), Constant(0.0))
        self.activation: Activation = architecture.hidden_act
        self.vocab_size = architecture.vocab_size
        self.table = ParamUse(("hidden", "vocab"), execution.gradient_dtype)

    def __call__(
        self,
        hidden_BPD: Float[Array, "batch predictions hidden"],
        table_VD: Float[Array, "vocab hidden"],
    ) -> Float[Array, "batch predictions vocab"]:
        """Returns float32 logits over the padded vocabulary; padding pieces hold −1e9."""
        x_BPD = self.norm(ACTIVATIONS[self.activation](self.transform(hidden_BPD)))
        rows_ND = x_BPD.reshape(-1, x_BPD.shape[-1])
        logits_NV = product(rows_ND, table_VD.T, jnp.float32, self.table)
        # The table's rows beyond the vocabulary are zero, so the bias alone speaks for them.
        is_piece = jnp.arange(self.bias.shape[0]) < self.vocab_size
        logits_NV = add_bias(logits_NV, jnp.where(is_piece, self.bias[...], NO_PIECE))
        # Nothing may stand between this shape and that of the loss, or both are copied.
        return constrain(logits_NV, "batch", "vocab").reshape(*x_BPD.shape[:2], -1)


class Pooler(nnx.Module):
    """The tanh layer over a [CLS] token."""

    def __init__(self, *, architecture: Architecture, execution: Execution) -> None:
        width = architecture.hidden_size
        self.dense = Dense(
            (width, width),
            ("embed", "pooled"),
            outputs=1,
            architecture=architecture,
            execution=execution,
        )

    def __call__(
        self, cls_BED: Float[Array, "batch examples hidden"]
    ) -> Float[Array, "batch examples hidden"]:
        """Returns the pooled vector of every [CLS] token."""
        return jnp.tanh(self.dense(cls_BED))


class NextSentenceHead(nnx.Module):
    """Two classes over a pooled vector: 0 = the second span follows, 1 = it is random."""

    def __init__(self, *, architecture: Architecture, execution: Execution) -> None:
        # Two columns cost nothing in float32, and in bf16 the gradient of the bias, a sum of terms
        # that nearly cancel, is a fifth off.
        precise = execution.model_copy(update={"dtype": "float32"})
        self.classifier = Dense(
            (architecture.hidden_size, 2),
            ("embed", "classes"),
            outputs=1,
            architecture=architecture,
            execution=precise,
        )

    def __call__(
        self, pooled_BED: Float[Array, "batch examples hidden"]
    ) -> Float[Array, "batch examples 2"]:
        """Returns float32 logits."""
        return self.classifier(pooled_BED).astype(jnp.float32)


class TaskHead(Dense):
    """A fine-tuned head: one affine map in float32, as in google-research/bert and Hugging Face."""

    def __init__(self, *, outputs: int, architecture: Architecture, execution: Execution) -> None:
        super().__init__(
            (architecture.hidden_size, outputs),
            ("embed", "classes"),
            outputs=1,
            architecture=architecture,
            execution=execution.model_copy(update={"dtype": "float32"}),
        )


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
