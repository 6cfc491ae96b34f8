"""cuDNN's attention: the keys that it sees, and its programs for CUDA, without a GPU."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax._src.cudnn import fused_attention_stablehlo
from jax.flatten_util import ravel_pytree

from bert_jax.encoders.build import encoder_builder
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.train.state import abstract_params, define_model, draw_params
from tests.support import relative_error, small_encoder

pytestmark = pytest.mark.slow

ROWS = 8
HEADS = HeadsSection(pooler=False, next_sentence=False)


def batch_of(length: int) -> dict[str, Any]:
    """Returns packed rows with padding, and positions that a last layer computes."""
    rng = np.random.default_rng(0)
    cuts = np.sort(rng.integers(1, length, (ROWS, 3)), axis=1)
    segments = 1 + (np.arange(length) >= cuts[..., None]).sum(1)
    arrays = {
        "input_ids": rng.integers(5, 250, (ROWS, length)),
        "token_type_ids": np.zeros((ROWS, length)),
        "segment_ids": np.where(segments > 3, 0, segments),
        "position_ids": np.tile(np.arange(length), (ROWS, 1)),
        "queries": np.sort(rng.integers(0, length, (ROWS, 5)), axis=1),
    }
    return {name: jnp.asarray(each, jnp.int32) for name, each in arrays.items()}


class Model:
    """An encoder with plain attention or cuDNN's."""

    def __init__(self, attention: str, kind: str, dtype: str, *, causal: bool, **changes: Any):
        settings = {"attention": attention, "dtype": dtype, "remat": "attention"}
        self.definition = define_model(
            encoder_builder(
                small_encoder(kind, num_hidden_layers=3, **changes).with_dropout(0.0),
                Execution.model_validate(settings),
                HEADS.model_copy(update={"causal": causal}),
            )
        )

    def gradients(self, params: Any, batch: Any) -> Any:
        """Returns the gradients of a sum of all states and of some states, and the states."""

        def total(params: Any) -> Any:
            model: Any = nnx.merge(self.definition.graphdef, params)
            queries = batch["queries"]
            states = (
                model.hidden(batch, dropout_key=None) * (batch["segment_ids"] > 0)[..., None],
                model.hidden(batch, queries_BQ=queries, dropout_key=None),
            )
            weigh = (jnp.linspace(-1, 1, each.size).reshape(each.shape) for each in states)
            return sum((x * w).sum() for x, w in zip(states, weigh, strict=True)), states

        return jax.grad(total, has_aux=True)(params)

    def params(self) -> Any:
        mesh = make_mesh(MeshSection(), jax.devices()[:1])
        return draw_params(self.definition, abstract_params(self.definition, mesh), seed=0)


@pytest.mark.parametrize(
    ("kind", "length", "causal", "changes"),
    [
        ("bert", 31, False, {}),
        ("bert", 31, True, {}),
        ("modernbert", 70, False, {"window": 64}),  # shorter than three halves: one block
        ("modernbert", 301, False, {"window": 20}),  # two blocks
        ("modernbert", 301, True, {"window": 20}),
    ],
)
def test_states_and_gradients_equal_plain_attention(
    kind: str, length: int, causal: bool, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX's plain implementation of the same call takes the place of cuDNN."""
    attend, calls = jax.nn.dot_product_attention, []

    def on_cpu(*arrays: Any, implementation: str, **options: Any) -> Any:
        calls.append(implementation)
        return attend(*arrays, implementation="xla", **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", on_cpu)
    plain, other = (
        Model(attention, kind, "float32", causal=causal, max_position_embeddings=512, **changes)
        for attention in ("xla", "cudnn")
    )
    params, batch = plain.params(), batch_of(length)
    expected = jax.jit(plain.gradients)(params, batch)
    assert not calls
    found = jax.jit(other.gradients)(params, batch)
    assert set(calls) == {"cudnn"}
    for one, wanted in zip(found, expected, strict=True):
        # All gradients as one vector: the gradient of the key bias alone is only rounding.
        assert relative_error(ravel_pytree(one)[0], ravel_pytree(wanted)[0]) < 1e-5


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
@pytest.mark.parametrize("devices", [1, 8])
def test_a_program_for_cuda_calls_cudnn_and_stores_no_scores(
    kind: str, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # JAX asks the CUDA plugin for cuDNN's version, even to lower for another machine.
    monkeypatch.setattr(fused_attention_stablehlo, "check_cudnn_version", lambda: 91900)
    length, heads = 320, 8
    model = Model(
        *("cudnn", kind, "bfloat16"),
        causal=False,
        num_attention_heads=heads,
        max_position_embeddings=512,
    )
    mesh = make_mesh(MeshSection(tensor=min(devices, 2)), jax.devices()[:devices])
    with jax.set_mesh(mesh):
        params = abstract_params(model.definition, mesh)
        traced = jax.jit(model.gradients).trace(params, batch_of(length))
        program = traced.lower(lowering_platforms=("cuda",)).as_text()
    called = set(re.findall(r"@__cudnn\$(\w+)", program))
    assert called == {"fmhaScaleBiasSoftmax", "fmhaScaleBiasSoftmaxBackward"}
    scores = rf"x({heads}|{heads // min(devices, 2)})x{length}x{length}x"
    assert not re.search(scores, program)
