"""Refusals of `bert-jax import` and `export`: one line, exit code 2, no files left."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
import transformers

from tests.interop.hf_checkpoints import hf_config, hf_model, save
from tests.project import invoke


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A small Hugging Face checkpoint with both pretraining heads."""
    config = hf_config(hidden_size=16, intermediate_size=24)
    return save(hf_model(transformers.BertForPreTraining, config), tmp_path / "hf")


def refused(checkpoint: Path, *options: object) -> str:
    """Imports and returns the line of the refusal."""
    target = checkpoint.parent / "run"
    result = invoke("import", checkpoint, target, *options)
    assert result.exit_code == 2, result.output
    assert not target.exists()
    left = [path.name for path in checkpoint.parent.iterdir()]
    assert left == ["hf"] or set(left) <= {"hf", "tokenizer"}
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    return lines[0]


def change_config(checkpoint: Path, **changes: Any) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change_weights(checkpoint: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    path = checkpoint / "model.safetensors"
    tensors = safetensors.numpy.load_file(path)
    change(tensors)
    safetensors.numpy.save_file(tensors, path)


def test_import_replaces_a_run_only_with_force_and_success(checkpoint: Path) -> None:
    target = checkpoint.parent / "run"
    first = invoke("import", checkpoint, target)
    assert first.exit_code == 0, first.output
    again = invoke("import", checkpoint, target)
    assert again.exit_code == 2
    assert "[output.exists]" in again.stderr
    (target / "mark").touch()
    assert invoke("import", checkpoint, target, "--force").exit_code == 0
    assert not (target / "mark").exists()
    before = (target / "config.yaml").read_bytes()
    change_config(checkpoint, hidden_act="swish")
    assert invoke("import", checkpoint, target, "--force").exit_code == 2
    assert (target / "config.yaml").read_bytes() == before
    assert sorted(path.name for path in target.parent.iterdir()) == ["hf", "run"]


class Evil:
    """Unpickling this would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("form", ["zip", "old", "shard"])
def test_code_in_a_pickle_is_not_run(checkpoint: Path, form: str) -> None:
    (checkpoint / "model.safetensors").unlink()
    mark = checkpoint / "mark"
    content = {"weight": torch.ones(2), "evil": Evil(mark)}
    name = "pytorch_model-00001-of-00001.bin" if form == "shard" else "pytorch_model.bin"
    if form == "old":
        (checkpoint / name).write_bytes(pickle.dumps(content))
    else:
        torch.save(content, checkpoint / name)
    index = {"weight_map": dict.fromkeys(content, name)}
    if form == "shard":
        (checkpoint / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    line = refused(checkpoint)
    assert f"{name}: " in line
    assert "can run any code" in line
    assert not mark.exists()


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model_type": "gpt2"}, 'config.json: model_type: found "gpt2", allowed: bert'),
        ({"intermediate_size": 32}, "found shape [24, 16], the configuration says [32, 16]"),
        ({"num_hidden_layers": 3}, "tensor bert.encoder.layer.2."),
        ({"num_hidden_layers": 1}, "is not part of the model here"),
        ({"num_attention_heads": 3}, "does not divide hidden_size = 16"),
        ({"hidden_act": "gelu_nwe"}, 'hidden_act: found "gelu_nwe", allowed: gelu,'),
        ({"hidden_size": "16"}, 'hidden_size: found "16"'),
        (
            {"position_embedding_type": "relative_key"},
            'position_embedding_type: found "relative_key", allowed: absolute',
        ),
        ({"is_decoder": True}, "is_decoder: found true, allowed: False"),
        ({"architectures": ["BertForMaskedLm"]}, 'did you mean "BertForMaskedLM"'),
        (
            {"architectures": ["BertForSequenceClassification"]},
            "tensor classifier.weight is missing",
        ),
    ],
)
def test_config_contradicting_tensors_is_refused(
    checkpoint: Path, changes: dict[str, Any], line: str
) -> None:
    change_config(checkpoint, **changes)
    assert line in refused(checkpoint)


def test_wrong_tensors_are_refused(checkpoint: Path) -> None:
    whole = (checkpoint / "model.safetensors").read_bytes()

    def line_after(change: Callable[[dict[str, np.ndarray]], Any]) -> str:
        (checkpoint / "model.safetensors").write_bytes(whole)
        change_weights(checkpoint, change)
        return refused(checkpoint)

    query = "bert.encoder.layer.1.attention.self.query.weight"
    words = "bert.embeddings.word_embeddings.weight"
    assert f"tensor {query} is missing" in line_after(lambda found: found.pop(query))
    unknown = line_after(lambda found: found.update(extra=np.zeros(3, np.float32)))
    assert "tensor extra is not part of the model here" in unknown
    integers = line_after(lambda found: found.update({query: np.zeros((16, 16), np.int64)}))
    assert f"tensor {query} found type int64, allowed: float32" in integers
    untied = line_after(
        lambda found: found.update({"cls.predictions.decoder.weight": found[words] + 1})
    )
    assert f"decoder.weight differs from {words}" in untied


def test_files_of_another_format_are_refused(checkpoint: Path) -> None:
    def line_after(name: str, content: str | None) -> str:
        whole = (checkpoint / name).read_bytes() if (checkpoint / name).exists() else None
        (checkpoint / name).unlink(missing_ok=True)
        if content is not None:
            (checkpoint / name).write_text(content)
        line = refused(checkpoint)
        if whole is not None:
            (checkpoint / name).write_bytes(whole)
        return line

    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n"
    assert "git-lfs pointer, not the weights; `git lfs pull`" in line_after(
        "model.safetensors", pointer
    )
    pieces = (checkpoint / "vocab.txt").read_text().split()
    said = line_after("vocab.txt", "\n".join([*pieces, "zzz"]))
    assert f"vocab_size: found {len(pieces)}, but the tokenizer has {len(pieces) + 1}" in said
    assert '{"do_lower_case": true}' in line_after("tokenizer_config.json", None)
    assert "found no checkpoint, allowed: a Hugging Face directory" in line_after(
        "config.json", None
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.backend_tokenizer.save(str(checkpoint / "tokenizer.json"))
    swapped = "\n".join([*pieces[:-2], pieces[-1], pieces[-2]])
    assert "vocabulary differs from vocab.txt" in line_after("vocab.txt", swapped)


def test_import_without_mlm_head_cannot_fill_masks(checkpoint: Path) -> None:
    change_config(checkpoint, architectures=["BertModel"])

    def bare(found: dict[str, np.ndarray]) -> None:
        for name in list(found):
            if not name.startswith("bert."):
                del found[name]

    change_weights(checkpoint, bare)
    target = checkpoint.parent / "run"
    assert invoke("import", checkpoint, target).exit_code == 0
    filled = invoke("fill-mask", target, "a [MASK] b")
    assert filled.exit_code == 2
    assert "has no head but a pooler, so it cannot say which word is missing" in filled.stderr
    evaluated = invoke("evaluate", target)
    assert evaluated.exit_code == 2
    assert "need a pooler, an MLM head and a next-sentence head" in evaluated.stderr


def test_export_without_the_needed_head_is_refused(checkpoint: Path) -> None:
    target, output = checkpoint.parent / "run", checkpoint.parent / "out"
    assert invoke("import", checkpoint, target).exit_code == 0
    result = invoke("export", target, output, "--as", "BertForQuestionAnswering")
    assert result.exit_code == 2
    assert 'found "BertForQuestionAnswering", allowed with these heads: BertForPreTraining' in (
        result.stderr
    )
    assert not output.exists()
    assert invoke("export", target, output, "--as", "BertForMaskedLM").exit_code == 0
    config = json.loads((output / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]
    card = (output / "README.md").read_text()
    assert "Provenance" in card
    assert "learning_rate" not in card  # this run was not trained here
    again = invoke("export", target, output)
    assert again.exit_code == 2
    assert "or --force" in again.stderr
