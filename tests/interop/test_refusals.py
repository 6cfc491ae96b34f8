"""Bad input to `bert-jax import` and `export` ends with an error line, exit code 2 and no files."""

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
from tests.project import Refusal, invoke, refused, says


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Directory of a small Hugging Face checkpoint with both pretraining heads."""
    config = hf_config(hidden_size=16, intermediate_size=24)
    return save(hf_model(transformers.BertForPreTraining, config), tmp_path / "hf")


def import_refused(checkpoint: Path) -> Refusal:
    """Imports a checkpoint, asserts that it fails without output, and returns the error line."""
    line = refused("import", checkpoint, checkpoint.parent / "run")
    assert [path.name for path in checkpoint.parent.iterdir()] == ["hf"]
    return line


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
    assert refused("import", checkpoint, target).key == "output.exists"
    (target / "mark").touch()
    assert refused("import", checkpoint, target, "--force").key == "output.foreign"
    (target / "mark").rename(target / "evaluations")
    assert invoke("import", checkpoint, target, "--force").exit_code == 0
    assert not (target / "evaluations").exists()
    before = (target / "config.yaml").read_bytes()
    change_config(checkpoint, hidden_act="swish")
    assert refused("import", checkpoint, target, "--force").key == "import.activation"
    assert (target / "config.yaml").read_bytes() == before
    assert sorted(path.name for path in target.parent.iterdir()) == ["hf", "run"]


class Evil:
    """An object that creates a file when it is unpickled."""

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
    line = import_refused(checkpoint)
    assert line.key == "weights.pickled_objects"
    says(line, place=str(checkpoint / name))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("changes", "key", "values"),
    [
        ({"model_type": "gpt2"}, "import.model_type", {"found": "gpt2"}),
        ({"intermediate_size": 32}, "tensor.shape", {"found": [24, 16], "expected": [32, 16]}),
        (
            {"num_hidden_layers": 3},
            "tensor.missing",
            {"name": "bert.encoder.layer.2.attention.self.query.weight"},
        ),
        (
            {"num_hidden_layers": 1},
            "tensor.unknown",
            {"name": "bert.encoder.layer.1.attention.output.LayerNorm.bias"},
        ),
        ({"num_attention_heads": 3}, "model.heads", {"found": 3, "hidden_size": 16}),
        ({"hidden_act": "gelu_nwe"}, "import.activation", {"found": "gelu_nwe"}),
        ({"id2label": {"1": "a"}}, "import.label_numbers", {"setting": "id2label", "found": ["1"]}),
        ({"id2label": {}}, "import.label_numbers", {"setting": "id2label", "found": []}),
        ({"num_labels": 10**18}, "setting.value", {"setting": "num_labels"}),
        ({"pad_token_id": "0"}, "import.setting_type", {"found": "0"}),
        ({"label2id": []}, "import.setting_type", {"found": "[]"}),
        ({"use_cache": 1}, "import.setting_type", {"found": "1"}),
        ({"hidden_size": "16"}, "setting.value", {"setting": "hidden_size", "found": '"16"'}),
        (
            {"position_embedding_type": "relative_key"},
            "setting.value",
            {"setting": "position_embedding_type", "allowed": ["absolute"]},
        ),
        ({"is_decoder": True}, "import.is_decoder", {"found": True, "allowed": False}),
        (
            {"architectures": ["BertForMaskedLm"]},
            "import.class_unknown",
            {"hint": '; did you mean "BertForMaskedLM"?'},
        ),
        (
            {"architectures": ["BertForSequenceClassification"]},
            "tensor.missing",
            {"name": "classifier.weight"},
        ),
    ],
)
def test_config_contradicting_tensors_is_refused(
    checkpoint: Path, changes: dict[str, Any], key: str, values: dict[str, Any]
) -> None:
    change_config(checkpoint, **changes)
    line = import_refused(checkpoint)
    assert line.key == key
    says(line, **values)


def test_a_tensor_without_data_is_refused(checkpoint: Path) -> None:
    tensors = {
        name: torch.from_numpy(array)
        for name, array in safetensors.numpy.load_file(checkpoint / "model.safetensors").items()
    }
    (checkpoint / "model.safetensors").unlink()
    name = "bert.pooler.dense.weight"
    empty = torch.empty_like(tensors[name], device="meta")
    torch.save(tensors | {name: empty}, checkpoint / "pytorch_model.bin")
    line = import_refused(checkpoint)
    says(line, key="tensor.no_data", name=f'"{name}"')


def test_wrong_tensors_are_refused(checkpoint: Path) -> None:
    whole = (checkpoint / "model.safetensors").read_bytes()

    def refused_tensor(change: Callable[[dict[str, np.ndarray]], Any]) -> tuple[str, str]:
        (checkpoint / "model.safetensors").write_bytes(whole)
        change_weights(checkpoint, change)
        line = import_refused(checkpoint)
        return line.key, line.partition("tensor ")[2].split()[0]

    query = "bert.encoder.layer.1.attention.self.query.weight"
    words = "bert.embeddings.word_embeddings.weight"
    decoder = "cls.predictions.decoder.weight"
    assert refused_tensor(lambda found: found.pop(query)) == ("tensor.missing", query)
    unknown = refused_tensor(lambda found: found.update(extra=np.zeros(3, np.float32)))
    assert unknown == ("tensor.unknown", "extra")
    integers = refused_tensor(lambda found: found.update({query: np.zeros((16, 16), np.int64)}))
    assert integers == ("tensor.type", query)
    untied = refused_tensor(lambda found: found.update({decoder: found[words] + 1}))
    assert untied == ("tensor.not_tied", decoder)


def test_files_of_another_format_are_refused(checkpoint: Path) -> None:
    def line_after(name: str, content: str | None) -> Refusal:
        whole = (checkpoint / name).read_bytes() if (checkpoint / name).exists() else None
        (checkpoint / name).unlink(missing_ok=True)
        if content is not None:
            (checkpoint / name).write_text(content)
        line = import_refused(checkpoint)
        if whole is not None:
            (checkpoint / name).write_bytes(whole)
        return line

    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12\n"
    assert line_after("model.safetensors", pointer).key == "weights.lfs_pointer"
    pieces = (checkpoint / "vocab.txt").read_text().split()
    line = line_after("vocab.txt", "\n".join([*pieces, "zzz"]))
    assert line.key == "import.vocab_size"
    says(line, found=len(pieces), pieces=len(pieces) + 1)
    assert '{"do_lower_case": true}' in line_after("tokenizer_config.json", None)
    assert line_after("config.json", None).key == "import.no_checkpoint"
    tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint)
    tokenizer.backend_tokenizer.save(str(checkpoint / "tokenizer.json"))
    swapped = "\n".join([*pieces[:-2], pieces[-1], pieces[-2]])
    assert line_after("vocab.txt", swapped).key == "tokenizer.vocabularies_differ"


def test_import_without_mlm_head_cannot_fill_masks(checkpoint: Path) -> None:
    change_config(checkpoint, architectures=["BertModel"])

    def bare(found: dict[str, np.ndarray]) -> None:
        for name in list(found):
            if not name.startswith("bert."):
                del found[name]

    change_weights(checkpoint, bare)
    target = checkpoint.parent / "run"
    assert invoke("import", checkpoint, target).exit_code == 0
    assert refused("fill-mask", target, "a [MASK] b").key == "run.no_mlm_head"
    assert refused("evaluate", target).key == "evaluate.heads_missing"


def test_export_without_the_needed_head_is_refused(checkpoint: Path) -> None:
    target, output = checkpoint.parent / "run", checkpoint.parent / "out"
    assert invoke("import", checkpoint, target).exit_code == 0
    line = refused("export", target, output, "--as", "BertForQuestionAnswering")
    assert line.key == "export.class_unknown"
    assert "BertForPreTraining" in str(line)
    assert "BertForQuestionAnswering" not in line.partition("allowed")[2]
    assert not output.exists()
    assert invoke("export", target, output, "--as", "BertForMaskedLM").exit_code == 0
    config = json.loads((output / "config.json").read_text())
    assert config["architectures"] == ["BertForMaskedLM"]
    card = (output / "README.md").read_text()
    assert "Provenance" in card
    assert "learning_rate" not in card  # this run was not trained here
    assert refused("export", target, output).key == "output.exists"
