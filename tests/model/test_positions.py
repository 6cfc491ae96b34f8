"""Sinusoidal positions, beside Hugging Face's transcription of tensor2tensor."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from transformers.models.m2m_100.modeling_m2m_100 import M2M100SinusoidalPositionalEmbedding

from bert_jax.model.embeddings import Embeddings, sinusoids
from bert_jax.model.section import Execution
from bert_jax.runs.run_directory import open_run
from bert_jax.text import load_tokenizer
from bert_jax.train.state import define_model
from tests.interop.hf_checkpoints import bind, fresh_run
from tests.project import ok, refused, says
from tests.support import small_architecture


@pytest.mark.parametrize(("length", "width"), [(40, 32), (7, 9)])
def test_they_are_those_of_tensor2tensor(length: int, width: int) -> None:
    expected = M2M100SinusoidalPositionalEmbedding.get_embedding(length, width).numpy()
    np.testing.assert_allclose(sinusoids(length, width), expected, rtol=0, atol=1e-5)


def test_they_have_no_parameters_and_restart_in_every_example() -> None:
    architecture = small_architecture(position_embedding="sinusoidal").with_dropout(0.0)
    execution = Execution(dtype="float32", norm="xla")

    def build() -> Embeddings:
        return Embeddings(architecture=architecture, execution=execution)

    assert set(define_model(build).params) == {"word", "type", "norm"}
    rng = np.random.default_rng(0)
    shapes = define_model(build).params
    params = {
        name: {key: rng.normal(0, 1, leaf.shape) for key, leaf in found.items()}
        if isinstance(found, dict)
        else rng.normal(0, 1, found.shape)
        for name, found in shapes.items()
    }
    embeddings = bind(build, params)
    ids, types = jnp.asarray(rng.integers(5, 250, (1, 6))), jnp.zeros((1, 6), jnp.int32)
    places = jnp.asarray([[0, 1, 2, 0, 1, 2]])
    packed = embeddings(ids, types, places, dropout_key=None)
    alone = embeddings(ids[:, 3:], types[:, 3:], dropout_key=None)
    np.testing.assert_allclose(packed[:, 3:], alone, rtol=0, atol=1e-6)
    assert np.abs(embeddings(ids, types, dropout_key=None) - packed).max() > 0.1


def test_only_stablehlo_can_express_them(tmp_path: Path, project: Path) -> None:
    tokenizer = load_tokenizer(str(project / "tokenizer"))
    fresh_run(tmp_path / "run", tokenizer, position_embedding="sinusoidal")
    assert open_run(tmp_path / "run").architecture.max_position_embeddings == 40
    for form in ("hf", "tf"):
        result = refused("export", tmp_path / "run", tmp_path / form, "--to", form)
        assert result.key == "export.setting"
        says(result, found="sinusoidal")
    ok("export", tmp_path / "run", tmp_path / "program", "--to", "stablehlo")
