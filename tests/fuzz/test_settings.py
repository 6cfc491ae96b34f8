"""Configurations, overrides, and the JSON files of models and tokenizers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from etils import epath
from flax import serialization
from hypothesis import strategies as st

from bert_jax.config import load_config, parse_config
from bert_jax.encoders.bert.hugging_face import FORMAT
from bert_jax.encoders.bert.section import BertSection
from bert_jax.files.yaml_file import parse_yaml
from bert_jax.interop.flax_file import FLAX_WEIGHTS, FlaxFile
from bert_jax.interop.hf_config import read_config
from bert_jax.interop.hf_weights import HfWeights
from bert_jax.text import load_tokenizer
from tests.fuzz.harness import TOKENS, VALUES, both_forms, confused, damaged, json_of, survives
from tests.project import project_config, refuses

CONFIG = project_config(Path("/data")) | {
    "optimizer": {"learning_rate": 1e-3, "warmup_steps": 4, "freeze": ["embeddings"]},
    "finetune": {"init_from": "run", "task": {"kind": "glue", "name": "cola", "data": "CoLA"}},
}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##s", "a", "é"]
SETTINGS = {"do_lower_case": True, "strip_accents": None, "type": "wordpiece"}
HF_CONFIG = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "vocab_size": 30,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "layer_norm_eps": 1e-12,
    "id2label": {"0": "no", "1": "yes"},
    "problem_type": "single_label_classification",
    "classifier_dropout": None,
}
MODERNBERT_CONFIG = {
    "model_type": "modernbert",
    "architectures": ["ModernBertForMaskedLM"],
    **{key: HF_CONFIG[key] for key in list(HF_CONFIG)[2:7]},
    "num_hidden_layers": 3,
    "hidden_activation": "gelu",
    "local_attention": 6,
    "global_attn_every_n_layers": 2,
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 8.0}},
}
ARRAYS = {"bert": {"pooler": {"dense": {"kernel": np.ones((2, 3), np.float32)}}}}
FAST = {
    "model": {"type": "WordPiece", "vocab": {piece: n for n, piece in enumerate(PIECES)}},
    "normalizer": {"type": "BertNormalizer", "lowercase": True, "handle_chinese_chars": True},
    "added_tokens": [{"id": 0, "content": "[PAD]"}],
}


@both_forms
def test_configurations(tmp_path: Path, inputs: int) -> None:
    path = tmp_path / "run.yaml"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        load_config(path)

    whole = yaml.safe_dump(CONFIG).encode()
    values = confused(CONFIG).map(lambda value: json.dumps(value).encode())
    survives(read, st.one_of(damaged(whole), values), inputs)


@both_forms
def test_overrides(inputs: int) -> None:
    def read(override: str) -> None:
        parse_config(json.loads(json.dumps(CONFIG)), [override], source="run.yaml")

    keys: list[str] = []

    def walk(node: Any, above: str) -> None:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            keys.append(f"{above}{key}")
            if isinstance(value, dict | list):
                walk(value, f"{above}{key}.")

    walk(CONFIG, "")
    parts = st.sampled_from(["0", "x", "²", "-1", "", "9" * 30, "a.b", "tensor", "steps"])
    key = st.builds("{}{}{}".format, st.sampled_from(keys), st.sampled_from(["", "."]), parts)
    tokens = st.sampled_from([token.decode("latin-1") for token in TOKENS])
    text = st.one_of(st.sampled_from(VALUES).map(json.dumps), tokens, st.text(max_size=20))
    survives(read, st.builds("{}={}".format, key, text), inputs)


@both_forms
def test_random_yaml(inputs: int) -> None:
    pieces = st.sampled_from([*(token.decode("latin-1") for token in TOKENS), "a", "\n  ", "b: "])
    texts = st.lists(st.one_of(pieces, st.text(max_size=5)), max_size=30).map("".join)
    survives(lambda text: parse_yaml(text, "x.yaml"), texts, inputs)


VOCABULARY = "".join(f"{piece}\n" for piece in PIECES)
TOKENIZER = {"vocab.txt": VOCABULARY, "tokenizer_config.json": json.dumps(SETTINGS)}


def encode(root: Path) -> None:
    tokenizer = load_tokenizer(root)
    tokenizer.decode(tokenizer.encode("thes é [MASK] x"))


def open_weights(directory: Path) -> HfWeights:
    return HfWeights(directory, FORMAT)


# Name of the file to damage → (its valid content, the other files in its directory, the function
# that reads it).
FILES: dict[str, tuple[Any, dict[str, str], Callable[[Path], object]]] = {
    "config.json": (HF_CONFIG, {}, lambda root: read_config(root / "config.json").config.labels),
    "config-of-modernbert.json": (
        MODERNBERT_CONFIG, {}, lambda root: read_config(
            root / "config-of-modernbert.json"
        ).architecture
    ),
    FLAX_WEIGHTS: (
        serialization.to_bytes(ARRAYS), {}, lambda root: FlaxFile(root / FLAX_WEIGHTS)
    ),
    "bert_config.json": (
        {key: HF_CONFIG[key] for key in list(HF_CONFIG)[2:9]},
        {},
        lambda root: BertSection(
            bert_config=str(root / "bert_config.json")
        ).resolve(vocab_size=30),
    ),
    "vocab.txt": (VOCABULARY.encode(), TOKENIZER, encode),
    "tokenizer_config.json": (SETTINGS, TOKENIZER, encode),
    "tokenizer.json": (FAST, {}, lambda root: load_tokenizer(root).save(root / "saved")),
    "model.safetensors.index.json": (
        {"weight_map": {"a": "model-1.safetensors", "b": "../x"}}, {}, open_weights
    ),
}  # fmt: skip


@both_forms
@pytest.mark.parametrize("name", FILES)
def test_files_of_models_and_tokenizers(tmp_path: Path, name: str, inputs: int) -> None:
    whole, beside, use = FILES[name]
    for other, content in beside.items():
        (tmp_path / other).write_text(content)

    def read(content: bytes) -> None:
        (tmp_path / name).write_bytes(content)
        use(tmp_path)

    survives(read, damaged(whole) if isinstance(whole, bytes) else json_of(whole), inputs)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "..", ".", "", "a/b", "\0"])
def test_an_index_cannot_name_files_outside_its_directory(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("x")
    model = tmp_path / "model"
    model.mkdir()
    index = {"weight_map": {"a": name}}
    epath.Path(model / "model.safetensors.index.json").write_text(json.dumps(index))
    with refuses("weights.shard_missing"):
        open_weights(model)
