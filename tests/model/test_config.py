"""From a section to an architecture: named sizes, released files, refusals."""

import json
from pathlib import Path
from typing import Any

import pydantic
import pytest

from bert_jax.errors import UserError
from bert_jax.model.config import (
    SIZES,
    Architecture,
    Execution,
    HeadsSection,
    ModelSection,
    resolve_architecture,
)

# bert_config.json of uncased_L-12_H-768_A-12, key by key; the multilingual and Chinese files add
# `directionality` and the pooler_* keys.
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


def refused(section: ModelSection, *, vocab_size: int = 30522) -> str:
    with pytest.raises(UserError) as caught:
        resolve_architecture(section, vocab_size=vocab_size)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("size", SIZES)
def test_named_sizes_equal_the_released_ones(size: Any) -> None:
    layers, hidden, heads = SIZES[size]
    found = resolve_architecture(ModelSection(size=size), vocab_size=30522)
    assert found == Architecture(
        vocab_size=30522,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
    )
    assert found.head_dim == 64
    assert found.padded_vocab_size == 30592


def test_a_released_file_is_read_with_tanh_gelu(
    tmp_path: Path,
) -> None:
    found = resolve_architecture(
        ModelSection(bert_config=write(tmp_path, RELEASED)), vocab_size=30522
    )
    assert found == resolve_architecture(ModelSection(size="base"), vocab_size=30522)
    assert found.hidden_act == "gelu_tanh"


def test_a_saved_section_needs_no_released_file(tmp_path: Path) -> None:
    architecture = resolve_architecture(
        ModelSection(bert_config=write(tmp_path, MULTILINGUAL)), vocab_size=119547
    )
    execution, heads = Execution(remat="dots"), HeadsSection(mlm=False)
    for pieces in (119547, 119540):  # a tokenizer may have fewer pieces than embedding rows
        spelled = ModelSection.of(architecture, pieces=pieces, execution=execution, heads=heads)
        assert resolve_architecture(spelled, vocab_size=pieces) == architecture
        assert (spelled.architecture.vocab_size is None) == (pieces == 119547)
    with pytest.raises(UserError, match=r"^model\.architecture\.vocab_size: found 119547"):
        resolve_architecture(spelled, vocab_size=119548)
    assert spelled.execution.remat == "dots"
    assert not spelled.heads.mlm
    assert spelled.bert_config is None


def test_size_and_file_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(pydantic.ValidationError, match=r"size: found with model\.bert_config"):
        ModelSection(size="base", bert_config=write(tmp_path, RELEASED))


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers"])
def test_a_file_with_other_sizes_is_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, RELEASED)
    section = ModelSection.model_validate({"bert_config": path, "architecture": {name: 6}})
    line = refused(section)
    assert line.startswith("model.bert_config: found")
    assert f"{name} {RELEASED[name]}" in line
    assert f"model.architecture.{name} 6" in line


def test_missing_sizes_are_named() -> None:
    message = refused(
        ModelSection.model_validate({"architecture": {"hidden_size": 64, "num_hidden_layers": 2}})
    )
    assert message.startswith(
        "model.architecture: intermediate_size, num_attention_heads missing, allowed: "
    )
    assert "tiny, mini, small, medium, base, large" in message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hiden_size": 768}, 'hiden_size: unknown key; did you mean "hidden_size"?'),
        ({"hidden_act": "swish"}, 'hidden_act found "swish", allowed: gelu, relu'),
        ({"vocab_size": 28996}, "vocab_size found 28996, but the tokenizer has 30522 pieces"),
        ({"hidden_size": "768"}, 'hidden_size: found "768", allowed: an integer'),
        ({"num_hidden_layers": 0}, "num_hidden_layers: found 0, allowed: greater than or equal"),
        ({"num_attention_heads": 5}, "num_attention_heads: found 5, which does not divide"),
    ],
)
def test_a_foreign_file_names_key_and_value(
    tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    path = write(tmp_path, RELEASED | change)
    message = refused(ModelSection(bert_config=path))
    assert message.startswith(f"model.bert_config: {path}: {expected}")
