"""The loss of ELECTRA: replaced token detection (arXiv 2003.10555).

Shape suffixes: B batch, L length, P masked positions, D hidden size, V padded vocabulary.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import unflatten_dict
from jaxtyping import Array, Float, Int

from bert_jax import task
from bert_jax.data.rows.masking import MaskingSection
from bert_jax.encoders.build import encoder_builder
from bert_jax.encoders.kernel_choice import second_execution
from bert_jax.errors import UserError
from bert_jax.model.architecture import TRAINING, VOCAB_MULTIPLE, EncoderArchitecture
from bert_jax.model.cross_entropy import cross_entropy
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.initial import Constant
from bert_jax.model.layers import subkey
from bert_jax.model.row_key import row_keys
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.objectives.metrics import PlateauWatch, means, summed, token_weights
from bert_jax.objectives.sections import (
    ELECTRA_MASKING,
    ElectraObjectiveSection,
    EmbeddingSharing,
    masked_rows,
)
from bert_jax.parallel.parameter_groups import ParameterGroup, ParameterGroups
from bert_jax.text.tokenizer import Tokenizer

ZERO: Final = Constant(0.0)
GENERATOR_HEADS: Final = HeadsSection(pooler=False, next_sentence=False)
# Added to both divisors, as in google-research/electra `run_pretraining.py`.
EPSILON: Final = 1e-6
HISTOGRAMS: Final = "logits_of_tokens"  # metric of evaluations: histograms instead of sums
# Bins have a width of 0.001 and cover logits of -32 to 32. Larger logits are in the last bins.
BINS: Final = 2**16
BINS_PER_UNIT: Final = 2**10


class Corrupted(NamedTuple):
    """The tokens that the model reads."""

    input_ids: Int[Array, "batch length"]
    is_replaced: Float[Array, "batch length"]  # 1 where a token differs from the text


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplacedTokenDetection:
    """Loss = the generator's MLM loss + `weight` · the mean loss of the model over all tokens.

    Fields with ``compare=False`` affect neither the model nor the loss.
    """

    architecture: EncoderArchitecture
    generator: EncoderArchitecture
    execution: Execution
    heads: HeadsSection  # heads of the model
    embedding_sharing: EmbeddingSharing
    shared_embeddings: tuple[str, ...]
    weight: float
    masking: MaskingSection = dataclasses.field(compare=False)
    tokenizer: Tokenizer = dataclasses.field(compare=False)
    best_metric: str = dataclasses.field(default="loss", compare=False)

    def features(
        self,
        *,
        seq_length: int,
        max_predictions: int | None = None,
        max_examples: int = 1,
        evaluation: bool,
    ) -> task.RowTransform:
        """Returns the row transform. Evaluation always uses `ELECTRA_MASKING`.

        Raises UserError if the generator has fewer positions than a row.
        """
        if seq_length > (positions := self.generator.max_position_embeddings):
            raise UserError(
                "electra.generator_positions",
                f"found {positions}, but rows have {seq_length} tokens. Use at least {seq_length}.",
                place="objective.generator.architecture.max_position_embeddings",
            )
        return masked_rows(
            self.tokenizer,
            ELECTRA_MASKING if evaluation else self.masking,
            seq_length=seq_length,
            max_predictions=None if evaluation else max_predictions,
            max_examples=max_examples,
            pairs=False,
        )

    def build(self) -> EncoderModel:
        """Returns the model, with the generator as its part `GENERATOR`.

        Shared embeddings are parameters of the model. With gradient-disentangled sharing, the
        `DELTAS` have the same paths.
        """
        model = encoder_builder(self.architecture, self.execution, self.heads)()
        execution = second_execution(self.execution, self.generator, first=self.architecture)
        generator = encoder_builder(self.generator, execution, GENERATOR_HEADS)()
        if self.embedding_sharing != "none":
            deltas: dict[str, Any] = {}
            for path, its_path in self._shared(model, generator).items():
                table = _at(model, path)
                _put(generator, its_path, table)
                deltas[path] = table.replace(initial=ZERO)
            if self.embedding_sharing == "gradient_disentangled":
                setattr(model, task.DELTAS, _module(unflatten_dict(deltas, sep="/")))
        setattr(model, task.GENERATOR, generator)
        model.groups = ParameterGroups(
            (
                *(
                    each._replace(prefix=f"{task.GENERATOR}/{each.prefix}")
                    for each in generator.groups
                ),
                ParameterGroup(task.DELTAS, "embeddings", title="the deltas of embeddings"),
                ParameterGroup(task.GENERATOR, "heads", title="the generator"),
                *model.groups,
            )
        )
        return model

    def _shared(self, model: EncoderModel, generator: EncoderModel) -> dict[str, str]:
        """Returns the generator's path of each shared table, by the model's path.

        A table is shared if both networks have it with the same shape.
        """
        ours, theirs = self.architecture.embedding_tables, self.generator.embedding_tables
        pairs = {ours[n]: theirs[n] for n in self.shared_embeddings if n in ours and n in theirs}
        return {a: b for a, b in pairs.items() if _at(model, a).shape == _at(generator, b).shape}

    def frozen_models(self) -> Mapping[str, task.FrozenModel]:
        """Returns no models."""
        return {}

    def divisors(self, batch: task.Batch) -> Mapping[str, jax.Array]:
        """Returns the numbers of masked tokens and of all tokens."""
        return {
            "mlm": batch["masked_lm_weights"].sum() + EPSILON,
            "replaced": token_weights(batch).sum() + EPSILON,
        }

    def loss(
        self,
        model: nnx.Module,
        batch: task.Batch,
        *,
        divisors: Mapping[str, jax.Array],
        rngs: task.Rngs,
        frozen: Mapping[str, nnx.Module],
    ) -> tuple[jax.Array, task.Metrics]:
        """Returns the batch's contribution to the loss, and its metrics as (sum, count)."""
        del frozen
        assert isinstance(model, EncoderModel)
        generator: EncoderModel = getattr(model, task.GENERATOR)
        words_BLD, shares_SVD = generator.encoder.look_up(batch["input_ids"])
        masked_BPD = generator.hidden(
            batch,
            words_BLD=words_BLD,
            queries_BQ=batch["masked_lm_positions"],
            dropout_key=subkey(rngs.dropout, 0),
        )
        rows_BPD = generator.decoder_input(masked_BPD)
        logits_BPV = generator.mlm(rows_BPD, generator.encoder.table, shares_SVD)
        mlm = cross_entropy(logits_BPV, batch["masked_lm_ids"])
        metrics = summed("mlm", mlm, batch["masked_lm_weights"])
        seen = corrupted(batch, drawn(jax.lax.stop_gradient(logits_BPV), rngs.draws))
        if self.embedding_sharing == "gradient_disentangled":
            model = self._with_deltas(model)
        hidden_BLD = model.hidden(
            {**batch, "input_ids": seen.input_ids}, dropout_key=subkey(rngs.dropout, 1)
        )
        logits_BL = model.replaced_token_logits(hidden_BLD, batch["segment_ids"])
        weights_BL = token_weights(batch)
        metrics |= _detection(logits_BL, seen.is_replaced, weights_BL)
        if rngs.dropout is None:
            bins = jnp.floor(logits_BL.astype(jnp.float32) * BINS_PER_UNIT) + BINS // 2
            places = jnp.clip(bins, 0, BINS - 1).astype(jnp.int32)
            empty = jnp.zeros(BINS, jnp.float32)
            replaced, original = (
                empty.at[places].add(each * weights_BL)
                for each in (seen.is_replaced, 1 - seen.is_replaced)
            )
            metrics |= {HISTOGRAMS: (replaced, original)}
        found = metrics["replaced_loss"][0] / divisors["replaced"]
        return metrics["mlm_loss"][0] / divisors["mlm"] + self.weight * found, metrics

    def _with_deltas(self, model: EncoderModel) -> EncoderModel:
        """Returns the model with the sums of shared embeddings and deltas as its embeddings.

        The gradient of a sum goes to the delta alone.
        """
        model = nnx.clone(model)
        for path in self._shared(model, getattr(model, task.GENERATOR)):
            table, delta = _at(model, path), _at(getattr(model, task.DELTAS), path)
            total = jax.lax.stop_gradient(table[...]) + delta[...]
            _put(model, path, table.replace(total))
        return model

    def flops_per_row(self, batch: Mapping[str, Any]) -> float:
        """Returns the model FLOPs of one row, forward and backward, of both networks."""
        length, predictions = (
            batch[name].shape[1] for name in ("input_ids", "masked_lm_positions")
        )
        width = self.architecture.hidden_size
        generator = self.generator.forward_flops(
            seq_length=length, read=predictions, predictions=predictions
        )
        head = 2 * length * (width * width + width)
        return TRAINING * (generator + self.architecture.forward_flops(seq_length=length) + head)

    def watch(self, *, unigram_entropy: float, total_steps: int) -> task.Watch:
        """Returns a watch that warns if the generator's loss stays at the unigram entropy."""
        return PlateauWatch(
            unigram_entropy=unigram_entropy,
            vocab_size=self.architecture.vocab_size,
            total_steps=total_steps,
        )

    def score(self, sums: task.Sums) -> dict[str, float]:
        """Returns the losses, and how well the model finds replaced tokens.

        `replaced_auc`, the area under the ROC curve, is only in evaluations.
        """
        names = [name for name in sums if name.startswith(("mlm_", "replaced_"))]
        scores = means(sums, *names)
        if HISTOGRAMS in sums:
            # The share of pairs in which the replaced token has the higher logit. Two logits in a
            # bin count as half.
            replaced, original = map(np.atleast_1d, sums[HISTOGRAMS])
            won = replaced @ (np.cumsum(original) - original / 2)
            pairs = max(replaced.sum() * original.sum(), 1.0)
            scores["replaced_auc"] = float(won / pairs)
        return {"loss": scores["mlm_loss"] + self.weight * scores["replaced_loss"], **scores}


def _at(module: nnx.Module, path: str) -> Any:
    """Returns the parameter at a path."""
    return functools.reduce(getattr, path.split("/"), module)


def _put(module: nnx.Module, path: str, parameter: nnx.Variable[Any]) -> None:
    """Replaces the parameter at a path."""
    above, _, name = path.rpartition("/")
    setattr(_at(module, above), name, parameter)


def _module(parameters: Mapping[str, Any]) -> nnx.Module:
    """Returns a module with nested parameters."""
    return nnx.Dict(
        {
            name: _module(below) if isinstance(below, Mapping) else below
            for name, below in parameters.items()
        }
    )


def drawn(logits_BPV: Float[Array, "batch predictions vocab"], key: Array) -> Array:
    """Returns pieces drawn from the softmax of the logits, int32 [B, P].

    `key` has the numbers of the rows. The pieces of a row depend on its number, not on other rows.
    """
    # One random number per row finds a block of pieces, then a piece in it. `categorical` would
    # draw a number for each piece of the vocabulary.
    # Flat rows, as in `cross_entropy`: another shape would require a copy of the logits.
    *shape, vocab = logits_BPV.shape
    logits_NKC = logits_BPV.reshape(-1, vocab // VOCAB_MULTIPLE, VOCAB_MULTIPLE)
    highest_N = logits_NKC.max((1, 2))
    sums_NK = jnp.exp(logits_NKC - highest_N[:, None, None]).sum(2)
    uniform_N = jax.vmap(jax.random.uniform)(row_keys(key, len(logits_NKC)))
    block_N, rest_N = _found(sums_NK, uniform_N * sums_NK.sum(1))
    logits_NC = jnp.take_along_axis(logits_NKC, block_N[:, None, None], axis=1)[:, 0]
    piece_N, _ = _found(jnp.exp(logits_NC - highest_N[:, None]), rest_N)
    return (block_N * VOCAB_MULTIPLE + piece_N).astype(jnp.int32).reshape(shape)


def _found(weights_NK: Array, at_N: Array) -> tuple[Array, Array]:
    """Returns the interval that a point is in, and the point's distance from its start.

    The intervals of a row have the lengths `weights_NK` and lie side by side from 0. A point beyond
    the last one, by rounding, counts as its end.
    """
    ends_NK = jnp.cumsum(weights_NK, axis=1)
    at_N = jnp.minimum(at_N, jnp.nextafter(ends_NK[:, -1], jnp.zeros_like(at_N)))
    index_N = (ends_NK <= at_N[:, None]).sum(1)
    starts_NK = jnp.pad(ends_NK, ((0, 0), (1, 0)))
    return index_N, at_N - jnp.take_along_axis(starts_NK, index_N[:, None], axis=1)[:, 0]


def corrupted(batch: task.Batch, pieces_BP: Int[Array, "batch predictions"]) -> Corrupted:
    """Returns the text with `pieces_BP` in place of the masked tokens.

    A piece that equals the original token does not count as replaced.
    """
    ids_BL = batch["input_ids"]
    # Slots without a prediction write behind the row, where they are dropped.
    unused, length = batch["masked_lm_weights"] == 0, ids_BL.shape[1]
    places_BP = jnp.where(unused, length, batch["masked_lm_positions"])
    differs_BP = (pieces_BP != batch["masked_lm_ids"]).astype(jnp.float32)
    write = jax.vmap(lambda row, places, values: row.at[places].set(values, mode="drop"))
    return Corrupted(
        write(ids_BL, places_BP, pieces_BP),
        write(jnp.zeros(ids_BL.shape, jnp.float32), places_BP, differs_BP),
    )


def _detection(logits: Array, is_replaced: Array, weights: Array) -> task.Metrics:
    """Returns the sums of loss, accuracy, precision and recall; all arguments are [B, L]."""
    loss = jax.nn.softplus(logits) - is_replaced * logits
    found = (logits > 0).astype(jnp.float32)
    right = (found * is_replaced * weights).sum()
    return {
        "replaced_loss": ((loss * weights).sum(), weights.sum()),
        "replaced_accuracy": ((jnp.equal(found, is_replaced) * weights).sum(), weights.sum()),
        "replaced_precision": (right, (found * weights).sum()),
        "replaced_recall": (right, (is_replaced * weights).sum()),
    }


def make(
    section: ElectraObjectiveSection,
    *,
    architecture: EncoderArchitecture,
    execution: Execution,
    tokenizer: Tokenizer,
) -> task.Objective:
    """Returns the objective of a section for a model."""
    return ReplacedTokenDetection(
        architecture=architecture,
        generator=section.generator.of_model(architecture),
        execution=execution,
        heads=section.heads,
        embedding_sharing=section.embedding_sharing,
        shared_embeddings=section.shared_embeddings,
        weight=section.weight,
        masking=section.masking,
        tokenizer=tokenizer,
    )
