"""Files with a seal: every flipped bit is detected or does not change a value."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.read import read_text
from bert_jax.files.seal import read_sealed, refuse_changed_yaml, sealed, sealed_yaml
from bert_jax.files.yaml_file import dump_yaml, parse_yaml
from tests.project import refuses

VALUES = {"seed": 12, "tokenizer": None, "model": {"eps": 1e-12, "pieces": ["the", "Häuser"]}}


def read_yaml(path: epath.Path) -> Any:
    text = read_text(path)
    refuse_changed_yaml(text, where=str(path))
    return parse_yaml(text, str(path))


@pytest.mark.parametrize(
    ("text", "read"),
    [
        (sealed_yaml(dump_yaml(VALUES)), read_yaml),
        (json.dumps(sealed(VALUES), indent=1, ensure_ascii=False), read_sealed),
    ],
    ids=["yaml", "json"],
)
def test_every_flipped_bit_is_detected_or_harmless(
    text: str, read: Callable[[epath.Path], Any], tmp_path: Path
) -> None:
    path, whole = epath.Path(tmp_path / "file"), text.encode()
    path.write_bytes(whole)
    assert read(path) == VALUES
    # Every third bit covers each byte and each bit position in a byte.
    for at, bit in itertools.islice(itertools.product(range(len(whole)), range(8)), 0, None, 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        try:
            found = read(path)
        except UserError:
            continue
        # These flips are harmless: a flip in the word "sha256" adds a key, another gives 1E-12.
        assert {key: found.get(key) for key in VALUES} == VALUES


def test_yaml_without_its_seal_is_read(tmp_path: Path) -> None:
    path = epath.Path(tmp_path / "config.yaml")
    written = sealed_yaml(dump_yaml(VALUES))
    path.write_text(written.replace("12", "13", 1))
    with refuses("file.changed", place=path) as caught:
        read_yaml(path)
    assert str(caught.value).endswith("first line.")
    path.write_text(dump_yaml(VALUES | {"seed": 13}))
    assert read_yaml(path) == VALUES | {"seed": 13}
