"""Limits on files: their kind, size, nesting depth and length of numbers."""

import json
import os
from pathlib import Path

import pytest
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.read import (
    parse_json,
    read_bytes,
    read_json_object,
    read_lines,
    require_file,
)
from bert_jax.files.yaml_file import dump_yaml, parse_yaml, read_yaml


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/", "a\0b"])
def test_special_files_are_refused_unread(path: str) -> None:
    for read in (read_bytes, read_json_object, read_yaml, require_file):
        with pytest.raises(UserError, match=r"allowed: a file|null (byte|character)"):
            read(epath.Path(path))


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="a device, a pipe or a socket, allowed: a file"):
        list(read_lines(tmp_path / "pipe"))


def test_a_large_file_is_refused_before_reading_it_whole(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UserError, match="large: found more than 1,000 bytes"):
        read_bytes(epath.Path(path), limit=1000)
    with pytest.raises(UserError, match=r"line 1: found more than 1,000 characters"):
        list(read_lines(path, limit=1000))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "nested deeper than 100"),
        ('{"a":' * 101 + "1" + "}" * 101, "nested deeper than 100"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', 'the key "c" twice'),
        ("9" * 5000, "a number of 5,000 digits, allowed: 40"),
        (r'"\ud800"', r"\\ud800, half a surrogate pair"),
        ("{", "found no JSON"),
    ],
)
def test_json_beyond_the_limits_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_json(text)


def test_json_within_the_limits_is_read() -> None:
    nested = '{"a":' * 100 + "1" + "}" * 100
    assert parse_json(nested) == json.loads(nested)
    assert parse_json(r'["\ud83d\ude00", 1e30, -1]') == ["😀", 1e30, -1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", 'line 3: not YAML .the key "a" is there twice'),
        ("a: 1\nb: !!int x", "line 2: not YAML .a tag tag:yaml.org,2002:int is not allowed"),
        ("a: !!python/object/apply:os.system [id]", "a tag .* is not allowed"),
        ("a: &a [1]\nb: [*a, *a]", "line 2: not YAML .an alias"),
        ("a: " + "9" * 5000, "a number of more than 40 digits"),
        ("[" * 100_000, "nested deeper than 100"),
        (r'a: "\U00110000"', "not YAML"),
        ("? [a]\n: b", "a key that is no text"),
        ("[" + "1," * 200_000 + "]", "more than 100,000 values"),
    ],
)
def test_yaml_allows_plain_values_within_limits(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_yaml(text, "run.yaml")


def test_yaml_aliases_seven_deep_take_no_memory() -> None:
    levels = "".join(
        f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
        for a, b in zip("abcdef", "bcdefg", strict=True)
    )
    with pytest.raises(UserError, match="an alias"):
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
