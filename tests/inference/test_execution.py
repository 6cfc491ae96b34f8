"""Inference uses the kernels of training where they run, and casts parameters only once."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import bert_jax
from bert_jax.encoders import kernel_choice
from bert_jax.inference import execution
from bert_jax.inference.execution import (
    by_layer,
    forward_model,
    in_read_dtypes,
    inference_execution,
    stacked_again,
)
from bert_jax.model.section import Execution, HeadsSection
from bert_jax.model.text_head import PoolingSection
from bert_jax.parallel.mesh import open_mesh
from bert_jax.runs.open_checkpoints import LoadedParams
from bert_jax.tasks.task import logits
from bert_jax.train.state import ModelDefinition, abstract_params, draw_params
from tests.feature_extraction.runs import make_run, texts
from tests.support import relative_error, small_encoder

LENGTH = 32
# All kernels support these sizes.
WIDE = {"hidden_size": 128, "num_attention_heads": 2, "intermediate_size": 256}
CLASSIFIER = HeadsSection(
    mlm=False, next_sentence=False, task="sequence_classification", labels=("a", "b", "c")
)
VECTORS = HeadsSection(
    pooler=False, mlm=False, next_sentence=False, embedding=PoolingSection(projection=8)
)


def batch() -> dict[str, Any]:
    """Returns rows of 1 to 32 tokens, the second text of each with another type."""
    rng = np.random.default_rng(0)
    lengths, at = np.array([32, 1, 17, 9])[:, None], np.arange(LENGTH)[None]
    inside = at < lengths
    return {
        "input_ids": np.where(inside, rng.integers(5, 90, (4, LENGTH)), 0).astype(np.int32),
        "token_type_ids": (inside & (at >= lengths // 2)).astype(np.int32),
        "segment_ids": inside.astype(np.int32),
    }


def outputs(loaded: LoadedParams) -> np.ndarray:
    """Returns the logits or vectors of `batch`."""
    graphdef = loaded.model.graphdef

    @jax.jit
    def forward(params: Any, batch: Any) -> jax.Array:
        return logits(nnx.merge(graphdef, params), batch, dropout_key=None)

    with jax.set_mesh(loaded.mesh):
        return np.asarray(forward(loaded.params, batch()), np.float32)


def loaded(model: ModelDefinition, architecture: Any, heads: HeadsSection) -> LoadedParams:
    """Returns random parameters of a model."""
    mesh = open_mesh(one_device=True)
    params = draw_params(model, abstract_params(model, mesh), seed=1)
    return LoadedParams(0, architecture, heads, model, params, mesh)


@pytest.mark.parametrize(
    ("kind", "heads"),
    [("bert", CLASSIFIER), ("albert", VECTORS), ("modernbert", CLASSIFIER)],
    ids=["bert", "albert", "modernbert"],
)
def test_parameters_are_cast_once_and_the_outputs_stay_equal(
    kind: str, heads: HeadsSection
) -> None:
    architecture = small_encoder(kind, **WIDE, num_hidden_layers=2)
    reads_pooler = heads.task in architecture.pooled_heads
    heads = heads.model_copy(update={"pooler": reads_pooler})
    model = forward_model(
        *(architecture, Execution(), heads), mesh=open_mesh(one_device=True), dtype="bfloat16"
    )
    plain = loaded(model, architecture, heads)
    cast = in_read_dtypes(plain)
    expected = outputs(plain)
    np.testing.assert_array_equal(outputs(cast), expected)
    on_tpu: Any = SimpleNamespace(devices=np.array([SimpleNamespace(platform="tpu")]))
    layers = by_layer(cast.params, model, mesh=on_tpu)
    assert jax.tree.structure(layers) != jax.tree.structure(cast.params)
    again = cast._replace(params=stacked_again(layers))
    np.testing.assert_array_equal(outputs(again), expected)
    sizes = {jnp.bfloat16.dtype: 0, np.dtype("float32"): 0}
    for leaf in jax.tree.leaves(cast.params):
        sizes[leaf.dtype] += leaf.size
    assert sizes[np.dtype("float32")] < 0.1 * sizes[jnp.bfloat16.dtype]


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_the_kernels_compute_the_same_outputs(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout rates of the architecture rule out no kernel, because inference drops nothing."""
    architecture, mesh = small_encoder(kind, **WIDE).with_dropout(0.3), open_mesh(one_device=True)
    heads = CLASSIFIER.model_copy(update={"pooler": kind == "bert"})
    parts = (architecture, Execution(), heads)
    plain = forward_model(*parts, mesh=mesh, dtype="bfloat16")
    monkeypatch.setattr(kernel_choice, "takes_kernels", lambda device: True)
    chosen = inference_execution(
        Execution(), architecture=architecture, mesh=mesh, longest=LENGTH, dtype="bfloat16"
    )
    assert {chosen.attention, chosen.norm, chosen.ffn} == {"fused"}
    fused = forward_model(*parts, mesh=mesh, dtype="bfloat16")
    params = loaded(plain, architecture, heads)
    expected = outputs(params)
    found = outputs(in_read_dtypes(params._replace(model=fused)))
    assert relative_error(found, expected) < 0.01


def test_an_unrolled_modernbert_computes_the_same_outputs() -> None:
    architecture = small_encoder("modernbert", num_hidden_layers=7)  # two groups and a rest
    heads = CLASSIFIER.model_copy(update={"pooler": False})
    found = [
        outputs(
            loaded(
                forward_model(
                    *(architecture, Execution(unroll=unroll), heads),
                    mesh=open_mesh(one_device=True),
                    dtype="float32",
                ),
                architecture,
                heads,
            )
        )
        for unroll in (1, 7)
    ]
    assert relative_error(found[1], found[0]) < 1e-5


def test_a_loaded_run_uses_kernels_where_they_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = make_run(tmp_path, layers=1)
    some = texts(5)
    expected = bert_jax.load(run).encode(some)
    made: list[Execution] = []

    def resolve(*arguments: Any, **options: Any) -> Execution:
        made.append(inference_execution(*arguments, **options))
        return made[-1]

    monkeypatch.setattr(execution, "inference_execution", resolve)
    monkeypatch.setattr(kernel_choice, "takes_kernels", lambda device: True)
    found = bert_jax.load(run).encode(some)
    assert made[0].attention == "fused"  # interpreted
    np.testing.assert_allclose(found, expected, atol=1e-5)
