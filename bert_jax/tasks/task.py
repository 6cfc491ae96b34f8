"""The fine-tuning task of the train loop: model, loss and loss denominator."""

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from bert_jax.encoders.build import encoder_builder
from bert_jax.model.architecture import TRAINING, EncoderArchitecture
from bert_jax.model.cross_entropy import cross_entropy
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.layers import subkey
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.task import Batch, FrozenModel, Metrics, Rngs, Sums
from bert_jax.tasks.batches import INPUTS, WEIGHTS
from bert_jax.tasks.family import NO_LABEL, Split


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneTask:
    """A fine-tuning task. The loss is a weighted mean over rows, or over labelled pieces."""

    architecture: EncoderArchitecture
    execution: Execution
    heads: HeadsSection
    class_weights: tuple[float, ...] | None = None
    frozen: frozenset[str] = frozenset()  # names of frozen parameters, such as ``pooler/bias``
    chunks: int = 1  # microbatches that the task itself makes of the batch of `loss`

    def build(self) -> EncoderModel:
        """Returns the encoder with the task's head."""
        return encoder_builder(self.architecture, self.execution, self.heads)()

    def check_rows(self, train: Split) -> None:
        """Raises UserError if the model does not fit the rows of the training set."""

    def frozen_models(self) -> Mapping[str, FrozenModel]:
        """Returns no models."""
        return {}

    def divisors(self, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the denominator of the loss: the total weight of rows or pieces."""
        return {"task": jnp.maximum(self._item_weights(batch).sum(), 1e-9)}

    def loss(
        self,
        model: nnx.Module,
        batch: Batch,
        *,
        divisors: Mapping[str, jax.Array],
        rngs: Rngs,
        frozen: Mapping[str, nnx.Module],
    ) -> tuple[jax.Array, Metrics]:
        """Returns the loss, divided by `divisors`, and {"task_loss": (sum, total weight)}."""
        del frozen
        model = self._without_frozen_gradients(model)
        losses = self._losses(logits(model, batch, dropout_key=rngs.dropout), batch)
        items = self._item_weights(batch)
        total = (losses * items).sum()
        return total / divisors["task"], {"task_loss": (total, items.sum())}

    def flops_per_row(self, *, seq_length: int) -> float:
        """Returns the FLOPs of a row, forward and backward."""
        read = 1 if self.heads.scores_rows else None
        return TRAINING * self.architecture.forward_flops(seq_length=seq_length, read=read)

    def score(self, sums: Sums) -> dict[str, float]:
        """Returns the mean loss."""
        total, count = sums["task_loss"]
        return {"loss": total / max(count, 1e-9)}

    def _without_frozen_gradients(self, model: nnx.Module) -> EncoderModel:
        """Returns the model with stopped gradients at frozen parameters.

        JAX then skips the backward pass below the lowest trained parameter.
        """
        if self.frozen:
            graphdef, state = nnx.split(model)
            named = flatten_dict(nnx.to_pure_dict(state), sep="/")
            held = {name: jax.lax.stop_gradient(named[name]) for name in self.frozen}
            model = nnx.merge(graphdef, unflatten_dict(named | held, sep="/"))
        assert isinstance(model, EncoderModel)
        return model

    def _item_weights(self, batch: Batch) -> jax.Array:
        """Returns the weight of each row, [B]; token classification: of each piece, [B, L]."""
        rows = batch[WEIGHTS]
        if self.heads.task == "token_classification":
            labels = batch["labels"]
            return rows[:, None] * (labels != NO_LABEL) * self._class_weights(labels)
        if self.heads.task == "sequence_classification" and self.heads.problem == "single_label":
            return rows * self._class_weights(batch["label"])
        return rows

    def _class_weights(self, labels: jax.Array) -> jax.Array:
        if self.class_weights is None:
            return jnp.ones(labels.shape, jnp.float32)
        return jnp.asarray(self.class_weights, jnp.float32)[jnp.maximum(labels, 0)]

    def _losses(self, found: jax.Array, batch: Batch) -> jax.Array:
        """Returns the loss of each row, [B]; token classification: of each piece, [B, L]."""
        heads = self.heads
        if heads.task == "token_classification":
            return cross_entropy(found, jnp.maximum(batch["labels"], 0)).loss
        if heads.task == "question_answering":
            ends = jnp.stack([batch["start"], batch["end"]], axis=1)
            return cross_entropy(position_logits(found, batch), ends).loss.mean(axis=1)
        if heads.problem == "regression":
            return jnp.square(found[:, 0] - batch["label"])
        if heads.problem == "multi_label":
            targets = batch["label"].astype(jnp.float32)
            per_label = optax.sigmoid_binary_cross_entropy(found, targets)
            if self.class_weights is not None:
                per_label = per_label * jnp.asarray(self.class_weights, jnp.float32)
            return per_label.mean(axis=-1)
        return cross_entropy(found[:, None], batch["label"][:, None]).loss[:, 0]


# Logit of padding positions and missing choices, which must never be an answer.
NO_POSITION = -1e9


def position_logits(found: jax.Array, batch: Batch) -> jax.Array:
    """Returns the logits of start and end over the tokens of a row, [B, 2, L]."""
    inside = batch["segment_ids"][:, :, None] > 0
    return jnp.where(inside, found, NO_POSITION).swapaxes(1, 2)


def logits(model: EncoderModel, batch: Batch, *, dropout_key: jax.Array | None) -> jax.Array:
    """Returns the float32 logits of the task head for a batch of `collate`.

    The shape is [B, labels], [B, choices], [B, L, labels] or [B, L, 2]; see
    `EncoderModel.task_logits`. A model that encodes single texts has no task head: its results are
    those of `EncoderModel.embedded`, [B, ...], or [B, N, ...] if a row has N texts. In evaluation,
    `dropout_key` is None.
    """
    shape = batch["input_ids"].shape
    flat = {name: batch[name].reshape(-1, shape[-1]) for name in INPUTS}
    if model.heads.vectors is not None:
        vectors = model.embedded(flat, dropout_key=dropout_key)
        return vectors.reshape(*shape[:-1], *vectors.shape[1:])
    queries = model.read_positions(flat["segment_ids"])
    hidden = model.hidden(flat, queries_BQ=queries, dropout_key=dropout_key)
    # Subkeys 0 and 1 belong to the encoder.
    found = model.task_logits(hidden, flat["segment_ids"], dropout_key=subkey(dropout_key, 2))
    if len(shape) < 3:
        return found
    # Questions with fewer choices than others have empty ones.
    exists = (batch["segment_ids"] > 0).any(axis=-1)
    return jnp.where(exists, found.reshape(shape[:-1]), NO_POSITION)
