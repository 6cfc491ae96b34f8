"""Limits on files: kind, size, depth of nesting and length of numbers."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from etils import epath

from bert_jax.files.read import (
    parse_json,
    read_bytes,
    read_json_object,
    read_lines,
    require_file,
)
from bert_jax.files.yaml_file import dump_yaml, parse_yaml, read_yaml
from tests.project import refuses


@pytest.mark.parametrize(
    ("path", "key"),
    [
        ("/dev/zero", "file.kind"),
        ("/dev/null", "file.kind"),
        ("/", "file.kind"),
        ("a\0b", "file.unreadable"),
    ],
)
def test_special_files_are_refused_unread(path: str, key: str) -> None:
    for read in (read_bytes, read_json_object, read_yaml, require_file):
        with refuses(key, place=path):
            read(epath.Path(path))


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with refuses("file.kind", place=tmp_path / "pipe", found="a device, a pipe or a socket"):
        list(read_lines(tmp_path / "pipe"))


def test_a_large_file_is_refused_before_reading_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with refuses("file.too_large", place=path, allowed=1000):
        read_bytes(epath.Path(path), limit=1000)
    with refuses("file.line_too_long", place=f"{path}: line 1", allowed=1000):
        list(read_lines(path, limit=1000))


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("[" * 100_000, "json.depth", {"allowed": 100}),
        ('{"a":' * 101 + "1" + "}" * 101, "json.depth", {"allowed": 100}),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "json.key_twice", {"found": '"c"'}),
        ("9" * 5000, "json.digits", {"found": 5000, "allowed": 40}),
        (r'"\ud800"', "json.surrogate", {"found": r"\ud800"}),
        ("{", "json.invalid", {"allowed": "JSON"}),
    ],
)
def test_json_beyond_the_limits_is_refused(text: str, key: str, values: dict[str, Any]) -> None:
    with refuses(key, **values):
        parse_json(text)


def test_json_within_the_limits_is_read() -> None:
    nested = '{"a":' * 100 + "1" + "}" * 100
    assert parse_json(nested) == json.loads(nested)
    assert parse_json(r'["\ud83d\ude00", 1e30, -1]') == ["😀", 1e30, -1]


@pytest.mark.parametrize(
    ("text", "key", "line", "values"),
    [
        ("a: 1\nb: 2\na: 3", "yaml.key_twice", 3, {"found": '"a"'}),
        ("a: 1\nb: !!int x", "yaml.tag", 2, {"found": "tag:yaml.org,2002:int"}),
        ("a: !!python/object/apply:os.system [id]", "yaml.tag", 1, {}),
        ("a: &a [1]\nb: [*a, *a]", "yaml.alias", 2, {"found": "a"}),
        ("a: " + "9" * 5000, "yaml.digits", 1, {"allowed": 40}),
        ("a: 0b_", "yaml.number", 1, {"found": '"0b_"'}),
        ("[" * 100_000, "yaml.depth", 1, {"allowed": 100}),
        (r'a: "\U00110000"', "yaml.invalid", 1, {}),
        ("? [a]\n: b", "yaml.key", 1, {}),
        ("[" + "1," * 200_000 + "]", "yaml.values", 1, {"allowed": 100_000}),
    ],
)
def test_yaml_allows_plain_values_within_limits(
    text: str, key: str, line: int, values: dict[str, Any]
) -> None:
    with refuses(key, place=f"run.yaml: line {line}", **values):
        parse_yaml(text, "run.yaml")


def test_yaml_aliases_seven_deep_take_no_memory() -> None:
    levels = "".join(
        f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
        for a, b in zip("abcdef", "bcdefg", strict=True)
    )
    with refuses("yaml.alias", place="bomb.yaml: line 2"):
        parse_yaml(f"a: &a [lol]\n{levels}", "bomb.yaml")


def test_dates_and_keys_stay_text() -> None:
    text = "run_dir: 2024-01-01\nbad: 2024-99-99\nno: 1e-4\n1: [yes, ~]"
    expected = {"run_dir": "2024-01-01", "bad": "2024-99-99", "no": 1e-4, "1": [True, None]}
    assert parse_yaml(text, "x") == expected
    assert parse_yaml(dump_yaml(expected), "x") == expected


@pytest.mark.parametrize("text", ["1e4", "-1.5e-4", "0x1f", "1_000", "null", "yes", "2024-01-01"])
def test_text_that_looks_like_a_number_stays_text(text: str) -> None:
    assert parse_yaml(dump_yaml({"label": text}), "x") == {"label": text}


def test_a_shared_list_is_written_twice() -> None:
    held = [1, 2]
    assert parse_yaml(dump_yaml({"a": held, "b": held}), "x") == {"a": held, "b": held}
