"""One safetensors file, read and written one tensor at a time.

The format has no checksum. What is written here has one in its metadata: the SHA-256 of the whole
file, taken with zeros in its own place.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

import ml_dtypes  # noqa: F401 (gives numpy its bfloat16)
import numpy as np
import safetensors

from bert_jax.errors import UserError
from bert_jax.files.read import parse_json_object, require_file, shown
from bert_jax.interop.mapping import TensorSpec

WEIGHTS: Final = "model.safetensors"

_SEAL: Final = "bert_jax_sha256"
_UNSEALED: Final = b"0" * 64
_CHUNK: Final = 1 << 22  # bytes

# The format's names of types.
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
    """A safetensors file; satisfies `mapping.TensorSource`.

    The library checks the file. The numbers are read here: the library would map them into memory,
    where they count as this process's own beside the model that they are copied to.
    """

    def __init__(self, path: Path) -> None:
        """Reads the header, and compares the file with its checksum if it has one.

        Raises UserError: damaged, incomplete, or a type that is not known.
        """
        require_file(path)
        self.path = str(path)
        self.files = [path]
        try:
            with safetensors.safe_open(self.path, framework="numpy") as opened:
                names = set(opened.keys())
        except (safetensors.SafetensorError, OSError) as error:
            raise UserError(
                f"{path}: no whole safetensors file ({error}); was the download cut off?"
            ) from error
        with path.open("rb") as raw:
            (length,) = struct.unpack("<Q", raw.read(8))
            encoded = raw.read(length)
            header = _parse_header(path, encoded)
            seal = (header.get("__metadata__") or {}).get(_SEAL)
            if seal is not None and seal != _sha256(encoded.replace(seal.encode(), _UNSEALED), raw):
                raise UserError(
                    f"{path}: damaged: its SHA-256 is not the {_SEAL} in its metadata; allowed: "
                    f"the file as it was exported, or one without that entry"
                )
        self.specs: dict[str, TensorSpec] = {}
        self._offsets: dict[str, int] = {}
        for name in names:
            kind = header[name]["dtype"]
            if kind not in DTYPES:
                raise UserError(
                    f"{path}: tensor {name} found type {kind}, allowed: {', '.join(DTYPES)}"
                )
            self.specs[name] = TensorSpec(tuple(header[name]["shape"]), np.dtype(DTYPES[kind]))
            self._offsets[name] = 8 + length + header[name]["data_offsets"][0]

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor."""
        shape, dtype = self.specs[name]
        offset = self._offsets[name]
        return np.fromfile(self.path, dtype, math.prod(shape), offset=offset).reshape(shape)


def _parse_header(path: Path, encoded: bytes) -> dict[str, Any]:
    """Returns the header; the library also accepts a tensor as a list, which is refused here."""
    try:
        header = parse_json_object(encoded.decode())
    except UserError as error:
        raise UserError(f"{path}: header: {error}") from None
    for name, entry in header.items():
        if not isinstance(entry, dict) and name != "__metadata__":
            raise UserError(
                f"{path}: header: tensor {shown(name)} found {shown(entry)}, allowed: an object"
            )
    return header


def write_safetensors(
    path: Path, specs: Mapping[str, TensorSpec], tensors: Iterable[tuple[str, np.ndarray]]
) -> None:
    """Writes tensors one after the other.

    The library's own writer takes all of them as bytes at once, which would hold a checkpoint in
    memory twice. The format: the header's length (8 bytes, little-endian), the header (JSON: name →
    type, shape, offsets), the numbers. The file is written in place: the caller writes aside.
    `specs` are of all tensors, in the order in which they come. Raises UserError: the disk is full,
    or the place cannot be written to.
    """
    codes = {np.dtype(name): code for code, name in DTYPES.items()}
    metadata = {"format": "pt", _SEAL: _UNSEALED.decode()}
    header: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for name, (shape, dtype) in specs.items():
        end = offset + math.prod(shape) * dtype.itemsize
        kind, offsets = codes[dtype], [offset, end]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": offsets}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    try:
        with path.open("wb") as file:
            found = _begun(encoded)
            file.write(struct.pack("<Q", len(encoded)))
            file.write(encoded)
            for (expected, spec), (name, array) in zip(specs.items(), tensors, strict=True):
                assert (name, array.shape) == (expected, spec.shape)
                numbers = np.ascontiguousarray(array, dtype=spec.dtype).data
                found.update(numbers)
                file.write(numbers)
            file.seek(8 + encoded.index(_UNSEALED))
            file.write(found.hexdigest().encode())
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error


def _begun(encoded: bytes) -> "hashlib._Hash":
    """Returns the SHA-256 of a file with this header, up to where its numbers begin."""
    return hashlib.sha256(struct.pack("<Q", len(encoded)) + encoded)


def _sha256(encoded: bytes, numbers: BinaryIO) -> str:
    """Returns that of a whole file with this header, read on from where its numbers begin."""
    found = _begun(encoded)
    while chunk := numbers.read(_CHUNK):
        found.update(chunk)
    return found.hexdigest()
