"""All file formats of a Hugging Face checkpoint give equal results."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from flax import serialization
from transformers import (
    BertForPreTraining,
    BertForQuestionAnswering,
    RobertaConfig,
    RobertaForMaskedLM,
    RobertaForSequenceClassification,
)

from bert_jax.interop.flax_file import FlaxFile
from bert_jax.model.section import HeadsSection
from tests.interop.hf_checkpoints import (
    hf_config,
    hf_model,
    import_run,
    save,
    write_flax,
    write_tokenizer,
)
from tests.project import refuses

DECODER_WEIGHT, DECODER_BIAS = "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"
MLM_BIAS, WORDS = "cls.predictions.bias", "embeddings.word_embeddings.weight"

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}

Tensors = dict[str, torch.Tensor]
Writer = Callable[[BertForPreTraining, Path], None]


def sharded(model: BertForPreTraining, directory: Path) -> None:
    """Writes several files and an index."""
    model.save_pretrained(directory, max_shard_size="40KB")
    assert len(list(directory.glob("model-*.safetensors"))) > 2
    assert (directory / "model.safetensors.index.json").exists()


def pickled(model: BertForPreTraining, directory: Path) -> None:
    """Writes pytorch_model.bin as a zip file, with both names of each tied tensor."""
    model.config.save_pretrained(directory)
    torch.save(model.state_dict(), directory / "pytorch_model.bin")


def pickled_before_zip(model: BertForPreTraining, directory: Path) -> None:
    """Writes pytorch_model.bin in the format before PyTorch 1.6."""
    model.config.save_pretrained(directory)
    torch.save(
        model.state_dict(),
        directory / "pytorch_model.bin",
        _use_new_zipfile_serialization=False,
    )


def sharded_pickle(model: BertForPreTraining, directory: Path) -> None:
    """Writes several pytorch_model-*.bin and an index, with tied tensors in different shards."""
    model.config.save_pretrained(directory)
    tensors = list(model.state_dict().items())
    weight_map = {}
    for number in range(3):
        shard = f"pytorch_model-{number + 1:05}-of-00003.bin"
        torch.save(dict(tensors[number::3]), directory / shard)
        weight_map |= dict.fromkeys(dict(tensors[number::3]), shard)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (directory / "pytorch_model.bin.index.json").write_text(json.dumps(index))


def without(model: BertForPreTraining, directory: Path, *names: str) -> None:
    """Writes all tensors except `names`, with both names of each tied tensor."""
    model.config.save_pretrained(directory)
    state = model.state_dict()
    assert {MLM_BIAS, DECODER_BIAS, DECODER_WEIGHT, f"bert.{WORDS}"} <= state.keys()
    kept = {name: tensor.clone() for name, tensor in state.items() if name not in names}
    safetensors.torch.save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})


def old_names(tensors: Tensors) -> Tensors:
    """Returns the tensors of early files: gamma and beta, position ids, a separate decoder."""
    renamed = {}
    for name, tensor in tensors.items():
        stem, _, last = name.rpartition(".")
        if stem.endswith("LayerNorm"):
            last = {"weight": "gamma", "bias": "beta"}[last]
        renamed[f"{stem}.{last}"] = tensor.clone()
    positions = tensors["bert.embeddings.position_embeddings.weight"].shape[0]
    return renamed | {
        "bert.embeddings.position_ids": torch.arange(positions)[None],
        DECODER_WEIGHT: tensors[f"bert.{WORDS}"].clone(),
        DECODER_BIAS: tensors[MLM_BIAS].clone(),
    }


def old_safetensors(model: BertForPreTraining, directory: Path) -> None:
    """Writes safetensors with the tensor names of early files."""
    model.save_pretrained(directory)
    path = directory / "model.safetensors"
    renamed = old_names(safetensors.torch.load_file(path))
    safetensors.torch.save_file(renamed, path, metadata={"format": "pt"})


def old_pickle(model: BertForPreTraining, directory: Path) -> None:
    """Writes pytorch_model.bin with the tensor names of early files."""
    model.config.save_pretrained(directory)
    torch.save(old_names(dict(model.named_parameters())), directory / "pytorch_model.bin")


WRITERS: dict[str, Writer] = {
    "sharded": sharded,
    "pickled": pickled,
    "pickled-before-zip": pickled_before_zip,
    "sharded-pickle": sharded_pickle,
    "decoder-bias-alone": lambda model, directory: without(model, directory, MLM_BIAS),
    "decoder-weight-alone": lambda model, directory: without(
        model, directory, f"bert.{WORDS}", DECODER_BIAS
    ),
    "old-safetensors": old_safetensors,
    "old-pickle": old_pickle,
    "flax": write_flax,
}


def model(dtype: torch.dtype = torch.float32) -> BertForPreTraining:
    """Returns a model of the given dtype, with equal weights in every call."""
    made = hf_model(BertForPreTraining, hf_config())
    torch.nn.Module.to(made, dtype)
    return made


def imported(directory: Path, run_dir: Path) -> dict[str, np.ndarray]:
    found = import_run(directory, run_dir)
    return found.theirs(found.params)


def assert_is(found: dict[str, np.ndarray], expected: BertForPreTraining) -> None:
    wanted = {name: param.detach().float() for name, param in expected.named_parameters()}
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == np.float32, name
        np.testing.assert_array_equal(found[name], tensor.numpy(), err_msg=name)


@pytest.mark.parametrize("writer", WRITERS)
def test_every_file_layout_gives_the_same_numbers(writer: str, tmp_path: Path) -> None:
    directory = tmp_path / "hf"
    directory.mkdir()
    WRITERS[writer](model(), directory)
    write_tokenizer(directory, model().config.vocab_size)
    assert_is(imported(directory, tmp_path / "run"), model())
    if writer == "old-safetensors":
        provenance = json.loads((tmp_path / "run" / "provenance.json").read_text())
        left_out = {"bert.embeddings.position_ids", DECODER_WEIGHT, DECODER_BIAS}
        assert provenance["tensors_ignored"].keys() == left_out


@pytest.mark.parametrize(
    "kind", [BertForQuestionAnswering, RobertaForMaskedLM, RobertaForSequenceClassification]
)
def test_a_flax_file_has_pytorchs_names_and_shapes(kind: Any, tmp_path: Path) -> None:
    config = hf_config() if kind is BertForQuestionAnswering else RobertaConfig(**SMALL)
    theirs = hf_model(kind, config)
    write_flax(theirs, tmp_path)
    file = FlaxFile(tmp_path / "flax_model.msgpack")
    wanted = {name: each.detach().numpy() for name, each in theirs.named_parameters()}
    assert file.specs.keys() == wanted.keys()
    for name, array in wanted.items():
        assert file.specs[name].shape == array.shape
        np.testing.assert_array_equal(file.read(name), array)


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"\xc1", "weights.flax_damaged"),
        (serialization.to_bytes({"bert": np.ones(9)})[:-9], "weights.flax_damaged"),
        (serialization.to_bytes({"bert": {"step": "x"}}), "weights.no_arrays"),
        (serialization.to_bytes(np.ones(3)), "weights.no_arrays"),
    ],
    ids=["other-format", "cut-off", "text", "one-array"],
)
def test_a_damaged_flax_file_is_refused(tmp_path: Path, content: bytes, key: str) -> None:
    path = tmp_path / "flax_model.msgpack"
    path.write_bytes(content)
    with refuses(key, place=path):
        FlaxFile(path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("layout", ["safetensors", "pickled"])
def test_half_precision_is_widened_exactly(dtype: torch.dtype, layout: str, tmp_path: Path) -> None:
    half = model(dtype)
    directory = save(half, tmp_path / "hf")
    if layout == "pickled":
        (directory / "model.safetensors").unlink()
        torch.save(half.state_dict(), directory / "pytorch_model.bin")
    found = imported(directory, tmp_path / "run")
    assert_is(found, half)
    word = "bert.embeddings.word_embeddings.weight"
    assert (found[word] != model().get_parameter(word).detach().numpy()).any()


def test_heads_missing_in_the_configuration_are_read(tmp_path: Path) -> None:
    """Released English checkpoints of class BertForMaskedLM also have a pooler and an NSP head."""
    directory = save(model(), tmp_path / "hf")
    config_file = directory / "config.json"
    config = json.loads(config_file.read_text()) | {"architectures": ["BertForMaskedLM"]}
    config_file.write_text(json.dumps(config))
    found = import_run(directory, tmp_path / "run")
    assert found.run.heads == HeadsSection()
    assert_is(found.theirs(found.params), model())
