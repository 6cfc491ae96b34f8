"""Weights of other programs: safetensors, PyTorch pickles, TensorFlow bundles."""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from etils import epath
from hypothesis import strategies as st

from bert_jax.interop.hf_weights import TorchFile
from bert_jax.interop.safetensors_file import SafetensorsFile, write_safetensors
from bert_jax.interop.tensor_conversion import TensorSource, TensorSpec
from bert_jax.interop.tf_bundle import TfBundle, write_bundle
from tests.fuzz.harness import both_forms, damaged, json_of, survives
from tests.project import refuses

TENSORS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float32)}


def read_all(source: TensorSource) -> None:
    for name in source.specs:
        source.read(name)


@both_forms
def test_safetensors(tmp_path: Path, inputs: int) -> None:
    path = tmp_path / "model.safetensors"
    specs = {name: TensorSpec(array.shape, array.dtype) for name, array in TENSORS.items()}
    write_safetensors(path, specs, TENSORS.items())
    whole = path.read_bytes()
    header = {
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "F32", "shape": [4], "data_offsets": [24, 40]},
    }

    def with_header(text: bytes) -> bytes:
        return struct.pack("<Q", len(text)) + text + bytes(40)

    def read(content: bytes) -> None:
        path.write_bytes(content)
        read_all(SafetensorsFile(path))

    survives(read, st.one_of(damaged(whole), json_of(header).map(with_header)), inputs)


@both_forms
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "old"])
def test_torch_files(tmp_path: Path, zipped: bool, inputs: int) -> None:
    path = tmp_path / "pytorch_model.bin"
    tensors = {name: torch.from_numpy(array) for name, array in TENSORS.items()}
    torch.save(tensors, path, _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()

    def read(content: bytes) -> None:
        path.unlink(missing_ok=True)  # not overwritten: the previous file is still mapped to memory
        path.write_bytes(content)
        read_all(TorchFile(path))

    survives(read, damaged(whole), inputs)


def test_a_small_storage_cannot_claim_terabytes(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"a": torch.zeros(1).expand(1 << 40)}, path)
    with refuses("tensor.larger_than_file", place=path):
        TorchFile(path)


@both_forms
@pytest.mark.parametrize("part", [".index", ".data-00000-of-00001"])
def test_bundles_of_tensorflow(tmp_path: Path, part: str, inputs: int) -> None:
    prefix = tmp_path / "bert_model.ckpt"
    write_bundle(epath.Path(prefix), TENSORS.items())
    damaged_one = Path(f"{prefix}{part}")
    whole = damaged_one.read_bytes()

    def read(content: bytes) -> None:
        damaged_one.write_bytes(content)
        read_all(TfBundle(prefix))

    survives(read, damaged(whole), inputs)
