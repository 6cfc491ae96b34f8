"""Reads and writes a safetensors file, one tensor at a time.

The format has no checksum. Our files store one in their metadata: the SHA-256 of the file with
zeros in place of the checksum.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import ml_dtypes  # noqa: F401 (gives numpy its bfloat16)
import numpy as np
import safetensors

from bert_jax.errors import UserError
from bert_jax.files.atomic import write_errors
from bert_jax.files.read import require_file
from bert_jax.interop.tensor_conversion import (
    Params,
    Placement,
    TensorSpec,
    damaged,
    their_tensors,
    wrong_type,
)

WEIGHTS: Final = "model.safetensors"

_CHECKSUM: Final = "bert_jax_sha256"
_NO_CHECKSUM: Final = b"0" * 64
_CHUNK: Final = 1 << 22  # bytes

# NumPy's dtype names by the format's type names.
DTYPES: Final[dict[str, str]] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


class SafetensorsFile:
    """A safetensors file. Implements `tensor_conversion.TensorSource`."""

    def __init__(self, path: Path) -> None:
        """Reads the header, and verifies the checksum if the file has one.

        Raises UserError if the file is damaged or incomplete, or has a tensor of unknown type.
        """
        require_file(path)
        self.path = str(path)
        self.files = [path]
        try:
            with safetensors.safe_open(self.path, framework="numpy") as opened:
                found = {name: opened.get_slice(name) for name in sorted(opened.keys())}
                kinds = {name: each.get_dtype() for name, each in found.items()}
                shapes = {name: tuple(each.get_shape()) for name, each in found.items()}
                checksum = (opened.metadata() or {}).get(_CHECKSUM)
        except (safetensors.SafetensorError, OSError) as error:
            kind = "a safetensors file"
            raise damaged("weights.safetensors_damaged", path, kind, error) from error
        if checksum is not None and checksum != _sha256(path, checksum.encode()):
            differs = f"its SHA-256 differs from {_CHECKSUM} in its metadata. Copy it again."
            raise UserError("weights.checksum", differs, place=path)
        for name, kind in kinds.items():
            if kind not in DTYPES:
                raise wrong_type(self.path, name, kind, list(DTYPES))
        self.specs = {
            name: TensorSpec(shapes[name], np.dtype(DTYPES[kind])) for name, kind in kinds.items()
        }

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor. The file is mapped into memory only during the call."""
        with safetensors.safe_open(self.path, framework="numpy") as opened:
            return opened.get_tensor(name)


def write_safetensors(
    path: Path, specs: Mapping[str, TensorSpec], tensors: Iterable[tuple[str, np.ndarray]]
) -> None:
    """Writes tensors one after the other, in the order of `specs`.

    The library's writer needs all tensors as bytes at once, which would double the memory of an
    export. The format: the header's length (8 bytes, little-endian), the header (JSON: name → type,
    shape, offsets), the tensors' bytes. Raises UserError if the path is not writable or the disk is
    full.
    """
    codes = {np.dtype(name): code for code, name in DTYPES.items()}
    metadata = {"format": "pt", _CHECKSUM: _NO_CHECKSUM.decode()}
    header: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for name, (shape, dtype) in specs.items():
        end = offset + math.prod(shape) * dtype.itemsize
        kind, offsets = codes[dtype], [offset, end]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": offsets}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with write_errors(path), path.open("wb") as file:
        found = _hash_of_header(encoded)
        file.write(struct.pack("<Q", len(encoded)))
        file.write(encoded)
        for (expected, spec), (name, array) in zip(specs.items(), tensors, strict=True):
            assert (name, array.shape) == (expected, spec.shape)
            numbers = np.ascontiguousarray(array, dtype=spec.dtype).data
            found.update(numbers)
            file.write(numbers)
        file.seek(8 + encoded.index(_NO_CHECKSUM))
        file.write(found.hexdigest().encode())


def write_params(path: Path, params: Params, placements: Sequence[Placement]) -> None:
    """Writes our parameters as float32 tensors under their names in the other format."""
    specs = {each.name: TensorSpec(each.shape, np.dtype(np.float32)) for each in placements}
    write_safetensors(path, specs, their_tensors(params, placements))


def _hash_of_header(encoded: bytes) -> "hashlib._Hash":
    """Returns the hash of the start of a file: the header's length and the header."""
    return hashlib.sha256(struct.pack("<Q", len(encoded)) + encoded)


def _sha256(path: Path, checksum: bytes) -> str:
    """Returns the SHA-256 of a file with zeros in place of its checksum."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        found = _hash_of_header(file.read(length).replace(checksum, _NO_CHECKSUM))
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()
