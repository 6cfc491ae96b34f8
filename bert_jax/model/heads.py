"""The heads: masked language model, pooler, next sentence, and task."""

from collections.abc import Callable
from typing import ClassVar, Final

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from bert_jax.kernels.cross_entropy import NO_PIECE
from bert_jax.model.architecture import Activation, EncoderArchitecture, PostNormArchitecture
from bert_jax.model.cross_entropy import (
    Scored,
    cpu_cross_entropy,
    cross_entropy,
    decoded_cross_entropy,
)
from bert_jax.model.initial import Constant, TruncatedNormal
from bert_jax.model.largest_logits import cpu_largest_logits, largest_logits
from bert_jax.model.layers import ACTIVATIONS, Dense, LayerNorm, add_bias, param
from bert_jax.model.section import Dtype, Execution, Implementation
from bert_jax.model.tied_embedding import decoded, shares_of
from bert_jax.parallel.parameter_groups import ParameterGroup
from bert_jax.parallel.sharding_rules import constrain, on_one_cpu, parts_in_use

HEAD_GROUPS: Final = (
    ParameterGroup("pooler", "pooler", title="the pooler"),
    ParameterGroup("next_sentence", "heads", title="the next-sentence head"),
    ParameterGroup("replaced_tokens", "heads", title="the replaced-token head"),
    ParameterGroup("classifier", "heads", title="the classifier's dense layer"),
    ParameterGroup("task", "heads", title="the task head"),
    ParameterGroup("mlm", "heads", title="the MLM head"),
    ParameterGroup("embedding", "heads", title="the embedding head"),
)
"""The groups of the heads that every encoder can have."""


class MlmDecoder(nnx.Module):
    """A decoder with the embedding table as its matrix, and a bias."""

    has_bias: ClassVar[bool] = True

    def __init__(self, *, architecture: EncoderArchitecture, execution: Execution) -> None:
        if self.has_bias:
            self.bias = param((architecture.padded_vocab_size,), ("vocab",), Constant(0.0))
        self.vocab_size = architecture.vocab_size
        self.gradient_dtype: Dtype = execution.sum_dtype
        self.dtype: Dtype = execution.dtype
        self.loss: Implementation = execution.loss

    def rows(self, hidden_BPD: Array) -> Array:
        """Returns the input of the decoder, [B, P, D]."""
        return hidden_BPD

    def matrix(self, table_VD: Array, shares_SVD: Array | None) -> tuple[Array, Array]:
        """Returns the matrix of the product, [V, D], and its shares, see `tied_embedding`."""
        if shares_SVD is None:
            return table_VD, shares_of(table_VD, self.gradient_dtype)
        return table_VD, shares_SVD

    def __call__(
        self,
        hidden_BPD: Float[Array, "batch predictions hidden"],
        table_VD: Float[Array, "vocab embedding"],
        shares_SVD: Float[Array, "devices vocab embedding"] | None = None,
    ) -> Float[Array, "batch predictions vocab"]:
        """Returns float32 logits over the padded vocabulary. Logits of padding are −1e9.

        For the shares of a model that is trained, see `tied_embedding`.
        """
        return self._logits(self.rows(hidden_BPD), *self.matrix(table_VD, shares_SVD))

    def scored(
        self,
        hidden_BPD: Float[Array, "batch predictions hidden"],
        table_VD: Float[Array, "vocab embedding"],
        shares_SVD: Float[Array, "devices vocab embedding"],
        labels_BP: Int[Array, "batch predictions"],
    ) -> Scored:
        """Returns `cross_entropy` of the logits. For the shares, see `tied_embedding`."""
        core, rows_BPD = self._core(), self.rows(hidden_BPD)
        table_VD, shares_SVD = self.matrix(table_VD, shares_SVD)
        if core is None:
            return cross_entropy(self._logits(rows_BPD, table_VD, shares_SVD), labels_BP)
        flat = core(
            _flat(rows_BPD), table_VD, shares_SVD, self._bias(len(table_VD)), labels_BP.reshape(-1)
        )
        return Scored(*(each.reshape(labels_BP.shape) for each in flat))

    def largest(
        self,
        hidden_BPD: Float[Array, "batch tokens hidden"],
        table_VD: Float[Array, "vocab embedding"],
        shares_SVD: Float[Array, "devices vocab embedding"],
        is_token_BP: Bool[Array, "batch tokens"],
    ) -> Float[Array, "batch vocab"]:
        """Returns the largest logit of each piece over the tokens of a text, see `largest_logits`.

        For the shares, see `tied_embedding`.
        """
        core = cpu_largest_logits if self._on_one_cpu else largest_logits
        table_VD, shares_SVD = self.matrix(table_VD, shares_SVD)
        found_BV = core(self.rows(hidden_BPD), table_VD, shares_SVD, is_token_BP)
        return constrain(add_bias(found_BV, self._bias(len(table_VD))), "batch", "vocab")

    @property
    def _on_one_cpu(self) -> bool:
        return self.dtype == "float32" and on_one_cpu() and parts_in_use("vocab") == 1

    def _core(self) -> Callable[[Array, Array, Array, Array, Array], Scored] | None:
        """Returns the function that computes both logits and losses, or None for plain JAX."""
        if self.loss == "fused":
            return decoded_cross_entropy
        return cpu_cross_entropy if self._on_one_cpu else None

    def _logits(self, rows_BPD: Array, table_VD: Array, shares_SVD: Array) -> Array:
        logits_NV = add_bias(
            decoded(_flat(rows_BPD), table_VD, shares_SVD), self._bias(len(table_VD))
        )
        # Reshape last: an operation between this and the reshape of the loss would cause copies.
        return constrain(logits_NV, "batch", "vocab").reshape(*rows_BPD.shape[:2], -1)

    def _bias(self, size: int) -> Array:
        """Returns the bias of `size` rows, with −1e9 for the padding of the vocabulary."""
        is_piece = jnp.arange(size) < self.vocab_size
        return jnp.where(is_piece, self.bias[...] if self.has_bias else 0.0, NO_PIECE)


def _flat(rows_BPD: Array) -> Array:
    return rows_BPD.reshape(-1, rows_BPD.shape[-1])


class UntiedDecoder(MlmDecoder):
    """A decoder with a matrix of its own instead of the embedding table, without a bias."""

    has_bias = False

    def __init__(self, *, architecture: EncoderArchitecture, execution: Execution) -> None:
        super().__init__(architecture=architecture, execution=execution)
        pieces = TruncatedNormal(architecture.initializer_range, rows=architecture.vocab_size)
        size = architecture.padded_vocab_size, architecture.hidden_size
        self.word = param(size, ("vocab", "embed"), pieces, read=execution.dtype)

    def matrix(self, table_VD: Array, shares_SVD: Array | None) -> tuple[Array, Array]:
        """Returns the decoder's own matrix. The embedding table and its shares have no use."""
        del table_VD, shares_SVD
        return super().matrix(self.word[...], None)


class BiasedUntiedDecoder(UntiedDecoder):
    """A decoder with a matrix of its own and a bias."""

    has_bias = True


class MlmHead(MlmDecoder):
    """Dense, activation, LayerNorm, and the decoder."""

    def __init__(self, *, architecture: PostNormArchitecture, execution: Execution) -> None:
        width = architecture.embedding_width
        parts = {"architecture": architecture, "execution": execution}
        size = (architecture.hidden_size, width)
        self.transform = Dense(size, ("embed", "pooled"), **parts)
        self.norm = LayerNorm(width=width, **parts)
        super().__init__(**parts)
        self.activation: Activation = architecture.head_act

    def rows(self, hidden_BPD: Array) -> Array:
        """Returns the input of the decoder, [B, P, D]."""
        return self.norm(ACTIVATIONS[self.activation](self.transform(hidden_BPD)))


class Pooler(nnx.Module):
    """A dense layer with an activation on a [CLS] token."""

    def __init__(
        self,
        *,
        activation: Callable[[Array], Array] = jnp.tanh,
        architecture: EncoderArchitecture,
        execution: Execution,
    ) -> None:
        self.activation = activation
        size, axes = (architecture.hidden_size,) * 2, ("embed", "pooled")
        self.dense = Dense(size, axes, architecture=architecture, execution=execution)

    def __call__(
        self, cls_BED: Float[Array, "batch examples hidden"]
    ) -> Float[Array, "batch examples hidden"]:
        """Returns the pooled vector of every [CLS] token."""
        return self.activation(self.dense(cls_BED))


class NextSentenceHead(nnx.Module):
    """Classifies a pooled vector. Class 0: the second span follows; class 1: it is random."""

    def __init__(self, *, architecture: EncoderArchitecture, execution: Execution) -> None:
        # float32, because the terms of the bias's gradient nearly cancel: in bfloat16 the gradient
        # is 20% off. Two columns cost no time.
        precise = execution.model_copy(update={"dtype": "float32"})
        size, axes = (architecture.hidden_size, 2), ("embed", "classes")
        self.classifier = Dense(size, axes, architecture=architecture, execution=precise)

    def __call__(
        self, pooled_BED: Float[Array, "batch examples hidden"]
    ) -> Float[Array, "batch examples 2"]:
        """Returns float32 logits."""
        return self.classifier(pooled_BED).astype(jnp.float32)


class ReplacedTokenHead(nnx.Module):
    """Tells for each token whether it was replaced: dense, activation, one logit.

    Source: arXiv 2003.10555; `get_discriminator_predictions` of google-research/electra.
    """

    def __init__(self, *, architecture: EncoderArchitecture, execution: Execution) -> None:
        width = architecture.hidden_size
        parts = {"architecture": architecture, "execution": execution}
        self.transform = Dense((width, width), ("embed", "pooled"), **parts)
        precise = execution.model_copy(update={"dtype": "float32"})
        size, axes = (width, 1), ("embed", "classes")
        self.classifier = Dense(size, axes, architecture=architecture, execution=precise)
        self.activation: Activation = architecture.hidden_act

    def __call__(
        self, hidden_BLD: Float[Array, "batch length hidden"]
    ) -> Float[Array, "batch length"]:
        """Returns float32 logits: above 0 for a token that was probably replaced."""
        inner_BLD = ACTIVATIONS[self.activation](self.transform(hidden_BLD))
        return self.classifier(inner_BLD)[..., 0].astype(jnp.float32)


class TaskHead(Dense):
    """The head of a task: a dense layer in float32, as in google-research/bert and Hugging Face."""

    def __init__(
        self,
        *,
        outputs: int,
        deviation: float | None = None,
        architecture: EncoderArchitecture,
        execution: Execution,
    ) -> None:
        size, axes = (architecture.hidden_size, outputs), ("embed", "classes")
        precise = execution.model_copy(update={"dtype": "float32"})
        parts = {"architecture": architecture, "execution": precise}
        super().__init__(size, axes, deviation=deviation, **parts)
