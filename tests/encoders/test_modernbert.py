"""ModernBERT against Hugging Face's: hidden states, logits, the MLM loss and every gradient."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from transformers import ModernBertConfig, ModernBertForMaskedLM

from bert_jax.encoders.build import encoder_builder
from bert_jax.encoders.modernbert.model import ModernBert
from bert_jax.encoders.modernbert.section import ModernBertArchitecture
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.train.state import define_model

HEADS = HeadsSection(pooler=False, next_sentence=False)
SHAPES = [  # layers, tokens, window, every n-th layer is global, layers per trip of the loop
    (1, 10, 4, 3, None),
    (4, 25, 8, 3, None),
    (4, 25, 64, 3, None),  # a window larger than the row
    (9, 40, 6, 3, 1),  # two groups in the loop
    (8, 41, 10, 2, 1),
    (3, 70, 16, 1, None),  # global layers alone
]


def theirs_of(layers: int, window: int, every: int) -> ModernBertForMaskedLM:
    config = ModernBertConfig(
        vocab_size=150,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=48,
        local_attention=window,
        global_attn_every_n_layers=every,
        initializer_range=0.2,
        attn_implementation="eager",
        **dict.fromkeys(("pad_token_id", "cls_token_id", "bos_token_id"), 0),
        **dict.fromkeys(("sep_token_id", "eos_token_id"), 1),
    )
    torch.manual_seed(layers)
    model = ModernBertForMaskedLM(config).eval()
    with torch.no_grad():
        for each in model.parameters():  # fresh scales are 1: noise shows a swapped one
            each.add_(0.05 * torch.randn_like(each))
    return model


def architecture_of(config: ModernBertConfig, every: int) -> ModernBertArchitecture:
    return ModernBertArchitecture(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        intermediate_size=config.intermediate_size,
        window=config.local_attention,
        global_every=every,
        initializer_range=config.initializer_range,
    )


def our_params(of: Callable[[str], np.ndarray], layers: int) -> dict[str, Any]:
    """Tensors (or gradients) under Hugging Face's names, as our nested dict."""
    of_layers: dict[str, tuple[str, int, int, bool]] = {
        "query/kernel": ("attn.Wqkv", 0, 3, True),
        "key/kernel": ("attn.Wqkv", 1, 3, True),
        "value/kernel": ("attn.Wqkv", 2, 3, True),
        "output/kernel": ("attn.Wo", 0, 1, True),
        "ffn_norm/scale": ("mlp_norm", 0, 1, False),
        "gate/kernel": ("mlp.Wi", 0, 2, True),
        "up/kernel": ("mlp.Wi", 1, 2, True),
        "down/kernel": ("mlp.Wo", 0, 1, True),
    }
    found = {
        f"encoder/layers/{ours}": np.stack(
            [
                np.split(of(f"model.layers.{layer}.{name}.weight"), parts)[part].T
                if matrix
                else of(f"model.layers.{layer}.{name}.weight")
                for layer in range(layers)
            ]
        )
        for ours, (name, part, parts, matrix) in of_layers.items()
    }
    if layers > 1:
        norms = [of(f"model.layers.{layer}.attn_norm.weight") for layer in range(1, layers)]
        found["encoder/attention_norms/scale"] = np.stack(norms)
    words, bias = of("model.embeddings.tok_embeddings.weight"), of("decoder.bias")
    padding = -len(bias) % 128
    return found | {
        "encoder/word": np.pad(words, ((0, padding), (0, 0))),
        "encoder/norm/scale": of("model.embeddings.norm.weight"),
        "encoder/last_norm/scale": of("model.final_norm.weight"),
        "head/dense/kernel": of("head.dense.weight").T,
        "head/norm/scale": of("head.norm.weight"),
        "mlm/bias": np.pad(bias, (0, padding)),
    }


@pytest.mark.parametrize(("layers", "length", "window", "every", "unroll"), SHAPES)
def test_states_logits_loss_and_gradients_equal_hugging_faces(
    layers: int, length: int, window: int, every: int, unroll: int | None
) -> None:
    theirs = theirs_of(layers, window, every)
    execution = Execution(dtype="float32", unroll=unroll)
    build = encoder_builder(architecture_of(theirs.config, every), execution, HEADS)
    state = {name: each.detach().numpy() for name, each in theirs.state_dict().items()}
    params = our_params(state.__getitem__, layers)
    definition = define_model(build)
    shapes = flatten_dict(definition.params, sep="/")
    assert {name: each.shape for name, each in params.items()} == {
        name: each.shape for name, each in shapes.items()
    }

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

    nested = unflatten_dict({name: jnp.asarray(each) for name, each in params.items()}, sep="/")
    model = model_of(nested)
    real = mask > 0
    states = model.encoder.every_layer(batch)
    for ours, wanted in zip(states, out.hidden_states, strict=True):
        np.testing.assert_allclose(ours[real], wanted.detach().numpy()[real], atol=1e-5)
    hidden = model.hidden(batch, dropout_key=None)
    logits = model.mlm_logits(hidden, batch["masked_lm_positions"])[..., :150]
    wanted = np.take_along_axis(out.logits.detach().numpy(), positions[..., None], 1)
    np.testing.assert_allclose(logits, wanted, atol=1e-5)

    found, slopes = jax.jit(jax.value_and_grad(loss))(nested)
    assert float(found) == pytest.approx(out.loss.item(), abs=1e-6)
    gradients = dict(theirs.named_parameters())
    expected = our_params(lambda name: gradients[name].grad.numpy(), layers)
    for name, ours in flatten_dict(slopes, sep="/").items():
        np.testing.assert_allclose(
            ours, expected[name], atol=1e-4 * abs(expected[name]).max(), err_msg=name
        )
