from typing import Any

import jax
import numpy as np
import pytest
import torch
from flax import nnx
from transformers import BertModel

from bert_jax.encoders.bert.model import Bert
from bert_jax.encoders.build import encoder_builder
from bert_jax.model.section import Execution
from tests.interop.hf_checkpoints import (
    Imported,
    bind,
    hf_config,
    hf_model,
    import_run,
    mixed_batch,
    save,
    torch_inputs,
)

LAYERS, HEADS = 5, 4  # more layers than are unrolled on a CPU


@pytest.fixture(scope="module")
def theirs() -> BertModel:
    return hf_model(BertModel, hf_config(num_hidden_layers=LAYERS, num_attention_heads=HEADS))


@pytest.fixture(scope="module")
def imported(theirs: BertModel, tmp_path_factory: pytest.TempPathFactory) -> Imported:
    directory = tmp_path_factory.mktemp("attention")
    return import_run(save(theirs, directory / "hf"), directory / "run")


def maps(model: Bert, batch: dict[str, Any]) -> np.ndarray:
    """Returns the attention maps, computed by one compiled program."""
    graphdef, params = nnx.split(model)
    compute = jax.jit(lambda params, batch: nnx.merge(graphdef, params).attention_maps(batch))
    return np.asarray(compute(params, batch))


def in_float32(imported: Imported) -> Bert:
    run = imported.run
    build = encoder_builder(run.architecture, Execution(dtype="float32"), run.heads)
    return bind(build, imported.params)


def test_the_maps_equal_hugging_faces(theirs: BertModel, imported: Imported) -> None:
    batch = mixed_batch(theirs.config)
    found = maps(in_float32(imported), batch)
    with torch.no_grad():
        reference = theirs(**torch_inputs(batch), output_attentions=True).attentions
    expected = np.stack([layer.numpy() for layer in reference])
    rows, length = batch["input_ids"].shape
    assert found.shape == (LAYERS, rows, HEADS, length, length)
    assert found.dtype == np.float32
    # The maps of padding queries are averages in Hugging Face, zero in bert_jax.
    tokens = batch["segment_ids"][None, :, None, :, None] > 0
    np.testing.assert_allclose(found, np.where(tokens, expected, 0), atol=2e-6)
    assert expected.std() > 0.02  # the maps are not uniform


def test_a_packed_example_attends_only_to_itself(imported: Imported) -> None:
    model = in_float32(imported)
    ids = np.arange(5, 15, dtype=np.int32)[None]
    segments = np.array([[1] * 4 + [2] * 6], np.int32)
    positions = np.array([[*range(4), *range(6)]], np.int32)
    types = np.zeros_like(ids)
    batch = {"input_ids": ids, "token_type_ids": types, "segment_ids": segments}
    packed = maps(model, {**batch, "position_ids": positions})
    assert not packed[..., :4, 4:].any()
    assert not packed[..., 4:, :4].any()
    ones = np.ones((1, 6), np.int32)
    alone = maps(
        model, {"input_ids": ids[:, 4:], "token_type_ids": types[:, 4:], "segment_ids": ones}
    )
    np.testing.assert_allclose(packed[..., 4:, 4:], alone, atol=1e-6)
