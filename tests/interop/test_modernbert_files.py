"""ModernBERT's files: both forms of config.json, refusals, and every verb on a checkpoint."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    ModernBertForMaskedLM,
    PreTrainedTokenizerFast,
)

import bert_jax
from bert_jax.encoders.modernbert.section import ModernBertSection
from bert_jax.interop.hf_config import read_config
from tests.interop.hf_checkpoints import hf_model, modernbert_config
from tests.project import ok, refuses, write_config
from tests.tasks.runs import write_table
from tests.text.library_tokenizers import KINDS

NEWER = ("layer_types", "rope_parameters")
OLDER = {
    "global_attn_every_n_layers": 2,
    "global_rope_theta": 700.0,
    "local_rope_theta": 70.0,
    "rope_scaling": None,
    "reference_compile": None,
}


# config.json of answerdotai/ModernBERT-base.
PUBLISHED = {
    "architectures": ["ModernBertForMaskedLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 50281,
    "classifier_activation": "gelu",
    "classifier_bias": False,
    "classifier_dropout": 0.0,
    "classifier_pooling": "mean",
    "cls_token_id": 50281,
    "decoder_bias": True,
    "deterministic_flash_attn": False,
    "embedding_dropout": 0.0,
    "eos_token_id": 50282,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160000.0,
    "gradient_checkpointing": False,
    "hidden_activation": "gelu",
    "hidden_size": 768,
    "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02,
    "intermediate_size": 1152,
    "layer_norm_eps": 1e-05,
    "local_attention": 128,
    "local_rope_theta": 10000.0,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "mlp_dropout": 0.0,
    "model_type": "modernbert",
    "norm_bias": False,
    "norm_eps": 1e-05,
    "num_attention_heads": 12,
    "num_hidden_layers": 22,
    "pad_token_id": 50283,
    "position_embedding_type": "absolute",
    "reference_compile": None,
    "sep_token_id": 50282,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "vocab_size": 50368,
}


@pytest.fixture
def written(tmp_path: Path) -> dict[str, Any]:
    """The content of a config.json of transformers 5."""
    thetas = {"full_attention": 700.0, "sliding_attention": 70.0}
    config = modernbert_config(
        num_hidden_layers=5,
        global_attn_every_n_layers=2,
        local_attention=10,
        rope_parameters={
            kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()
        },
    )
    config.save_pretrained(tmp_path / "newer")
    found = json.loads((tmp_path / "newer" / "config.json").read_text())
    assert found.keys() >= {*NEWER}
    assert not found.keys() & OLDER.keys() - {"global_attn_every_n_layers"}
    del found["global_attn_every_n_layers"]
    return found


def read(path: Path, values: dict[str, Any]) -> Any:
    path.write_text(json.dumps(values))
    return read_config(path).architecture


def test_both_forms_of_config_json_give_one_architecture(
    tmp_path: Path, written: dict[str, Any]
) -> None:
    newer = read(tmp_path / "a.json", written)
    older = {key: value for key, value in written.items() if key not in NEWER} | OLDER
    assert read(tmp_path / "b.json", older) == newer
    assert (newer.global_every, newer.window) == (2, 10)
    assert (newer.global_theta, newer.local_theta) == (700, 70)
    # Hugging Face's model halves an odd window and rounds down.
    assert read(tmp_path / "c.json", written | {"local_attention": 11}) == newer
    # transformers 5 may write that all columns rotate.
    ropes = {
        kind: each | {"partial_rotary_factor": 1.0}
        for kind, each in written["rope_parameters"].items()
    }
    assert read(tmp_path / "d.json", written | {"rope_parameters": ropes}) == newer


def test_the_published_config_json_is_size_base(tmp_path: Path) -> None:
    found = read(tmp_path / "config.json", PUBLISHED)
    expected = ModernBertSection(size="base").resolve(vocab_size=50368)
    assert found == expected.model_copy(update={"pooling": "mean"})


@pytest.mark.parametrize(
    ("changes", "key", "setting"),
    [
        ({"norm_bias": True}, "setting.value", "norm_bias"),
        ({"rope_scaling": {"factor": 2.0}}, "setting.value", "rope_scaling"),
        ({"layer_types": ["full_attention"] * 4}, "modernbert.layer_types", "layer_types"),
        (
            {"layer_types": ["sliding_attention", *["full_attention"] * 4]},
            "modernbert.layer_types",
            "layer_types",
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
            "setting.value",
            "rope_parameters.full_attention.rope_type",
        ),
        (
            {"rope_parameters": {"full_attention": {"partial_rotary_factor": 0.5}}},
            "setting.value",
            "rope_parameters.full_attention.partial_rotary_factor",
        ),
        ({"hidden_activation": "quick_gelu"}, "import.activation", "hidden_activation"),
    ],
)
def test_what_the_encoder_cannot_compute_is_refused(
    tmp_path: Path, written: dict[str, Any], changes: dict[str, Any], key: str, setting: str
) -> None:
    path = tmp_path / "config.json"
    with refuses(key, place=f"{path}: {setting}"):
        read(path, written | changes)


@pytest.mark.parametrize(
    "kind",
    # mmBERT has the tokenizer of Gemma.
    ["modernbert", pytest.param("gemma", marks=pytest.mark.slow, id="mmbert")],
)
def test_every_verb_works_from_a_hugging_face_checkpoint(tmp_path: Path, kind: str) -> None:
    source = tmp_path / "hf"
    tokenizer: PreTrainedTokenizerFast = KINDS[kind]()
    tokenizer.save_pretrained(source)
    names = ("pad_token_id", "cls_token_id", "sep_token_id")
    ids = {name: getattr(tokenizer, name) for name in names}
    config = modernbert_config(vocab_size=len(tokenizer) + 3, local_attention=6, **ids)
    theirs = hf_model(ModernBertForMaskedLM, config)
    theirs.save_pretrained(source)

    loaded = bert_jax.load(source)
    text = f"a dog {tokenizer.mask_token} twice"
    rows = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
    (place,) = np.flatnonzero(rows["input_ids"][0] == tokenizer.mask_token_id)
    with torch.no_grad():
        logits = theirs(**rows).logits[0, place, : len(tokenizer)]
    best = tokenizer.decode(logits.argmax().item(), clean_up_tokenization_spaces=False)
    assert loaded.fill_mask(text).masks[0][0].piece == best
    rows = tokenizer("a dog twice", return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        states = theirs(**rows, output_hidden_states=True).hidden_states[-1][0]
    vector = loaded.encode("a dog twice", layers="last")
    np.testing.assert_allclose(vector, states.mean(0), atol=1e-5)

    ok("import", source, tmp_path / "run")
    task = {
        "kind": "table",
        "train": str(write_table(tmp_path, 16, 1)),
        "dev": str(write_table(tmp_path, 8, 2)),
        "text": "text",
        "label": "label",
    }
    finetune = {
        "init_from": str(tmp_path / "run"),
        "task": task,
        "max_length": 64,
        "batch_size": 8,
        "epochs": 1,
        "dtype": "float32",
    }
    settings = {"run_dir": str(tmp_path / "tuned"), "finetune": finetune}
    ok("finetune", write_config(tmp_path / "finetune.yaml", settings))
    ok("export", tmp_path / "tuned", tmp_path / "out")
    tuned, report = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert {name: list(each) for name, each in report.items() if each} == {}
    rows = AutoTokenizer.from_pretrained(tmp_path / "out")("good1 word2", return_tensors="pt")
    with torch.no_grad():
        probabilities = tuned(**rows).logits.softmax(-1)[0]
    (record,) = bert_jax.load(tmp_path / "tuned").predict(["good1 word2"])
    expected = {tuned.config.id2label[at]: each.item() for at, each in enumerate(probabilities)}
    assert record["probabilities"] == pytest.approx(expected, abs=1e-5)

    ok("export", tmp_path / "run", tmp_path / "back")
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "back")
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
