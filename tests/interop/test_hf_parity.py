"""An imported Hugging Face model computes the same numbers as the PyTorch model.

Hidden states, logits, loss and gradients agree up to a few float32 rounding errors.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import BertForPreTraining

from bert_jax.workflows.objective_of_run import objective_of
from tests.interop.hf_checkpoints import (
    Imported,
    bind,
    google_loss,
    hf_config,
    hf_model,
    import_run,
    mixed_batch,
    save,
    torch_inputs,
)
from tests.interop.reference_adamw import gradient
from tests.support import loss_of, relative_error

# The cases cover all activations, google-research/bert's initialization and larger ones (which make
# activations nonlinear), vocabularies that are or are not a multiple of 128, one to three token
# types, heads of 8 to 32 columns, an FFN not four hidden sizes wide, and unrolled and looped
# layers.
CONFIGS: dict[str, dict[str, Any]] = {
    "L2-H32-erf": {"hidden_act": "gelu"},
    "L2-H48-tanh": {
        "hidden_act": "gelu_new",
        "hidden_size": 48,
        "num_attention_heads": 3,
        "initializer_range": 0.15,
    },
    "L2-H128-tanh-uncased-bert-vocabulary": {
        "hidden_act": "gelu_new",
        "hidden_size": 128,
        "num_attention_heads": 4,
        "intermediate_size": 512,
        "initializer_range": 0.02,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
    },
    "L5-H64-erf-three-types": {
        "hidden_act": "gelu",
        "num_hidden_layers": 5,
        "initializer_range": 0.1,
        "hidden_size": 64,
        "num_attention_heads": 8,
        "intermediate_size": 100,
        "vocab_size": 256,
        "type_vocab_size": 3,
        "layer_norm_eps": 1e-7,
    },
    "L1-H32-relu-one-type": {"hidden_act": "relu", "num_hidden_layers": 1, "type_vocab_size": 1},
}
# Number of pieces in cases with more embedding rows. The softmax includes all rows.
PIECES = {"L2-H48-tanh": 143, "L5-H64-erf-three-types": 250}


class Side(NamedTuple):
    """Results of one implementation, without padding."""

    hidden_states: np.ndarray  # [layers + 1, real tokens, D]: embeddings, then each layer
    pooled: np.ndarray  # [B, D]
    mlm: np.ndarray  # [real tokens, vocab]
    next_sentence: np.ndarray  # [B, 2]
    loss: float
    gradients: dict[str, np.ndarray]


def run_hf(model: BertForPreTraining, batch: dict[str, np.ndarray]) -> Side:
    """Returns hidden states and logits of Hugging Face's model, and gradients of torch."""
    real = batch["segment_ids"] == 1
    loss = google_loss(model, batch)
    model.zero_grad()
    loss.backward()
    with torch.no_grad():
        output = model(**torch_inputs(batch), output_hidden_states=True)
        pooled = model.bert(**torch_inputs(batch)).pooler_output
    return Side(
        hidden_states=np.stack([state.numpy()[real] for state in output.hidden_states]),
        pooled=pooled.numpy(),
        mlm=output.prediction_logits.numpy()[real],
        next_sentence=output.seq_relationship_logits.numpy(),
        loss=loss.item(),
        gradients={name: gradient(p).numpy() for name, p in model.named_parameters()},
    )


def run_ours(found: Imported, arrays: dict[str, np.ndarray]) -> Side:
    """Returns loss and gradients of the run's objective, and the outputs of its model."""
    batch = jax.tree.map(jnp.asarray, arrays)
    task, real = objective_of(found.run), arrays["segment_ids"] == 1
    everywhere = jnp.broadcast_to(jnp.arange(real.shape[1]), real.shape)

    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss_and_outputs(params: Any) -> tuple[jax.Array, Any]:
        model = bind(found.run.build, params)
        last = model.hidden(batch, dropout_key=None)
        pooled = model.pooler(last[:, :1])
        outputs = (
            (model.encoder.every_layer(batch), last),
            pooled[:, 0],
            model.mlm_logits(last, everywhere),
            model.next_sentence(pooled)[:, 0],
        )
        trained = bind(task.build, params)
        loss, _ = loss_of(task, trained, batch)
        return loss, outputs

    (loss, outputs), gradients = jax.device_get(jax.jit(loss_and_outputs)(found.params))
    (states, last), pooled, mlm, next_sentence = outputs
    np.testing.assert_allclose(states[-1][real], last[real], rtol=0, atol=1e-6)
    return Side(
        hidden_states=states[:, real],
        pooled=pooled,
        mlm=mlm[real][:, : found.run.architecture.vocab_size],
        next_sentence=next_sentence,
        loss=float(loss),
        gradients=found.theirs(gradients),
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_states_loss_and_gradients_equal_hugging_faces(name: str, tmp_path: Path) -> None:
    config = hf_config(**CONFIGS[name])
    model = hf_model(BertForPreTraining, config)
    batch = mixed_batch(config)
    found = import_run(save(model, tmp_path / "hf", pieces=PIECES.get(name)), tmp_path / "run")
    ours, theirs = run_ours(found, batch), run_hf(model, batch)
    for quantity in ("hidden_states", "pooled", "mlm", "next_sentence"):
        one, other = (getattr(side, quantity) for side in (ours, theirs))
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5, err_msg=quantity)
    assert ours.loss == pytest.approx(theirs.loss, rel=1e-6)
    assert ours.gradients.keys() == theirs.gradients.keys()
    keys = [name for name in theirs.gradients if "attention.self.key.bias" in name]
    errors = {
        name: relative_error(ours.gradients[name], expected)
        for name, expected in theirs.gradients.items()
        if name not in keys
    }
    assert {name: error for name, error in errors.items() if error > 1e-4} == {}
    # The bias of a key adds a constant to all scores of a query, which softmax cancels. The exact
    # gradient is zero, so both gradients are rounding errors.
    assert keys
    for name in keys:
        scale = np.linalg.norm(theirs.gradients[name.replace("key", "query")])
        for side in (ours, theirs):
            assert np.linalg.norm(side.gradients[name]) < 1e-4 * scale
