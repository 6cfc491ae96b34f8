"""Encoders against Hugging Face's: states, logits, losses, every gradient."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from transformers import PreTrainedModel

from bert_jax.encoders.build import encoder_builder
from bert_jax.encoders.registry import read_model_section
from bert_jax.encoders.roberta.section import RobertaArchitecture
from bert_jax.interop.hf_checkpoint import read_hf
from bert_jax.model.cross_entropy import cross_entropy
from bert_jax.model.encoder_model import EncoderModel
from bert_jax.model.section import Execution, Remat
from bert_jax.train.state import define_model
from tests.interop.hf_checkpoints import (
    hf_model,
    model_class,
    save,
    small_config,
    under_their_names,
)
from tests.project import refuses
from tests.train.harness import QUICK

pytestmark = pytest.mark.slow

PREDICTIONS = 3  # per example
NOT_PREDICTED = -100


class Case(NamedTuple):
    """A model, and examples of some lengths."""

    kind: str
    changes: dict[str, Any]
    lengths: Sequence[int]
    packed: bool = False  # whether our row has all examples
    unroll: int | None = None
    remat: Remat = "none"


_FOUR_HEADS = {"num_attention_heads": 4}
_THREE_HEADS = {"hidden_size": 36, "num_attention_heads": 3}
# States grow from layer to layer, and so does their rounding.
_DEEP = {"num_hidden_layers": 4, "initializer_range": 0.1}
CASES = [
    Case("RobertaForMaskedLM", {"num_hidden_layers": 1, "vocab_size": 131}, (9, 4)),
    Case("RobertaForMaskedLM", {"pad_token_id": 1, "hidden_act": "relu"}, (5, 17, 11), packed=True),
    Case("RobertaForMaskedLM", {"pad_token_id": 5, "hidden_size": 36}, (7, 21), packed=True),
    Case("XLMRobertaForMaskedLM", {"num_hidden_layers": 3, "type_vocab_size": 2}, (23,), unroll=1),
    Case("CamembertForMaskedLM", {"intermediate_size": 50, "num_attention_heads": 1}, (3, 30)),
    Case("RobertaForSequenceClassification", {"num_labels": 3}, (8, 5)),
    Case("ElectraForMaskedLM", {"num_hidden_layers": 1, "vocab_size": 131}, (9, 4)),
    Case("ElectraForMaskedLM", {"embedding_size": 40, "hidden_size": 36}, (7, 21), packed=True),
    Case("ElectraForPreTraining", {"num_hidden_layers": 3}, (23, 8), unroll=1),
    Case("ElectraForPreTraining", {"embedding_size": 32, "hidden_act": "relu"}, (3, 30)),
    Case("ElectraForSequenceClassification", {"num_labels": 3}, (8, 5)),
    Case("DistilBertForMaskedLM", {"num_hidden_layers": 1, "vocab_size": 131}, (9, 4)),
    Case("DistilBertForMaskedLM", {"hidden_size": 36, "activation": "relu"}, (7, 21), packed=True),
    Case("DistilBertForMaskedLM", {"hidden_dim": 50, "num_hidden_layers": 3}, (23,), unroll=1),
    Case("DistilBertForSequenceClassification", {"num_labels": 3, "n_heads": 1}, (8, 5)),
    Case("AlbertForMaskedLM", {"num_hidden_layers": 1, "vocab_size": 131}, (9, 4)),
    Case(
        "AlbertForMaskedLM",
        {"num_hidden_groups": 2, "num_hidden_layers": 3},
        (7, 21, 5),
        packed=True,
    ),
    Case("AlbertForMaskedLM", {"embedding_size": 32, "hidden_act": "relu"}, (3, 30), unroll=1),
    Case(
        "AlbertForMaskedLM",
        {"num_hidden_groups": 2, "num_hidden_layers": 5},
        (12,),
        unroll=2,
        remat="full",
    ),
    Case("AlbertForSequenceClassification", {"num_labels": 3, "hidden_size": 36}, (8, 5)),
    Case("DebertaV2ForMaskedLM", {}, (7, 21, 5), packed=True),
    Case(
        "DebertaV2ForMaskedLM",
        {"pos_att_type": ["c2p"], "share_att_key": False, "num_hidden_layers": 1},
        (39, 4),
    ),
    Case(
        "DebertaV2ForMaskedLM",
        {
            **{"pos_att_type": "p2c", "position_buckets": 13, "norm_rel_ebd": "none"},
            **{"share_att_key": False, "num_hidden_layers": 3, "hidden_size": 36},
        },
        (23, 30),
        unroll=1,
    ),
    Case(
        "DebertaV2ForMaskedLM",
        {"embedding_size": 24, "position_biased_input": True, "type_vocab_size": 2},
        (9, 33),
        remat="attention",
    ),
    Case(
        "DebertaV2ForMaskedLM",
        {"position_buckets": -1, "max_relative_positions": 6, "num_attention_heads": 1},
        (3, 30),
        remat="full",
    ),
    Case("DebertaV2ForMaskedLM", {"pos_att_type": [], "intermediate_size": 50}, (3, 40)),
    Case(
        "DebertaV2ForMaskedLM",
        {"share_att_key": False, "max_relative_positions": 20, "position_buckets": 16},
        (12, 37),
        packed=True,
        unroll=1,
    ),
    Case("DebertaV2ForSequenceClassification", {"num_labels": 3, "hidden_act": "relu"}, (8, 25)),
    Case("EuroBertForMaskedLM", {"num_hidden_layers": 1, "vocab_size": 131}, (9, 4)),
    Case("EuroBertForMaskedLM", {**_FOUR_HEADS, "num_key_value_heads": 2}, (7, 21, 5), packed=True),
    Case(
        "EuroBertForMaskedLM",
        {**_THREE_HEADS, **_DEEP, "num_key_value_heads": 1},
        (39, 4),
        unroll=1,
    ),
    Case(
        "EuroBertForMaskedLM",
        {
            **{**_DEEP, "num_hidden_layers": 5, "num_attention_heads": 1},
            "rope_parameters": {"rope_type": "default", "rope_theta": 250.0},
        },
        (12,),
        unroll=2,
        remat="full",
    ),
    Case("EuroBertForMaskedLM", {"hidden_act": "gelu", "intermediate_size": 50}, (3, 30)),
    Case("EuroBertForMaskedLM", {"rms_norm_eps": 0.3}, (9, 33), packed=True, remat="attention"),
    *(
        Case(
            "EuroBertForSequenceClassification",
            {"num_labels": 3, "classifier_pooling": pooling, "num_hidden_layers": 1},
            (8, 5),
        )
        for pooling in ("late", "bos", "mean")
    ),
    Case("NeoBERTLMHead", {"num_hidden_layers": 1, "vocab_size": 131}, (9, 4)),
    Case("NeoBERTLMHead", {**_FOUR_HEADS, "norm_eps": 0.3}, (7, 21, 5), packed=True),
    Case("NeoBERTLMHead", {**_THREE_HEADS, **_DEEP}, (39, 4), unroll=1),
    Case("NeoBERTLMHead", {"intermediate_size": 50, "num_attention_heads": 1}, (3, 30)),
    Case("NeoBERTLMHead", {"num_attention_heads": 16, "num_hidden_layers": 3}, (12,), unroll=2),
    Case("NeoBERTLMHead", {"intermediate_size": 12}, (9, 33), packed=True, remat="full"),
    Case("NeoBERTForSequenceClassification", {"num_labels": 3}, (8, 5)),
]


class Examples(NamedTuple):
    """Random examples as padded rows [N, L], with distinct positions of predictions [N, P]."""

    ids: np.ndarray
    mask: np.ndarray
    positions: np.ndarray

    @property
    def answers(self) -> np.ndarray:
        return np.take_along_axis(self.ids, self.positions, 1)

    @classmethod
    def of(cls, case: Case, config: Any) -> "Examples":
        rng = np.random.default_rng(len(case.lengths))
        mask = np.arange(max(case.lengths)) < np.array(case.lengths)[:, None]
        allowed = np.setdiff1d(np.arange(config.vocab_size), config.pad_token_id)
        ids = np.where(mask, rng.choice(allowed, mask.shape), config.pad_token_id)
        positions = np.stack([rng.permutation(length)[:PREDICTIONS] for length in case.lengths])
        return cls(ids, mask, positions)

    def theirs(self) -> dict[str, torch.Tensor]:
        arrays = {"input_ids": self.ids, "attention_mask": self.mask.astype(int)}
        return {name: torch.tensor(array) for name, array in arrays.items()}

    def ours(self, *, packed: bool) -> dict[str, jax.Array]:
        """Returns our batch, with a row per example or with one row for all examples."""
        rows, columns = np.indices(self.mask.shape)
        batch = {"input_ids": self.ids, "segment_ids": self.mask}
        starts = np.zeros((len(self.ids), 1), int)
        if packed:
            of_tokens = {"input_ids": self.ids, "segment_ids": rows + 1, "position_ids": columns}
            batch = {name: array[self.mask][None] for name, array in of_tokens.items()}
            starts = np.cumsum([0, *self.mask.sum(1)[:-1]])[:, None]
        shape = len(batch["input_ids"]), -1
        batch["masked_lm_positions"] = (self.positions + starts).reshape(shape)
        batch["masked_lm_ids"] = self.answers.reshape(shape)
        batch["token_type_ids"] = np.zeros_like(batch["input_ids"])
        return {name: jnp.asarray(array, jnp.int32) for name, array in batch.items()}


def their_results(model: PreTrainedModel, examples: Examples) -> Any:
    """Returns Hugging Face's output, after the backward pass of its loss."""
    name = type(model).__name__
    if "PreTraining" in name:
        labels = examples.ids % 2
    elif name.endswith(("MaskedLM", "LMHead")):
        labels = np.full(examples.ids.shape, NOT_PREDICTED)
        np.put_along_axis(labels, examples.positions, examples.answers, 1)
    else:
        labels = np.arange(len(examples.ids))
    found = model(**examples.theirs(), labels=torch.tensor(labels), output_hidden_states=True)
    found.loss.backward()
    return found


def our_logits(model: EncoderModel, batch: dict[str, jax.Array], *, vocab_size: int) -> jax.Array:
    hidden = model.hidden(batch, dropout_key=None)
    if model.heads.task is not None:
        return model.task_logits(hidden, batch["segment_ids"])
    if model.heads.replaced_tokens:
        return model.replaced_token_logits(hidden, batch["segment_ids"])
    logits = model.mlm_logits(hidden, batch["masked_lm_positions"])
    return logits[..., :vocab_size].reshape(-1, PREDICTIONS, vocab_size)


def our_loss(model: EncoderModel, batch: dict[str, jax.Array]) -> jax.Array:
    if model.heads.mlm:
        return model.scored(batch, dropout_key=None).mlm.loss.mean()
    logits = our_logits(model, batch, vocab_size=0)
    if model.heads.replaced_tokens:
        labels, is_token = batch["input_ids"] % 2, batch["segment_ids"]
        loss = jax.nn.softplus(logits) - labels * logits
        return (loss * is_token).sum() / is_token.sum()
    return cross_entropy(logits[:, None], jnp.arange(len(logits))[:, None]).loss.mean()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind} {case.changes}")
def test_states_logits_loss_and_gradients_equal_hugging_faces(tmp_path: Path, case: Case) -> None:
    kind = model_class(case.kind)
    config = small_config(case.kind, **case.changes)
    theirs = hf_model(kind, config, seed=len(case.lengths))
    found, examples = read_hf(save(theirs, tmp_path)), Examples.of(case, config)
    wanted, batch = their_results(theirs, examples), examples.ours(packed=case.packed)

    execution = Execution(dtype="float32", unroll=case.unroll, remat=case.remat)
    definition = define_model(encoder_builder(found.architecture, execution, found.heads))
    params = jax.tree.map(jnp.asarray, found.params)

    def compute(params: Any) -> Any:
        model: EncoderModel = nnx.merge(definition.graphdef, params)
        logits = our_logits(model, batch, vocab_size=config.vocab_size)
        return our_loss(model, batch), (model.encoder.every_layer(batch), logits)

    slope: Any = jax.jit(jax.value_and_grad(compute, has_aux=True)).lower(params)
    (loss, (states, logits)), slopes = slope.compile(compiler_options=QUICK)(params)
    real = np.asarray(batch["segment_ids"]) > 0
    for state, expected in zip(states, wanted.hidden_states, strict=True):
        np.testing.assert_allclose(
            np.asarray(state)[real], expected.detach().numpy()[examples.mask], atol=1e-5
        )
    expected = wanted.logits.detach().numpy()
    if found.heads.mlm:
        expected = np.take_along_axis(expected, examples.positions[..., None], 1)
    if found.heads.replaced_tokens:
        logits, expected = np.asarray(logits)[real], expected[examples.mask]
    np.testing.assert_allclose(logits, expected, atol=1e-5)
    # The loss is about 6, and float32 has steps of 5e-7 there.
    assert float(loss) == pytest.approx(wanted.loss.item(), rel=1e-6)
    ours = under_their_names(slopes, found.architecture, found.heads)
    gradients = {}
    for name in ours:
        parameter = theirs.get_parameter(name)
        unread = torch.zeros_like(parameter)  # a table of relative positions without a reader
        gradients[name] = (unread if parameter.grad is None else parameter.grad).numpy()
    assert len(ours) == len(list(theirs.parameters()))
    for name, found_gradient in ours.items():
        # Softmax cancels the biases of most keys, so their gradients are rounding.
        if abs(gradients[name]).max() < 1e-6:
            assert name.endswith((".bias", "rel_embeddings.weight", "encoder.LayerNorm.weight"))
            assert abs(found_gradient).max() < 1e-6
            continue
        limit = 1e-4 * abs(gradients[name]).max()
        np.testing.assert_allclose(found_gradient, gradients[name], atol=limit, err_msg=name)


def test_the_tokenizers_padding_determines_the_positions() -> None:
    values: dict[str, Any] = {"kind": "roberta", "size": "base"}
    section = read_model_section(values, source="")
    for padding, first in ((None, 2), (0, 1), (3, 4)):
        found = section.resolve(vocab_size=100, padding_id=padding)
        assert isinstance(found, RobertaArchitecture)
        assert (found.first_position, found.max_position_embeddings) == (first, 512)
    other = read_model_section(values | {"architecture": {"padding_position": 1}}, source="")
    assert other.resolve(vocab_size=100, padding_id=1) == section.resolve(vocab_size=100)
    place = "model.architecture.padding_position"
    with refuses("roberta.padding_position", place=place, found=1, padding_id=0):
        other.resolve(vocab_size=100, padding_id=0)
