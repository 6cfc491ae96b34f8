"""Damaged or unsuitable google-research/bert checkpoints, and unsuitable models, are refused."""

import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bert_jax.data.google_bert.tfrecord import masked_crc
from bert_jax.encoders.bert.section import BertArchitecture
from bert_jax.interop.tensor_conversion import Pretrained
from bert_jax.interop.tf_bundle import TfBundle
from bert_jax.interop.tf_checkpoint import read_tf, write_tf
from bert_jax.model.section import HeadsSection
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
from tests.project import refuses


def read_refused(
    path: Path, key: str, *, vocab_size: int = SMALL.vocab_size, **values: Any
) -> None:
    with refuses(key, **values):
        read_tf(path, tokenizer=wordpiece(vocab_size=vocab_size))


WIDTH = SMALL.hidden_size
LAYER = "bert/encoder/layer_{}/output/dense/bias"
POOLER = "bert/pooler/dense/kernel"


def zeros(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("changes", "key", "values"),
    [
        ({LAYER.format(1): None}, "tensor.missing", {"name": LAYER.format(1)}),
        ({LAYER.format(3): zeros(WIDTH)}, "tensor.unknown", {"name": LAYER.format(3)}),
        (
            {POOLER: zeros(WIDTH, WIDTH - 1)},
            "tensor.shape",
            {"name": POOLER, "found": [48, 47], "expected": [48, 48]},
        ),
        (
            {POOLER: zeros(WIDTH, WIDTH, dtype=np.int32)},
            "tensor.type",
            {"name": POOLER, "found": "int32"},
        ),
        ({f"{POOLER}/adam_v": None}, "tensor.missing", {"name": f"{POOLER}/adam_v"}),
        ({"bert/none/adam_m": zeros(3)}, "tensor.unknown", {"name": "bert/none/adam_m"}),
        (draw(LABELLED | SQUAD, seed=0), "import.two_task_heads", {}),
        (
            {"model/h0/attn/c_attn/w": zeros(1, 48, 144)},
            "tensor.unknown",
            {"name": "model/h0/attn/c_attn/w"},
        ),
    ],
)
def test_foreign_tensors_are_named(
    tmp_path: Path,
    changes: dict[str, np.ndarray | None],
    key: str,
    values: dict[str, Any],
) -> None:
    variables = with_slots(draw(pretraining_shapes(SMALL), seed=11)) | changes
    present = {name: value for name, value in variables.items() if value is not None}
    read_refused(saved(tmp_path, present), key, **values)


def written_index(index: Path, *pairs: tuple[bytes, bytes], times: int = 1) -> Path:
    """Writes an index with the given keys and values and correct checksums.

    The index lists its block `times` times.
    """

    def block(*pairs: tuple[bytes, bytes]) -> bytes:
        entries = [b"\0" + varint(len(k)) + varint(len(v)) + k + v for k, v in pairs]
        content = b"".join(entries) + struct.pack("<II", 0, 1) + b"\0"
        return content + struct.pack("<I", masked_crc(content))

    data = block(*pairs)
    place = varint(0) + varint(len(data) - 5)
    top = block(*((b"~%05d" % at, place) for at in range(times)))
    places = b"\0\0" + varint(len(data)) + varint(len(top) - 5)
    index.write_bytes(data + top + places.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57))
    return index.with_suffix("")


def varint(number: int) -> bytes:
    return bytes([number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14])  # three bytes


HEADER = (b"", b"\x08\x01")  # one data file
# With each of these entries, TensorFlow's C++ killed the process or allocated unbounded memory.
HOSTILE = [
    b"\xff" * 9,
    b"\x08\x01\x12\xff\x7f",  # a truncated shape
    b"\x08\x01\x12\x0d\x12\x0b\x08" + b"\xff" * 9 + b"\x01",  # an axis of -1
    b"\x08\x01\x12\x0c\x12\x0a\x08" + b"\x80" * 8 + b"\x40",  # an axis of 2^62
    b"\x08\x01\x12\x02\x18\x01",  # an unknown rank
    b"\x08\x01\x12\xe8\x07" + b"\x12\x02\x08\x01" * 250 + b"\x28\x04",  # 250 axes
    b"\x08\x01\x18\x07\x28\x04",  # data file 7 of 1
    b"\x08\x01\x20" + b"\xff" * 9 + b"\x01\x28\x04",  # an offset of -1
    b"\x08\x01\x28\x05",  # 5 bytes for one number
    b"\x08\x01\x28\x04\x3a\x01x",  # a tensor in slices
]


@pytest.mark.parametrize("value", HOSTILE)
def test_an_impossible_entry_is_named(tmp_path: Path, value: bytes) -> None:
    index = tmp_path / "bert_model.ckpt.index"
    prefix = written_index(index, HEADER, (b"x", value))
    read_refused(prefix, "weights.tf_index_damaged", place=index)


def test_a_block_that_is_listed_twice_is_refused(tmp_path: Path) -> None:
    """A thousandth of a megabyte could take hours."""
    index = tmp_path / "bert_model.ckpt.index"
    entry = b"\x08\x01\x28\x04"  # one number
    pairs = [(b"%04d" % at, entry) for at in range(1000)]
    prefix = written_index(index, HEADER, *pairs, times=5000)
    began = time.monotonic()
    read_refused(prefix, "weights.tf_index_damaged", place=index)
    assert time.monotonic() - began < 10


def test_a_tensor_beyond_its_file_allocates_no_memory(tmp_path: Path) -> None:
    index = tmp_path / "bert_model.ckpt.index"
    shape = b"\x12\x08\x12\x06\x08\x80\x80\x80\x80\x40"  # [2^34]
    entry = b"\x08\x01" + shape + b"\x28\x80\x80\x80\x80\x80\x02"  # 2^36 bytes
    prefix = written_index(index, HEADER, (b"x", entry))
    (tmp_path / "bert_model.ckpt.data-00000-of-00001").write_bytes(b"1234")
    with refuses("tensor.unreadable", place=prefix, name="x") as caught:
        TfBundle(prefix).read("x")
    assert "cut short" in str(caught.value)


def test_damaged_and_missing_files_are_named(tmp_path: Path) -> None:
    prefix = saved(tmp_path, draw(pretraining_shapes(SMALL), seed=12))
    data = tmp_path / "bert_model.ckpt.data-00000-of-00001"
    whole = data.read_bytes()
    data.write_bytes(whole[: len(whole) // 2])
    read_refused(prefix, "tensor.unreadable", place=prefix)
    flipped = bytearray(whole)
    flipped[len(whole) // 3] ^= 1
    data.write_bytes(bytes(flipped))
    read_refused(prefix, "tensor.unreadable", place=prefix)
    data.unlink()
    read_refused(prefix, "tensor.unreadable", place=prefix)
    data.write_bytes(whole)
    index = tmp_path / "bert_model.ckpt.index"
    index.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    read_refused(prefix, "weights.tf_index_damaged", place=index)
    nowhere = tmp_path / "nowhere"
    read_refused(nowhere / "bert_model.ckpt", "import.no_directory", place=nowhere)


def test_a_contradictory_configuration_is_refused(tmp_path: Path) -> None:
    prefix = saved(tmp_path, draw(pretraining_shapes(SMALL), seed=13))
    read_refused(prefix, "model.vocab_size_of_file", vocab_size=262, found=261, pieces=262)
    assert read_tf(prefix, tokenizer=wordpiece(vocab_size=255)).architecture.vocab_size == 261
    write_config(tmp_path, SMALL._replace(num_hidden_layers=2))
    extra = "bert/encoder/layer_2/attention/output/LayerNorm/beta"
    read_refused(prefix, "tensor.unknown", name=extra)
    write_config(tmp_path, SMALL, hidden_act="gelu_new")
    read_refused(prefix, "model.activation", found="gelu_new", allowed=["gelu", "relu"])
    config = tmp_path / "bert_config.json"
    config.unlink()
    read_refused(prefix, "import.no_google_config", place=config)


@pytest.mark.parametrize(
    ("architecture", "heads", "tokenizer", "place", "found"),
    [
        ({"hidden_act": "gelu_erf"}, {}, {}, "model.architecture.hidden_act", "gelu_erf"),
        ({"layer_norm_eps": 1e-5}, {}, {}, "model.architecture.layer_norm_eps", 1e-5),
        (
            {},
            {"task": "token_classification", "labels": ("a",)},
            {},
            "model.heads.task",
            "token_classification",
        ),
        (
            {},
            {"task": "sequence_classification", "labels": ("a",), "problem": "regression"},
            {},
            "model.heads.problem",
            "regression",
        ),
        ({}, {}, {"strip_accents": False}, "tokenizer.strip_accents", False),
        ({}, {}, {"chinese": False}, "tokenizer.chinese", False),
    ],
)
def test_inexpressible_models_are_refused_before_writing(
    tmp_path: Path, architecture: Any, heads: Any, tokenizer: Any, place: str, found: object
) -> None:
    with refuses("export.not_in_google", place=place, found=found):
        write_tf(
            tmp_path,
            Pretrained(
                BertArchitecture(**(SMALL._asdict() | architecture)),
                HeadsSection(**heads),
                {},
                wordpiece(**tokenizer),
            ),
        )
    assert list(tmp_path.iterdir()) == []
