"""A ``tokenizer.json`` cannot make the program hang or fill the memory."""

import json
from pathlib import Path
from typing import Any

import pytest

from bert_jax.text import load_tokenizer
from tests.project import refuses
from tests.text.library_tokenizers import saved

# Expressions of GPT-2, Llama 3, GPT-4o, CLIP and DeepSeek, and of numbers in groups of three.
KNOWN = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"<\|startoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+",
    r"\d{1,3}(?=(?:\d{3})*\b)",
    r"[\p{L}&&[^a-z]]+|x++|y*?",
)
# Each took longer than a minute for some text of at most a hundred letters, or refers to a group.
HOSTILE = {
    "(a+)+b": "a repetition in a repetition",
    "(a|a)*b": "a repetition in a repetition",
    r"(?:\w+\s?)*\z": "a repetition in a repetition",
    "((a{1,9})){5,}b": "a repetition in a repetition",
    "(?:(?:x?){2}y?)*z": "a repetition in a repetition",
    r"(\w+)\1": "a reference to a group",
    r"(?<n>a+)\k<n>": "a reference to a group",
    "a*a*a*a*b": "more than 2 unlimited repetitions in a row",
    "a" * 2001: "longer than 2,000 characters",
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return saved("modernbert", tmp_path)


def change(directory: Path, **parts: Any) -> Path:
    """Changes parts of the tokenizer.json, and returns its path."""
    path = directory / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | parts))
    return path


def divided_by(expression: str) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated"}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    steps = [split | {"invert": False}, level | {"use_regex": False}]
    return {"type": "Sequence", "pretokenizers": steps}


def replacing(pattern: dict[str, str], content: str, *, times: int = 1) -> dict[str, Any]:
    step = {"type": "Replace", "pattern": pattern, "content": content}
    return {"type": "Sequence", "normalizers": [step] * times}


def test_known_expressions_are_read(directory: Path) -> None:
    for expression in KNOWN:
        change(directory, pre_tokenizer=divided_by(expression))
        assert load_tokenizer(directory).encode("don't stop at 1234") != []


@pytest.mark.parametrize("expression", HOSTILE)
def test_a_dangerous_expression_is_refused(directory: Path, expression: str) -> None:
    for part, place in (
        ({"pre_tokenizer": divided_by(expression)}, "pre_tokenizer.Split"),
        ({"normalizer": replacing({"Regex": expression}, "x")}, "normalizer.Replace"),
    ):
        path = change(directory, **part)
        values = {"place": f"{path}: {place}", "reason": HOSTILE[expression]}
        with refuses("tokenizer.expression", **values):
            load_tokenizer(directory)


@pytest.mark.parametrize(
    "normalizer",
    [
        replacing({"String": "a"}, "aa", times=30),
        replacing({"Regex": "[a-z]"}, "x" * 100),
        replacing({"String": ""}, "xy" * 30),
        {"type": "Prepend", "prepend": "x" * 1000},
    ],
)
def test_a_text_does_not_grow_without_limit(directory: Path, normalizer: dict[str, Any]) -> None:
    path = change(directory, normalizer=normalizer)
    with refuses("tokenizer.growth", place=f"{path}: normalizer", allowed=32):
        load_tokenizer(directory)
    change(directory, normalizer=replacing({"String": "``"}, '"', times=30))
    assert load_tokenizer(directory).encode("``a") != []
