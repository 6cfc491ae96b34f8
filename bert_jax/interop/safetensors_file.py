"""Files of named tensors: safetensors, whole or in parts, read and written one tensor at a time."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import ml_dtypes  # noqa: F401 (gives numpy its bfloat16)
import numpy as np
import safetensors

from bert_jax.errors import UserError
from bert_jax.interop.mapping import Spec

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"

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
_LFS_POINTER: Final = b"version https://git-lfs"


class _Place(NamedTuple):
    """Where a tensor's numbers are."""

    file: Path
    offset: int
    spec: Spec


class SafetensorsSource:
    """One safetensors file, or the several that an index names; satisfies `TensorSource`.

    The library checks the files. The numbers are read here: it would map them into memory, where
    they count as this process's own beside the model that they are copied to.
    """

    def __init__(self, path: Path, *, rename: Callable[[str], str]) -> None:
        """Checks what is there and reads the headers.

        Args:
            path: a ``.safetensors`` file, or a ``.safetensors.index.json``.
            rename: their spelling of a name → the one that the table has.

        Raises:
            UserError: damaged, incomplete, a git-lfs pointer, or a type that is not known.
        """
        self.path = str(path)
        parts = _parts_of(path) if path.name.endswith(".json") else []
        self.files = [path, *parts]
        self._found = {
            rename(name): place for file in parts or [path] for name, place in _places(file).items()
        }

    def specs(self) -> Mapping[str, Spec]:
        """Returns what is in the files."""
        return {name: place.spec for name, place in self._found.items()}

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor."""
        file, offset, spec = self._found[name]
        flat = np.fromfile(file, spec.dtype, count=math.prod(spec.shape), offset=offset)
        return flat.reshape(spec.shape)


def write_safetensors(
    path: Path, specs: Mapping[str, Spec], tensors: Iterable[tuple[str, np.ndarray]]
) -> None:
    """Writes tensors one after the other.

    The library's own writer takes all of them as bytes at once, which would hold a checkpoint in
    memory twice. The format: the header's length (8 bytes, little-endian), the header (JSON:
    name → type, shape, offsets), the numbers.

    Args:
        path: written in place: the caller writes aside.
        specs: of all tensors, in the order in which they come.
        tensors: name and numbers.

    Raises:
        UserError: the disk is full, or the place cannot be written to.
    """
    codes = {np.dtype(name): code for code, name in DTYPES.items()}
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, spec in specs.items():
        end = offset + int(np.prod(spec.shape, dtype=np.int64)) * spec.dtype.itemsize
        header[name] = {
            "dtype": codes[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    try:
        with path.open("wb") as file:
            file.write(struct.pack("<Q", len(encoded)))
            file.write(encoded)
            for (expected, spec), (name, array) in zip(specs.items(), tensors, strict=True):
                assert (name, array.shape) == (expected, spec.shape)
                file.write(np.ascontiguousarray(array, dtype=spec.dtype).data)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error})") from error


def _parts_of(index: Path) -> list[Path]:
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted(set(weight_map.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index}: found no weight_map of tensor names to files") from error
    for name in names:
        if Path(name).name != name or not (index.parent / name).is_file():
            raise UserError(f"{index}: names {name}, which is not beside it")
    return [index.parent / name for name in names]


def _places(file: Path) -> dict[str, _Place]:
    refuse_pointer(file)
    try:
        with safetensors.safe_open(str(file), framework="numpy") as opened:
            names = set(opened.keys())
    except (safetensors.SafetensorError, OSError) as error:
        raise UserError(
            f"{file}: no whole safetensors file ({error}); was the download cut off?"
        ) from error
    with file.open("rb") as raw:
        (length,) = struct.unpack("<Q", raw.read(8))
        header = json.loads(raw.read(length))
    places = {}
    for name in names:
        kind, offsets = header[name]["dtype"], header[name]["data_offsets"]
        if kind not in DTYPES:
            allowed = ", ".join(DTYPES)
            raise UserError(f"{file}: tensor {name} found type {kind}, allowed: {allowed}")
        spec = Spec(tuple(header[name]["shape"]), np.dtype(DTYPES[kind]))
        places[name] = _Place(file, 8 + length + offsets[0], spec)
    return places


def refuse_pointer(file: Path) -> None:
    """Refuses what git leaves behind where git-lfs is not installed.

    Raises:
        UserError: a git-lfs pointer.
    """
    with file.open("rb") as opened:
        if opened.read(len(_LFS_POINTER)) == _LFS_POINTER:
            raise UserError(
                f"{file}: found a git-lfs pointer, not the weights; `git lfs pull` fetches them"
            )
