"""Files of EuroBERT and NeoBERT: both forms of config.json, refusals, and the authors' code."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForMaskedLM

from bert_jax.encoders.registry import read_model_section
from bert_jax.interop.hf_config import read_config
from tests.interop import reference_neobert
from tests.interop.hf_checkpoints import hf_model, save, small_config
from tests.project import ok, refused, refuses, says

# From `architectures` and `base_architecture` in the authors' script that wrote the released files.
EUROBERT = {
    "architectures": ["EuroBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "pad_token_id": 128001,
    "mask_token_id": 128002,
    "hidden_act": "silu",
    "hidden_dropout": 0.0,
    "hidden_size": 1152,
    "initializer_range": 0.02,
    "intermediate_size": 4096,
    "is_decoder": False,
    "max_position_embeddings": 8192,
    "model_type": "eurobert",
    "num_attention_heads": 18,
    "num_hidden_layers": 26,
    "num_key_value_heads": 6,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 250000,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
# config.json of chandar-lab/NeoBERT.
NEOBERT = {
    "architectures": ["NeoBERTLMHead"],
    "auto_map": {
        "AutoConfig": "model.NeoBERTConfig",
        "AutoModelForMaskedLM": "model.NeoBERTLMHead",
    },
    "classifier_init_range": 0.02,
    "decoder_init_range": 0.02,
    "dim_head": 64,
    "embedding_init_range": 0.02,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "kwargs": {"classifier_init_range": 0.02},
    "max_length": 4096,
    "model_type": "neobert",
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 28,
    "pad_token_id": 0,
    "torch_dtype": "float32",
    "trust_remote_code": True,
    "vocab_size": 30522,
}
ROPE = {"rope_type": "default", "rope_theta": 250000.0}


def read(path: Path, values: dict[str, Any]) -> Any:
    path.write_text(json.dumps(values))
    return read_config(path).architecture


def test_the_released_config_json_is_the_named_size(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    for values, kind, size in ((EUROBERT, "eurobert", "610m"), (NEOBERT, "neobert", "250m")):
        section = read_model_section({"kind": kind, "size": size}, source="")
        vocabulary: Any = values["vocab_size"]
        assert read(path, values) == section.resolve(vocab_size=vocabulary)
    newer = {name: value for name, value in EUROBERT.items() if not name.startswith("rope")}
    assert read(path, newer | {"rope_parameters": ROPE}) == read(path, EUROBERT)


@pytest.mark.parametrize(
    ("values", "changes", "key", "setting"),
    [
        (EUROBERT, {"tie_word_embeddings": True}, "eurobert.tied_decoder", "tie_word_embeddings"),
        (EUROBERT, {"num_key_value_heads": 5}, "eurobert.key_heads", "num_key_value_heads"),
        (EUROBERT, {"head_dim": 128}, "eurobert.head_dim", "head_dim"),
        (
            EUROBERT,
            {"rope_parameters": ROPE | {"rope_type": "yarn"}},
            "setting.value",
            "rope_parameters.rope_type",
        ),
        (NEOBERT, {"hidden_act": "gelu"}, "import.activation", "hidden_act"),
        (NEOBERT, {"rms_norm": False}, "setting.value", "rms_norm"),
        (NEOBERT, {"ngpt": True}, "setting.value", "ngpt"),
    ],
)
def test_what_the_encoders_cannot_compute_is_refused(
    tmp_path: Path, values: dict[str, Any], changes: dict[str, Any], key: str, setting: str
) -> None:
    path = tmp_path / "config.json"
    with refuses(key, place=f"{path}: {setting}"):
        read(path, values | changes)


def test_transformers_runs_the_authors_code_for_an_export_of_neobert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = str(tmp_path / "modules")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", modules)
    theirs = hf_model(reference_neobert.NeoBERTLMHead, small_config("NeoBERTLMHead"))
    ok("import", save(theirs, tmp_path / "hf"), tmp_path / "run")
    ok("export", tmp_path / "run", tmp_path / "out")
    # A directory with the name of the Hub's repository stands for it.
    code = tmp_path / "chandar-lab" / "NeoBERT"
    code.mkdir(parents=True)
    shutil.copy(reference_neobert.__file__, code / "model.py")
    monkeypatch.chdir(tmp_path)
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "out", trust_remote_code=True)
    assert type(again).__module__.startswith("transformers_modules")
    ids = torch.arange(5, 20)[None]
    with torch.no_grad():
        assert torch.equal(again.eval()(ids).logits, theirs(ids).logits)

    config = tmp_path / "run" / "config.yaml"
    _, text = config.read_text().split("\n", 1)  # without its checksum
    config.write_text(text.replace("rope_theta: 10000.0", "rope_theta: 77.0"))
    place = "model.architecture.rope_theta"
    error = refused("export", tmp_path / "run", tmp_path / "no")
    says(error, key="export.setting", place=place, found=77.0, allowed=10_000.0)
