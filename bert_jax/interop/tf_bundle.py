"""Reads and writes TensorFlow's checkpoint files: ``PREFIX.index``, ``PREFIX.data-*``.

Writing needs TensorFlow, which the extra ``tf`` installs. Reading does not use TensorFlow: its C++
code ends the process if an entry is malformed or a shape is impossible. This module checks every
number before it uses it.

Source: ``tensorflow/core/lib/io/table_format.txt`` (the index is a LevelDB table: blocks of keys
and values, each with a CRC-32C) and ``tensorflow/core/protobuf/tensor_bundle.proto`` (the values).
"""

import contextlib
import ctypes
import math
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np
from etils import epath
from google.protobuf.message import DecodeError

from bert_jax.data.google_bert.tf_example import message_classes
from bert_jax.data.google_bert.tfrecord import masked_crc
from bert_jax.errors import UserError, commas, did_you_mean, first_line, not_installed
from bert_jax.files.read import MAX_JSON_BYTES, read_bytes, require_file, shown
from bert_jax.interop.sources import no_directory
from bert_jax.interop.tensor_conversion import TensorSpec, damaged, tensor_error, wrong_type

INDEX: Final = ".index"

_MAGIC: Final = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER_BYTES: Final = 48
_TRAILER: Final = struct.Struct("<BI")  # end of a block: compression, masked CRC-32C
_LONGEST_NAME: Final = 1024
_MOST_TENSORS: Final = 100_000
_MOST_AXES: Final = 8
_LARGEST: Final = 1 << 48  # maximum number of elements in a tensor

# NumPy dtypes by enum value in ``tensorflow/core/framework/types.proto``. Others are not read.
_DTYPES: Final[dict[int, Any]] = {
    **{1: np.float32, 2: np.float64, 19: np.float16, 14: ml_dtypes.bfloat16, 10: np.bool_},
    **{6: np.int8, 5: np.int16, 3: np.int32, 9: np.int64},
    **{4: np.uint8, 17: np.uint16, 22: np.uint32, 23: np.uint64},
}

_MESSAGES: Final = message_classes("""
name: "bert_jax/tensor_bundle.proto" package: "tensorflow" syntax: "proto3"
message_type {
  name: "Header"
  field { name: "num_shards" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 }
  field { name: "endianness" number: 2 label: LABEL_OPTIONAL type: TYPE_INT32 } }
message_type {
  name: "Size" field { name: "size" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 } }
message_type {
  name: "Shape"
  field { name: "dim" number: 2 label: LABEL_REPEATED type_name: "Size" }
  field { name: "unknown_rank" number: 3 label: LABEL_OPTIONAL type: TYPE_BOOL } }
message_type {
  name: "Entry"
  field { name: "dtype" number: 1 label: LABEL_OPTIONAL type: TYPE_INT32 }
  field { name: "shape" number: 2 label: LABEL_OPTIONAL type_name: "Shape" }
  field { name: "shard_id" number: 3 label: LABEL_OPTIONAL type: TYPE_INT32 }
  field { name: "offset" number: 4 label: LABEL_OPTIONAL type: TYPE_INT64 }
  field { name: "size" number: 5 label: LABEL_OPTIONAL type: TYPE_INT64 }
  field { name: "crc32c" number: 6 label: LABEL_OPTIONAL type: TYPE_FIXED32 }
  field { name: "slices" number: 7 label: LABEL_REPEATED type: TYPE_BYTES } }
""")


def tensorflow() -> Any:
    """Returns the TensorFlow module, set up to log nothing and to leave accelerators to JAX.

    Raises UserError if TensorFlow is not installed.
    """
    # TensorFlow reads these variables at its first import.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
    try:
        import tensorflow as tf
    except ImportError as error:
        purpose = "writing TensorFlow checkpoints"
        raise not_installed("tensorflow", purpose, extra="tf") from error
    # If the process has already used TensorFlow, its devices are fixed and this call raises.
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")
    return tf


def find_prefix(path: epath.PathLike) -> epath.Path:
    """Returns the prefix of a checkpoint's files: ``dir`` → ``dir/bert_model.ckpt``.

    The path is the prefix itself, or a directory with one checkpoint. Raises UserError if there is
    no checkpoint, or more than one.
    """
    given = epath.Path(path)
    if epath.Path(f"{given}{INDEX}").exists():
        return given
    if not given.is_dir():
        if not given.parent.is_dir():
            raise no_directory(given.parent)
        found = _prefixes(given.parent)
        raise UserError(
            "import.no_tf_prefix",
            f"found no {given.name}{INDEX}. Omit .index and .data{did_you_mean(given.name, found)}",
            place=given,
        )
    found = _prefixes(given)
    if not found:
        raise UserError(
            "import.no_tf_checkpoint", "found no checkpoint, expected: *.index", place=given
        )
    if len(found) > 1:
        raise UserError(
            "import.several_tf_checkpoints",
            f"found {commas(found)}. Name one of them.",
            place=given,
        )
    return given / found[0]


def _prefixes(directory: epath.Path) -> list[str]:
    return sorted(file.name.removesuffix(INDEX) for file in directory.glob(f"*{INDEX}"))


class _Entry(NamedTuple):
    """A tensor's spec and its location in the data files."""

    spec: TensorSpec
    shard: int  # index of the data file
    offset: int  # in bytes
    size: int  # in bytes
    checksum: int  # masked CRC-32C of the tensor's bytes


class TfBundle:
    """A TensorFlow checkpoint. Implements `tensor_conversion.TensorSource`."""

    def __init__(self, path: epath.PathLike) -> None:
        """Reads the index. Raises UserError if there is no checkpoint, or its index is damaged."""
        self.path = str(find_prefix(path))
        index = epath.Path(f"{self.path}{INDEX}")
        raw = read_bytes(index, limit=MAX_JSON_BYTES)
        try:
            shards, self._entries = _parse(raw)
        except (_Damage, DecodeError, UnicodeDecodeError) as error:
            kind = "the index of a TensorFlow checkpoint"
            raise damaged("weights.tf_index_damaged", index, kind, error) from error
        self._shards = [f"{self.path}.data-{n:05d}-of-{shards:05d}" for n in range(shards)]
        self.files = [Path(name) for name in self._shards if Path(name).exists()] + [Path(index)]
        self.specs = {name: entry.spec for name, entry in self._entries.items()}

    def read(self, name: str) -> np.ndarray:
        """Returns one tensor. Raises UserError if its data file is missing or damaged."""
        spec, shard, offset, size, checksum = self._entries[name]
        if spec.dtype.kind == "O":
            raise wrong_type(self.path, name, "text", ["numbers"])
        file = self._shards[shard]
        try:
            require_file(file)
            with open(file, "rb") as opened:
                # The size comes from the index, so check it before allocating memory.
                if offset + size > os.fstat(opened.fileno()).st_size:
                    raise _Damage(f"{file} is cut short")
                opened.seek(offset)
                raw = opened.read(size)
            if masked_crc(raw) != checksum:
                raise _Damage(f"the checksum of {file} does not match")
        except (_Damage, UserError, OSError) as error:
            what = f"cannot be read ({first_line(error)}). Download its .data-* file again."
            raise tensor_error("tensor.unreadable", self.path, name, what) from error
        return np.frombuffer(raw, spec.dtype).reshape(spec.shape)


class _Damage(Exception):
    """The bytes of a file are damaged; the message is the reason."""


def _parse(raw: bytes) -> tuple[int, dict[str, _Entry]]:
    """Returns the number of data files, and the tensors by name."""
    if len(raw) < _FOOTER_BYTES or not raw.endswith(_MAGIC):
        raise _Damage("it does not end like a LevelDB table")
    footer = raw[-_FOOTER_BYTES:]
    _, at = _handle(footer, 0)  # skips the handle of the metadata block, which is empty
    handle, _ = _handle(footer, at)
    values: dict[bytes, bytes] = {}
    end = 0  # of the last block; an index may not list a block twice
    for _, listed in _pairs(_block(raw, handle)):
        (offset, size), _ = _handle(listed, 0)
        if offset < end or len(values) > _MOST_TENSORS:
            raise _Damage("its blocks overlap, or it has too many tensors")
        values |= _pairs(_block(raw, (offset, size)))
        end = offset + size
    if b"" not in values:
        raise _Damage("it has no header")
    header = _MESSAGES["Header"].FromString(values.pop(b""))
    if header.endianness or not 0 < header.num_shards <= _MOST_TENSORS:
        raise _Damage("its header has another byte order, or no data files")
    entries = {
        key.decode(): _entry(key.decode(), value, shards=header.num_shards)
        for key, value in values.items()
    }
    return header.num_shards, entries


def _entry(name: str, value: bytes, *, shards: int) -> _Entry:
    found = _MESSAGES["Entry"].FromString(value)
    if found.slices:
        raise _Damage(f"tensor {shown(name)} is stored in slices, allowed: whole tensors")
    shape = tuple(dim.size for dim in found.shape.dim)
    dtype = np.dtype(_DTYPES.get(found.dtype, object))
    sound = (
        not found.shape.unknown_rank
        and len(shape) <= _MOST_AXES
        and min(shape, default=0) >= 0
        and math.prod(max(size, 1) for size in shape) <= _LARGEST  # limit of NumPy
        and found.offset >= 0
        and 0 <= found.shard_id < shards
        and (dtype.kind == "O" or math.prod(shape) * dtype.itemsize == found.size)
    )
    if not sound:
        raise _Damage(f"tensor {shown(name)} has an impossible shape, size or location")
    spec = TensorSpec(shape, dtype)
    return _Entry(spec, found.shard_id, found.offset, found.size, found.crc32c)


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields key and value of each entry. An entry stores only the end of its key.

    The start of the key, of length `shared`, equals the start of the previous key.
    """
    (restarts,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 * (restarts + 1)
    at, key, count = 0, b"", 0
    while at < end:
        shared, at = _varint(block, at)
        added, at = _varint(block, at)
        size, at = _varint(block, at)
        start, before = at + added, key
        key = key[:shared] + block[at:start]
        at, count = start + size, count + 1
        impossible = len(key) != shared + added or (count > 1 and key <= before)
        if impossible or len(key) > _LONGEST_NAME or count > _MOST_TENSORS:
            raise _Damage("a block has an impossible key")
        if at > end:
            raise _Damage("a block is cut short")
        yield key, block[start:at]


def _block(raw: bytes, handle: tuple[int, int]) -> bytes:
    offset, size = handle
    if size < 4 or offset + size + _TRAILER.size > len(raw):
        raise _Damage("a block is outside the file")
    compression, checksum = _TRAILER.unpack_from(raw, offset + size)
    if masked_crc(raw[offset : offset + size + 1]) != checksum:
        raise _Damage("the checksum of a block does not match")
    if compression:
        raise _Damage("a block is compressed, which TensorFlow does not do")
    return raw[offset : offset + size]


def _handle(raw: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Returns (offset, size) of a block, and the position after their bytes."""
    offset, at = _varint(raw, at)
    size, at = _varint(raw, at)
    return (offset, size), at


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Returns a number stored as seven bits per byte, lowest first, and the position after it."""
    number = 0
    for shift, byte in enumerate(raw[at : at + 10]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number, at + shift + 1
    raise _Damage("a number is not terminated")


def write_bundle(prefix: epath.Path, tensors: Iterable[tuple[str, np.ndarray]]) -> None:
    """Writes ``PREFIX.index`` and ``PREFIX.data-00000-of-00001`` in an existing directory.

    TensorFlow 1 can read the files. Only arrays that are not contiguous (transposed matrices) are
    copied. Raises UserError if TensorFlow is not installed, the disk is full, or the directory
    cannot be written to.
    """
    tf = tensorflow()
    shared = {name: np.asarray(array, order="C") for name, array in tensors}
    try:
        with tf.device("CPU:0"):
            tf.raw_ops.SaveV2(
                prefix=str(prefix),
                tensor_names=list(shared),
                shape_and_slices=[""] * len(shared),
                tensors=[_as_tensor(tf, array) for array in shared.values()],
            )
    # Depending on its code, a TensorFlow C++ error becomes an OpError or a Python exception.
    except (tf.errors.OpError, IndexError, ValueError, RuntimeError, OSError) as error:
        raise UserError(
            "export.tf_failed", f"TensorFlow cannot write it ({first_line(error)})", place=prefix
        ) from error


def _as_tensor(tf: Any, array: np.ndarray) -> Any:
    """Returns a tensor that shares an array's memory. The array must outlive the tensor."""
    if array.ndim == 0:
        return tf.constant(array)
    if not array.flags.writeable:
        # NumPy exports only writeable arrays as DLPack, but JAX's arrays are read-only. A writeable
        # view is safe, because saving does not write to it.
        memory = (ctypes.c_byte * array.nbytes).from_address(array.ctypes.data)
        array = np.frombuffer(memoryview(memory), array.dtype).reshape(array.shape)
    return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
