"""ModernBERT against Hugging Face's: hidden states, logits, the MLM loss and every gradient."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from transformers import ModernBertForMaskedLM

from bert_jax.encoders.build import encoder_builder
from bert_jax.encoders.modernbert.model import ModernBert
from bert_jax.interop.hf_checkpoint import read_hf
from bert_jax.model.local_attention import local_attention
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.train.state import define_model
from tests.interop.hf_checkpoints import (
    hf_model,
    modernbert_config,
    save,
    under_their_names,
)
from tests.support import small_encoder

pytestmark = pytest.mark.slow

SHAPES = [  # layers, tokens, window, every n-th layer is global, layers per trip of the loop
    (1, 10, 4, 3, None),
    (4, 25, 8, 3, None),
    (4, 25, 64, 3, None),  # a window larger than the row
    # A window of most of the row.
    pytest.param(2, 20, 16, 3, None, marks=pytest.mark.chaos),
    (9, 40, 6, 3, 1),  # two groups in the loop
    pytest.param(8, 41, 10, 2, 1, marks=pytest.mark.chaos),
    (3, 70, 16, 1, None),  # global layers alone
]


@pytest.mark.parametrize(("layers", "length", "window", "every", "unroll"), SHAPES)
def test_states_logits_loss_and_gradients_equal_hugging_faces(
    tmp_path: Path, layers: int, length: int, window: int, every: int, unroll: int | None
) -> None:
    config = modernbert_config(
        num_hidden_layers=layers, local_attention=window, global_attn_every_n_layers=every
    )
    theirs = hf_model(ModernBertForMaskedLM, config, seed=layers)
    found = read_hf(save(theirs, tmp_path))
    execution = Execution(dtype="float32", unroll=unroll)
    definition = define_model(encoder_builder(found.architecture, execution, found.heads))

    rng = np.random.default_rng(layers)
    ids = rng.integers(2, 150, (3, length))
    mask = np.ones((3, length), np.int64)
    mask[1, length // 2 :] = 0
    positions = np.stack([rng.permutation(length // 2)[:3] for _ in range(3)])
    labels = np.full((3, length), -100)
    np.put_along_axis(labels, positions, np.take_along_axis(ids, positions, 1), 1)
    out = theirs(
        torch.tensor(ids),
        attention_mask=torch.tensor(mask),
        labels=torch.tensor(labels),
        output_hidden_states=True,
    )
    out.loss.backward()

    batch = {
        "input_ids": jnp.asarray(ids, jnp.int32),
        "segment_ids": jnp.asarray(mask, jnp.int32),
        "masked_lm_positions": jnp.asarray(positions, jnp.int32),
        "masked_lm_ids": jnp.asarray(np.take_along_axis(ids, positions, 1), jnp.int32),
    }

    def model_of(params: Any) -> ModernBert:
        return nnx.merge(definition.graphdef, params)

    def loss(params: Any) -> jax.Array:
        return model_of(params).scored(batch, dropout_key=None).mlm.loss.mean()

    params = jax.tree.map(jnp.asarray, found.params)
    model = model_of(params)
    real = mask > 0
    states = model.encoder.every_layer(batch)
    for state, wanted in zip(states, out.hidden_states, strict=True):
        np.testing.assert_allclose(state[real], wanted.detach().numpy()[real], atol=1e-5)
    hidden = model.hidden(batch, dropout_key=None)
    logits = model.mlm_logits(hidden, batch["masked_lm_positions"])[..., :150]
    wanted = np.take_along_axis(out.logits.detach().numpy(), positions[..., None], 1)
    np.testing.assert_allclose(logits, wanted, atol=1e-5)

    ours, slopes = jax.jit(jax.value_and_grad(loss))(params)
    assert float(ours) == pytest.approx(out.loss.item(), abs=1e-6)
    gradients = under_their_names(slopes, found.architecture, found.heads)
    expected = {name: np.asarray(parameter.grad) for name, parameter in theirs.named_parameters()}
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(
            gradient, expected[name], atol=1e-4 * abs(expected[name]).max(), err_msg=name
        )


def test_the_mean_of_a_bfloat16_row_counts_every_token() -> None:
    """Bfloat16 has no 257: it would count 256."""
    heads = HeadsSection(mlm=False, pooler=False, task="sequence_classification", labels=("a", "b"))
    model = encoder_builder(
        small_encoder("modernbert", pooling="mean"), Execution(dtype="bfloat16"), heads
    )()
    model.head = model.task = lambda read: read  # the logits are then the mean
    hidden = jnp.zeros((2, 300, 64), jnp.bfloat16).at[:, 0].set(1)
    segments = jnp.arange(300)[None] < jnp.array([[257], [300]])
    found = model.task_logits(hidden, segments.astype(jnp.int32))
    np.testing.assert_allclose(found[:, 0], [1 / 257, 1 / 300], rtol=3e-3)


def test_parts_of_a_batch_on_one_cpu_change_nothing() -> None:
    rng = np.random.default_rng(0)
    q, k, v = jnp.asarray(rng.normal(size=(3, 4, 256, 4, 16)).astype(np.float32))
    segments = jnp.asarray(np.repeat(rng.integers(1, 3, (4, 8)), 32, axis=1), jnp.int32)

    def attended(q: jax.Array) -> jax.Array:
        options: Any = {"window": 64, "dropout_rate": 0.0, "dropout_key": None}
        return local_attention(q, k, v, segments, **options)

    def run() -> tuple[int, jax.Array, jax.Array]:
        lowered = jax.jit(lambda q: jax.vjp(attended, q)[1](jnp.ones_like(q))[0]).lower(q)
        products = lowered.as_text().count("dot_general")
        return products, lowered.compile()(q), jax.jit(attended)(q)

    whole = run()
    with jax.set_mesh(make_mesh(MeshSection(data=1), jax.devices()[:1])):
        found = run()
    assert found[0] == 2 * whole[0]
    for ours, theirs in zip(found[1:], whole[1:], strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
