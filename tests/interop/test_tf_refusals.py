"""Damaged or foreign google-research/bert checkpoints; models that the format cannot express."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.data.google_bert.tfrecord import masked_crc
from bert_jax.errors import UserError
from bert_jax.interop.mapping import Pretrained
from bert_jax.interop.tf_bert import read_tf, write_tf
from bert_jax.interop.tf_bundle import TfBundle
from bert_jax.model.config import Architecture, HeadsSection
from tests.interop.reference_modeling import draw, pretraining_shapes
from tests.interop.tf1_writer import (
    LABELLED,
    SMALL,
    SQUAD,
    saved,
    with_slots,
    wordpiece,
    write_config,
)


def refused(path: Path, *, vocab_size: int = SMALL.vocab_size) -> str:
    with pytest.raises(UserError) as raised:
        read_tf(path, tokenizer=wordpiece(vocab_size=vocab_size))
    (line,) = str(raised.value).splitlines()
    return line


WIDTH = SMALL.hidden_size
LAYER = "bert/encoder/layer_{}/output/dense/bias"
POOLER = "bert/pooler/dense/kernel"


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({LAYER.format(1): None}, f"tensor {LAYER.format(1)} is missing"),
        ({LAYER.format(3): zeros(WIDTH)}, f"tensor {LAYER.format(3)} is not part of the model"),
        (
            {POOLER: zeros(WIDTH, WIDTH - 1)},
            f"{POOLER} found shape [48, 47], the configuration says [48, 48]",
        ),
        (
            {POOLER: zeros(WIDTH, WIDTH, dtype=np.int32)},
            f"{POOLER} found type int32, allowed: float32",
        ),
        ({f"{POOLER}/adam_v": None}, f"tensor {POOLER}/adam_v is missing"),
        ({"bert/none/adam_m": zeros(3)}, "tensor bert/none/adam_m is not part of the model"),
        (draw(LABELLED | SQUAD, seed=0), "allowed: one fine-tuned head"),
        ({"model/h0/attn/c_attn/w": zeros(1, 48, 144)}, "is not part of the model here"),
    ],
)
def test_foreign_tensors_are_named(
    tmp_path: Path, changes: dict[str, np.ndarray | None], said: str
) -> None:
    variables = with_slots(draw(pretraining_shapes(SMALL), seed=11)) | changes
    kept = {name: value for name, value in variables.items() if value is not None}
    assert said in refused(saved(tmp_path, kept))


def written_index(index: Path, *pairs: tuple[bytes, bytes]) -> Path:
    """Writes an index with the given values and correct checksums."""

    def block(*pairs: tuple[bytes, bytes]) -> bytes:
        entries = [b"\0" + varint(len(k)) + varint(len(v)) + k + v for k, v in pairs]
        content = b"".join(entries) + struct.pack("<II", 0, 1) + b"\0"
        return content + struct.pack("<I", masked_crc(content))

    data = block(*pairs)
    top = block((b"~", varint(0) + varint(len(data) - 5)))
    places = b"\0\0" + varint(len(data)) + varint(len(top) - 5)
    index.write_bytes(data + top + places.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57))
    return index.with_suffix("")


def varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80, number >> 7])  # in two bytes


HEADER = (b"", b"\x08\x01")  # one data file
# In TensorFlow's C++ each of these killed the process or allocated unbounded memory.
HOSTILE = [
    b"\xff" * 9,
    b"\x08\x01\x12\xff\x7f",  # a truncated shape
    b"\x08\x01\x12\x0d\x12\x0b\x08" + b"\xff" * 9 + b"\x01",  # an axis of -1
    b"\x08\x01\x12\x0c\x12\x0a\x08" + b"\x80" * 8 + b"\x40",  # an axis of 2^62
    b"\x08\x01\x12\x02\x18\x01",  # no rank
    b"\x08\x01\x12\xe8\x07" + b"\x12\x02\x08\x01" * 250 + b"\x28\x04",  # 250 axes
    b"\x08\x01\x18\x07\x28\x04",  # in data file 7 of 1
    b"\x08\x01\x20" + b"\xff" * 9 + b"\x01\x28\x04",  # at -1
    b"\x08\x01\x28\x05",  # 5 bytes for one number
    b"\x08\x01\x28\x04\x3a\x01x",  # in slices
]


@pytest.mark.parametrize("value", HOSTILE)
def test_an_impossible_entry_is_named(tmp_path: Path, value: bytes) -> None:
    index = tmp_path / "bert_model.ckpt.index"
    assert f"{index}: no index of a TensorFlow checkpoint (" in refused(
        written_index(index, HEADER, (b"x", value))
    )


def test_a_tensor_beyond_its_file_allocates_no_memory(tmp_path: Path) -> None:
    index = tmp_path / "bert_model.ckpt.index"
    shape = b"\x12\x08\x12\x06\x08\x80\x80\x80\x80\x40"  # [2^34]
    entry = b"\x08\x01" + shape + b"\x28\x80\x80\x80\x80\x80\x02"  # 2^36 bytes
    prefix = written_index(index, HEADER, (b"x", entry))
    (tmp_path / "bert_model.ckpt.data-00000-of-00001").write_bytes(b"1234")
    with pytest.raises(UserError, match=r"tensor x cannot be read \(.*: cut short\)"):
        TfBundle(prefix).read("x")


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    prefix = saved(tmp_path, draw(pretraining_shapes(SMALL), seed=12))
    data = tmp_path / "bert_model.ckpt.data-00000-of-00001"
    whole = data.read_bytes()
    data.write_bytes(whole[: len(whole) // 2])
    assert f"{prefix}: tensor " in (cut := refused(prefix)), cut
    assert "cut off" in cut
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 1
    data.write_bytes(bytes(flipped))
    assert "cannot be read" in refused(prefix)
    data.unlink()
    assert "is a .data-* file missing" in refused(prefix)
    data.write_bytes(whole)
    index = tmp_path / "bert_model.ckpt.index"
    index.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    assert f"{index}: no index of a TensorFlow checkpoint" in refused(prefix)
    assert "no such directory" in refused(tmp_path / "nowhere" / "bert_model.ckpt")


def test_a_contradictory_configuration_is_refused(tmp_path: Path) -> None:
    prefix = saved(tmp_path, draw(pretraining_shapes(SMALL), seed=13))
    assert "vocab_size found 261, but the tokenizer has 262" in refused(prefix, vocab_size=262)
    assert read_tf(prefix, tokenizer=wordpiece(vocab_size=255)).architecture.vocab_size == 261
    write_config(tmp_path, SMALL._replace(num_hidden_layers=2))
    assert "tensor bert/encoder/layer_2/" in refused(prefix)
    write_config(tmp_path, SMALL, hidden_act="gelu_new")
    assert 'hidden_act found "gelu_new", allowed: gelu, relu' in refused(prefix)
    (tmp_path / "bert_config.json").unlink()
    assert "bert_config.json: no such file" in refused(prefix)


@pytest.mark.parametrize(
    ("architecture", "heads", "tokenizer", "said"),
    [
        ({"hidden_act": "gelu_erf"}, {}, {}, "model.architecture.hidden_act: found gelu_erf"),
        ({"layer_norm_eps": 1e-5}, {}, {}, "model.architecture.layer_norm_eps: found 1e-05"),
        ({}, {"task": "token_classification", "labels": ("a",)}, {}, "found token_classification"),
        (
            {},
            {"task": "sequence_classification", "labels": ("a",), "problem": "regression"},
            {},
            "model.heads.problem: found regression",
        ),
        ({}, {}, {"strip_accents": False}, "tokenizer: found strip_accents False"),
    ],
)
def test_inexpressible_models_are_refused_before_writing(
    tmp_path: Path, architecture: Any, heads: Any, tokenizer: Any, said: str
) -> None:
    with pytest.raises(UserError) as raised:
        write_tf(
            tmp_path,
            Pretrained(
                Architecture(**(SMALL._asdict() | architecture)),
                HeadsSection(**heads),
                {},
                wordpiece(**tokenizer),
            ),
        )
    assert said in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
