"""Architectures from sections: named sizes, released files, mistakes."""

import json
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from bert_jax.encoders.bert.section import BertArchitecture, BertSection
from bert_jax.encoders.registry import read_model_section
from bert_jax.model.section import Execution, HeadsSection, TaskName
from bert_jax.tasks.family import task_heads
from bert_jax.validation import validate
from tests.project import refuses

# The bert_config.json of uncased_L-12_H-768_A-12. The multilingual and Chinese files also have
# `directionality` and pooler_* keys.
RELEASED: dict[str, Any] = {
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "type_vocab_size": 2,
    "vocab_size": 30522,
}
CHOICE: Final = {"task": "multiple_choice", "next_sentence": False, "mlm": False}
MULTILINGUAL = RELEASED | {
    "directionality": "bidi",
    "pooler_fc_size": 768,
    "pooler_num_attention_heads": 12,
    "pooler_num_fc_layers": 3,
    "pooler_size_per_head": 128,
    "pooler_type": "first_token_transform",
    "vocab_size": 119547,
}


def write(tmp_path: Path, values: Any) -> str:
    path = tmp_path / "bert_config.json"
    path.write_text(values if isinstance(values, str) else json.dumps(values, indent=2))
    return str(path)


@pytest.mark.parametrize("size", BertSection.named_sizes)
def test_named_sizes_equal_the_released_ones(size: Any) -> None:
    layers, hidden, heads, inner = BertSection.named_sizes[size]
    found = BertSection(size=size).resolve(vocab_size=30522)
    assert found == BertArchitecture(
        vocab_size=30522,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
    )
    assert found.head_dim == 64
    assert inner == 4 * hidden
    assert found.padded_vocab_size == 30592


def test_a_released_file_is_read_with_tanh_gelu(
    tmp_path: Path,
) -> None:
    found = BertSection(bert_config=write(tmp_path, RELEASED)).resolve(vocab_size=30522)
    assert found == BertSection(size="base").resolve(vocab_size=30522)
    assert found.hidden_act == "gelu_tanh"


def test_a_saved_section_needs_no_released_file(tmp_path: Path) -> None:
    architecture = BertSection(bert_config=write(tmp_path, MULTILINGUAL)).resolve(vocab_size=119547)
    execution, heads = Execution(remat="dots"), HeadsSection(mlm=False)
    for pieces in (119547, 119540):  # a tokenizer may have fewer pieces than embedding rows
        spelled = BertSection.of(architecture, pieces=pieces, execution=execution, heads=heads)
        assert spelled.resolve(vocab_size=pieces) == architecture
        assert (spelled.architecture.vocab_size is None) == (pieces == 119547)
    with refuses("model.vocab_size", place="model.architecture.vocab_size", found=119547):
        spelled.resolve(vocab_size=119548)
    assert spelled.execution.remat == "dots"
    assert not spelled.heads.mlm
    assert spelled.bert_config is None


@pytest.mark.parametrize(
    ("kind", "heads", "reader"),
    [
        ("bert", {}, "next_sentence"),
        ("modernbert", {}, "next_sentence"),
        ("bert", CHOICE, CHOICE["task"]),
        ("roberta", CHOICE, CHOICE["task"]),
    ],
)
def test_a_head_without_the_pooler_that_it_reads_is_refused(
    kind: str, heads: dict[str, Any], reader: str
) -> None:
    heads = heads | {"pooler": False}
    with refuses("model.pooler", place="model.heads.pooler", encoder=kind, head=reader):
        read_model_section({"kind": kind, "heads": heads}, source="")


@pytest.mark.parametrize(
    ("kind", "tasks"),
    [
        ("bert", {"sequence_classification", "multiple_choice"}),
        ("roberta", {"multiple_choice"}),
        ("modernbert", set()),
    ],
)
def test_a_fine_tuned_model_has_a_pooler_if_its_head_reads_it(kind: str, tasks: set[str]) -> None:
    section = read_model_section({"kind": kind}, source="")
    heads = {task: section.of_task(task_heads(task, labels=("a",))) for task in get_args(TaskName)}
    assert {task for task, found in heads.items() if found.pooler} == tasks
    for found in heads.values():  # they are valid
        read_model_section({"kind": kind, "heads": found.model_dump()}, source="")


def test_size_and_file_together_are_refused(tmp_path: Path) -> None:
    values = {"size": "base", "bert_config": write(tmp_path, RELEASED)}
    with refuses("model.two_sources", setting="size"):
        validate(BertSection, values, source="")


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers"])
def test_a_file_with_other_sizes_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, RELEASED)
    section = BertSection.model_validate({"bert_config": path, "architecture": {name: 6}})
    values = {"place": "model.bert_config", "name": name, "size": RELEASED[name], "other": 6}
    with refuses("model.two_sizes", **values):
        section.resolve(vocab_size=30522)


def test_missing_sizes_are_named() -> None:
    section = BertSection.model_validate(
        {"architecture": {"hidden_size": 4, "num_hidden_layers": 2}}
    )
    with refuses(
        "model.sizes_missing",
        place="model.architecture",
        missing=["intermediate_size", "num_attention_heads"],
        sizes=["tiny", "mini", "small", "medium", "base", "large"],
    ):
        section.resolve(vocab_size=30522)


@pytest.mark.parametrize(
    ("change", "key", "name", "values"),
    [
        ({"hiden_size": 768}, "setting.unknown", "hiden_size", {}),
        ({"hidden_act": "swish"}, "model.activation", "", {"allowed": ["gelu", "relu"]}),
        ({"vocab_size": 28996}, "model.vocab_size_of_file", "", {"pieces": 30522}),
        ({"hidden_size": "768"}, "setting.value", "hidden_size", {"allowed": "an integer"}),
        ({"num_hidden_layers": 0}, "setting.value", "num_hidden_layers", {"found": "0"}),
        ({"num_attention_heads": 5}, "model.heads", "num_attention_heads", {"found": 5}),
    ],
)
def test_a_foreign_file_names_key_and_value(
    tmp_path: Path, change: dict[str, Any], key: str, name: str, values: dict[str, Any]
) -> None:
    path = write(tmp_path, RELEASED | change)
    place = f"model.bert_config: {path}" + (f": {name}" if name else "")
    with refuses(key, place=place, **values):
        BertSection(bert_config=path).resolve(vocab_size=30522)
