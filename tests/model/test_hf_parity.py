"""The model computes what Hugging Face's PyTorch BertForPreTraining computes, and its gradients.

Two implementations that share no line: what they agree on to a few float32 roundings is BERT.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from bert_jax.model.config import Architecture
from bert_jax.model.heads import gather_positions
from bert_jax.objectives.bert import MLM_EPSILON
from tests.model.hf_weights import hf_model, load_into, to_hf
from tests.model.parts import fresh_params, model_of
from tests.support import relative_error, small_task

ROWS, LENGTH, PREDICTIONS = 6, 48, 7

# A vocabulary a multiple of 128 and others that are not; heads of 8 to 64 columns; the last one
# has the release's vocabulary.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "L2-H64-tanh": {"hidden_act": "gelu_tanh"},
    "L2-H64-erf": {"hidden_act": "gelu_erf"},
    "L3-H96-relu": {
        "hidden_act": "relu",
        "num_hidden_layers": 3,
        "hidden_size": 96,
        "num_attention_heads": 4,
        "intermediate_size": 200,
        "vocab_size": 384,
        "type_vocab_size": 3,
    },
    "L4-H256-tanh": {
        "num_hidden_layers": 4,
        "hidden_size": 256,
        "num_attention_heads": 4,
        "intermediate_size": 1024,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
    },
}


@dataclasses.dataclass(frozen=True)
class Side:
    """What one implementation computed; hidden states of padding are left out."""

    hidden: np.ndarray  # [real tokens, D]
    pooled: np.ndarray  # [B, D]
    mlm: np.ndarray  # [B, P, vocab]
    next_sentence: np.ndarray  # [B, 2]
    loss: float
    gradients: dict[str, np.ndarray]


def mixed_batch(architecture: Architecture) -> dict[str, np.ndarray]:
    """Rows of unequal length with unequal numbers of masks at distinct positions."""
    rng = np.random.default_rng(7)
    lengths = np.linspace(PREDICTIONS + 1, LENGTH, ROWS).astype(int)
    inside = np.arange(LENGTH) < lengths[:, None]
    counts = rng.integers(1, PREDICTIONS + 1, ROWS)
    positions = np.stack([rng.permutation(length)[:PREDICTIONS] for length in lengths])
    ids = rng.integers(0, architecture.vocab_size, (ROWS, LENGTH))
    second = np.arange(LENGTH) >= lengths[:, None] // 2
    return {
        "input_ids": np.where(inside, ids, 0).astype(np.int32),
        "token_type_ids": (inside & second).astype(np.int32),
        "segment_ids": inside.astype(np.int32),
        "masked_lm_positions": positions.astype(np.int32),
        "masked_lm_ids": rng.integers(0, architecture.vocab_size, positions.shape).astype(np.int32),
        "masked_lm_weights": (np.arange(PREDICTIONS) < counts[:, None]).astype(np.float32),
        "cls_positions": np.zeros((ROWS, 1), np.int32),
        "next_sentence_labels": rng.integers(0, 2, (ROWS, 1)).astype(np.int32),
        "next_sentence_weights": np.ones((ROWS, 1), np.float32),
    }


def run_ours(name: str) -> tuple[Side, dict[str, Any], Architecture]:
    """Loss and gradients through the objective; the states through the modules it is made of."""
    task = small_task(**ARCHITECTURES[name])
    batch = {key: jnp.asarray(value) for key, value in mixed_batch(task.architecture).items()}
    params = fresh_params(task, seed=3)
    # Fresh biases are 0 and fresh scales 1: noise makes a swapped or forgotten one visible.
    rng = np.random.default_rng(11)
    params = jax.tree.map(
        lambda leaf: leaf + (0.02 * rng.standard_normal(leaf.shape)).astype(np.float32), params
    )

    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss_and_states(params: Any) -> tuple[jax.Array, Any]:
        model = model_of(task, params)
        names = ("input_ids", "token_type_ids", "segment_ids")
        hidden = model.encoder(*(batch[name] for name in names), dropout_key=None)
        pooled = model.pooler(gather_positions(hidden, batch["cls_positions"]))
        logits = model(batch, dropout_key=None)
        loss, _ = task.loss(model, batch, weights=task.weights(batch), dropout_key=None)
        return loss, (hidden, pooled, logits)

    (value, (hidden, pooled, logits)), gradients = jax.device_get(jax.jit(loss_and_states)(params))
    vocab = task.architecture.vocab_size
    side = Side(
        hidden=hidden[batch["segment_ids"] == 1],
        pooled=pooled[:, 0],
        mlm=logits.mlm[..., :vocab],
        next_sentence=logits.next_sentence[:, 0],
        loss=float(value),
        gradients=to_hf(gradients, vocab_size=vocab),
    )
    return side, params, task.architecture


def run_hf(params: dict[str, Any], architecture: Architecture) -> Side:
    """The same batch through Hugging Face's model, and torch's own gradients."""
    batch = mixed_batch(architecture)
    model = hf_model(architecture)
    load_into(model, params, vocab_size=architecture.vocab_size)
    ids, types, mask, positions, masked_ids, nsp_labels = (
        torch.from_numpy(batch[name]).long()
        for name in (
            "input_ids",
            "token_type_ids",
            "segment_ids",
            "masked_lm_positions",
            "masked_lm_ids",
            "next_sentence_labels",
        )
    )
    weighted = torch.from_numpy(batch["masked_lm_weights"]) > 0
    row = torch.arange(ROWS)[:, None].expand_as(positions)
    labels = torch.full_like(ids, -100)
    labels[row[weighted], positions[weighted]] = masked_ids[weighted]
    inputs = {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}
    output = model(
        **inputs, labels=labels, next_sentence_label=nsp_labels, output_hidden_states=True
    )
    # Hugging Face divides by the number of masked pieces, the release by that + 1e-5.
    nsp = torch.nn.functional.cross_entropy(output.seq_relationship_logits, nsp_labels[:, 0])
    count = int(weighted.sum())
    loss = (output.loss - nsp) * count / (count + MLM_EPSILON) + nsp
    loss.backward()
    hidden = output.hidden_states[-1]
    return Side(
        hidden=hidden[mask == 1].detach().numpy(),
        pooled=model.bert(**inputs).pooler_output.detach().numpy(),
        mlm=output.prediction_logits[row, positions].detach().numpy(),
        next_sentence=output.seq_relationship_logits.detach().numpy(),
        loss=loss.item(),
        gradients={name: p.grad.numpy() for name, p in model.named_parameters()},
    )


@functools.cache
def both(name: str) -> tuple[Side, Side]:
    """Ours and Hugging Face's, from the same parameters."""
    ours, params, architecture = run_ours(name)
    return ours, run_hf(params, architecture)


@pytest.fixture(params=ARCHITECTURES)
def sides(request: pytest.FixtureRequest) -> tuple[Side, Side]:
    return both(request.param)


@pytest.mark.parametrize("quantity", ["hidden", "pooled", "mlm", "next_sentence"])
def test_states_and_logits_are_those_of_hugging_face(
    sides: tuple[Side, Side], quantity: str
) -> None:
    ours, theirs = (getattr(side, quantity) for side in sides)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def test_the_loss_is_that_of_hugging_face_with_the_releases_divisor(
    sides: tuple[Side, Side],
) -> None:
    ours, theirs = sides
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-6)


def test_every_gradient_is_that_of_torch(sides: tuple[Side, Side]) -> None:
    ours, theirs = sides
    assert ours.gradients.keys() == theirs.gradients.keys()
    errors = {
        name: relative_error(ours.gradients[name], expected)
        for name, expected in theirs.gradients.items()
        if "attention.self.key.bias" not in name
    }
    assert {name: error for name, error in errors.items() if error > 1e-4} == {}


def test_the_key_bias_has_no_gradient_on_either_side(sides: tuple[Side, Side]) -> None:
    """It adds the same number to every score of a query, which softmax takes out again: what
    either side computes is rounding, so the two are compared with zero and not with each other."""
    ours, theirs = (side.gradients for side in sides)
    names = [name for name in theirs if "attention.self.key.bias" in name]
    assert names
    for name in names:
        scale = np.linalg.norm(theirs[name.replace("key", "query")])
        assert np.linalg.norm(ours[name]) < 1e-4 * scale
        assert np.linalg.norm(theirs[name]) < 1e-4 * scale
