"""What is imported from Hugging Face computes what Hugging Face's PyTorch model computes.

Two implementations that share no line, joined by the importer's own table of names: states, logits,
loss and gradients agree to a few float32 roundings.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from transformers import BertForPreTraining

from bert_jax.model.bert import Bert
from bert_jax.model.config import Execution
from bert_jax.objectives.registry import objective_of
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
from tests.support import relative_error

# Every activation; the initialisation of google-research/bert and wide ones, under which nothing is
# nearly linear; a vocabulary that is a multiple of 128, the one of uncased BERT, and others; one to
# three token types; heads of 8 to 32 columns; an FFN that is not four hidden sizes wide; a stack
# that is unrolled and one that is a loop.
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
# Tokenizers with fewer pieces than the embedding has rows: in the softmax each row counts.
PIECES = {"L2-H48-tanh": 143, "L5-H64-erf-three-types": 250}
QUANTITIES = ("hidden_states", "pooled", "mlm", "next_sentence")


@dataclasses.dataclass(frozen=True)
class Side:
    """What one implementation computed; padding is left out."""

    hidden_states: np.ndarray  # [layers + 1, real tokens, D]: of the embeddings, of each layer
    pooled: np.ndarray  # [B, D]
    mlm: np.ndarray  # [real tokens, vocab]
    next_sentence: np.ndarray  # [B, 2]
    loss: float
    gradients: dict[str, np.ndarray]


def run_hf(model: BertForPreTraining, batch: dict[str, np.ndarray]) -> Side:
    """States and logits by Hugging Face, gradients by torch."""
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


def every_hidden_state(
    found: Imported, params: Any, batch: dict[str, jax.Array]
) -> list[jax.Array]:
    """The states under and after every layer: those of the models that end there."""
    embeddings = bind(found.run.build, params).encoder.embeddings
    ids = (batch["input_ids"], batch["token_type_ids"], None)
    states = [embeddings(*ids, dropout_key=None)]
    for depth in range(1, found.run.architecture.num_hidden_layers + 1):
        layers = jax.tree.map(lambda leaf, depth=depth: leaf[:depth], params["encoder"]["layers"])
        cut = params | {"encoder": params["encoder"] | {"layers": layers}}
        states.append(bind(shallower(found, depth), cut).hidden(batch, dropout_key=None))
    return states


def shallower(found: Imported, depth: int) -> Callable[[], Bert]:
    """Builds the run's model with its first layers alone."""
    cut = found.run.architecture.model_copy(update={"num_hidden_layers": depth})
    execution = Execution(dtype="float32")

    def build() -> Bert:
        return Bert(architecture=cut, execution=execution, heads=found.run.heads)

    return build


def run_ours(found: Imported, arrays: dict[str, np.ndarray]) -> Side:
    """Loss and gradients through the objective of the run, the rest through its model."""
    batch = jax.tree.map(jnp.asarray, arrays)
    task, real = objective_of(found.run), arrays["segment_ids"] == 1
    everywhere = jnp.broadcast_to(jnp.arange(real.shape[1]), real.shape)

    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss_and_outputs(params: Any) -> tuple[jax.Array, Any]:
        states = every_hidden_state(found, params, batch)
        model = bind(found.run.build, params)
        pooled = model.pooler(states[-1][:, :1])
        outputs = (
            states,
            pooled[:, 0],
            model.mlm_logits(states[-1], everywhere),
            model.next_sentence(pooled)[:, 0],
        )
        trained = bind(task.build, params)
        loss, _ = task.loss(trained, batch, weights=task.weights(batch), dropout_key=None)
        return loss, outputs

    (loss, outputs), gradients = jax.device_get(jax.jit(loss_and_outputs)(found.params))
    states, pooled, mlm, next_sentence = outputs
    return Side(
        hidden_states=np.stack([state[real] for state in states]),
        pooled=pooled,
        mlm=mlm[real][:, : found.run.architecture.vocab_size],
        next_sentence=next_sentence,
        loss=float(loss),
        gradients=found.theirs(gradients),
    )


@pytest.fixture(scope="module", params=CONFIGS)
def sides(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Side, Side]:
    """Ours and Hugging Face's, from the same checkpoint."""
    where = tmp_path_factory.mktemp("parity")
    config = hf_config(**CONFIGS[request.param])
    model = hf_model(BertForPreTraining, config)
    batch = mixed_batch(config)
    source = save(model, where / "hf", pieces=PIECES.get(request.param))
    found = import_run(source, where / "run")
    return run_ours(found, batch), run_hf(model, batch)


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_every_state_and_logit_is_that_of_hugging_face(
    sides: tuple[Side, Side], quantity: str
) -> None:
    ours, theirs = (getattr(side, quantity) for side in sides)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def test_the_loss_is_that_of_hugging_faces_logits_under_google_researchs_rule(
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
