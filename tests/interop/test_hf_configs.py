"""Settings of config.json that transformers reads, in models where they are harmless or decide."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

import bert_jax
from tests.interop.hf_checkpoints import hf_model, save, small_config
from tests.project import ok, refused, says

UNTIED = (
    "BertForSequenceClassification",
    "BertModel",
    "DistilBertForTokenClassification",
    "ElectraForPreTraining",
    "RobertaForQuestionAnswering",
)


def untied(kind: str, directory: Path) -> Path:
    config = small_config(kind, tie_word_embeddings=False)
    return save(hf_model(getattr(transformers, kind), config), directory)


def change(directory: Path, **values: Any) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


@pytest.mark.parametrize("kind", UNTIED)
def test_untied_embeddings_are_read_where_there_is_no_decoder(kind: str, tmp_path: Path) -> None:
    source = untied(kind, tmp_path / "hf")
    ok("import", source, tmp_path / "run")
    ok("export", tmp_path / "run", tmp_path / "back")
    found, expected = (
        load_file(each / "model.safetensors") for each in (tmp_path / "back", source)
    )
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("kind", ["BertForMaskedLM", "ModernBertForMaskedLM"])
def test_an_untied_decoder_is_read_only_if_it_equals_the_embedding(
    kind: str, tmp_path: Path
) -> None:
    source = untied(kind, tmp_path / "hf")
    line = refused("import", source, tmp_path / "run")
    assert line.key == "tensor.not_tied"
    weights = load_file(source / "model.safetensors")
    (decoder,) = (name for name in weights if name.endswith("decoder.weight"))
    (words,) = (
        name
        for name in weights
        if name.endswith(("word_embeddings.weight", "tok_embeddings.weight"))
    )
    weights[decoder] = weights[words]
    if "cls.predictions.bias" in weights:
        weights["cls.predictions.decoder.bias"] = weights["cls.predictions.bias"]
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    ok("import", source, tmp_path / "run")
    del weights[decoder]
    save_file(weights, source / "model.safetensors", metadata={"format": "pt"})
    line = refused("import", source, tmp_path / "again")
    says(line, key="import.untied_decoder", tensor=decoder)
    says(line, place=f"{source / 'config.json'}: tie_word_embeddings")


LABELS = [f"LABEL_{index}" for index in range(5)]
NAMES = {"0": "O", "1": "B-PER", "2": "I-PER", "3": "B-LOC", "4": "I-LOC"}
TWO = {"0": "LABEL_0", "1": "LABEL_1"}


@pytest.mark.parametrize(
    "values",
    [
        {"num_labels": 5, "id2label": TWO},
        {"num_labels": 5, "id2label": {"0": "O", "1": "B-PER"}},
        {"num_labels": 5, "id2label": None},
        {"num_labels": 5, "id2label": NAMES},
        {"id2label": NAMES},
    ],
)
def test_labels_are_named_as_in_transformers(values: dict[str, Any], tmp_path: Path) -> None:
    config = small_config("BertForTokenClassification", num_labels=5)
    source = save(hf_model(transformers.BertForTokenClassification, config), tmp_path / "hf")
    change(source, **values)
    said = ok("import", source, tmp_path / "run")
    theirs = transformers.BertForTokenClassification.from_pretrained(source)
    assert list(bert_jax.load(tmp_path / "run").heads.labels) == list(
        theirs.config.id2label.values()
    )
    replaced = values["id2label"] is not None and len(values["id2label"]) < 5
    assert ("id2label has 2 names" in said) == replaced


def test_a_wrong_number_of_labels_names_the_key(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = small_config("RobertaForSequenceClassification", num_labels=5)
    source = save(hf_model(transformers.RobertaForSequenceClassification, config), tmp_path / "hf")
    change(source, id2label=TWO)
    line = refused("import", source, tmp_path / "run")
    assert line.key == "import.label_count"
    says(line, found=2, outputs=5)
    says(line, place=f"{source / 'config.json'}: id2label")
    says(line, tensor="classifier.out_proj.weight")
