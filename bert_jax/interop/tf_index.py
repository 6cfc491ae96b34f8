"""The index of a TensorFlow checkpoint, ``PREFIX.index``: where each tensor lies.

The index is read without TensorFlow, which ends the process in C++ when an entry is no message or a
shape is impossible. Every number is checked before it is used.

Source: ``tensorflow/core/lib/io/table_format.txt`` (a LevelDB table: blocks of key and value, each
with a CRC-32C) and ``tensorflow/core/protobuf/tensor_bundle.proto`` (the values).
"""

import math
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np
from etils import epath
from google.protobuf.message import DecodeError

from bert_jax.data.google_bert.tf_example import message_classes
from bert_jax.data.google_bert.tfrecord import masked_crc
from bert_jax.errors import UserError, first_line
from bert_jax.files.read import MAX_JSON_BYTES, read_bytes, shown
from bert_jax.interop.mapping import TensorSpec

_MAGIC: Final = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER_BYTES: Final = 48
_TRAILER: Final = struct.Struct("<BI")  # of a block: compression, masked CRC-32C
_LONGEST_NAME: Final = 1024
_MOST_TENSORS: Final = 100_000
_MOST_AXES: Final = 8
_LARGEST: Final = 1 << 48  # in numbers

# By the number in ``tensorflow/core/framework/types.proto``. Others have an object's type and are
# not read.
_DTYPES: Final[dict[int, Any]] = {
    **{1: np.float32, 2: np.float64, 19: np.float16, 14: ml_dtypes.bfloat16, 10: np.bool_},
    **{6: np.int8, 5: np.int16, 3: np.int32, 9: np.int64},
    **{4: np.uint8, 17: np.uint16, 22: np.uint32, 23: np.uint64},
}

_made: Final = message_classes("""
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


class IndexEntry(NamedTuple):
    """One tensor and its place."""

    spec: TensorSpec
    shard: int  # of the data files
    offset: int  # bytes
    size: int  # bytes
    checksum: int  # masked CRC-32C of the tensor's bytes


class TensorIndex(NamedTuple):
    """The content of an index."""

    shards: int  # number of data files
    entries: dict[str, IndexEntry]  # by name


def read_index(path: epath.Path) -> TensorIndex:
    """Returns the content of an index; UserError: no such file, or it is damaged or hostile."""
    raw = read_bytes(path, limit=MAX_JSON_BYTES)
    try:
        return _parse(raw)
    except (_Damage, DecodeError, UnicodeDecodeError) as error:
        raise UserError(
            f"{path}: no index of a TensorFlow checkpoint ({first_line(error)}); was the download "
            f"cut off?"
        ) from error


class _Damage(Exception):
    """The bytes are no index; the message says why."""


def _parse(raw: bytes) -> TensorIndex:
    if len(raw) < _FOOTER_BYTES or not raw.endswith(_MAGIC):
        raise _Damage("its last bytes are not those of a table")
    footer = raw[-_FOOTER_BYTES:]
    _, at = _handle(footer, 0)  # of the metadata, which is empty
    handle, _ = _handle(footer, at)
    values = {
        key: value
        for _, block in _pairs(_block(raw, handle))
        for key, value in _pairs(_block(raw, _handle(block, 0)[0]))
    }
    if b"" not in values:
        raise _Damage("it has no header")
    header = _made["Header"].FromString(values.pop(b""))
    if header.endianness or not 0 < header.num_shards <= _MOST_TENSORS:
        raise _Damage("its header has another byte order, or no data files")
    entries = {
        key.decode(): _entry(key.decode(), value, shards=header.num_shards)
        for key, value in values.items()
    }
    return TensorIndex(header.num_shards, entries)


def _entry(name: str, value: bytes, *, shards: int) -> IndexEntry:
    found = _made["Entry"].FromString(value)
    if found.slices:
        raise _Damage(f"tensor {shown(name)} is stored in slices, allowed: whole tensors")
    shape = tuple(dim.size for dim in found.shape.dim)
    dtype = np.dtype(_DTYPES.get(found.dtype, object))
    sound = (
        not found.shape.unknown_rank
        and len(shape) <= _MOST_AXES
        and min(shape, default=0) >= 0
        and math.prod(max(size, 1) for size in shape) <= _LARGEST  # else NumPy refuses
        and found.offset >= 0
        and 0 <= found.shard_id < shards
        and (dtype.kind == "O" or math.prod(shape) * dtype.itemsize == found.size)
    )
    if not sound:
        raise _Damage(f"tensor {shown(name)} has an impossible shape, size or place")
    spec = TensorSpec(shape, dtype)
    return IndexEntry(spec, found.shard_id, found.offset, found.size, found.crc32c)


def _pairs(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yields key and value of each entry; a key names only what differs from the one before."""
    (restarts,) = struct.unpack("<I", block[-4:])
    end = len(block) - 4 * (restarts + 1)
    at, key, count = 0, b"", 0
    while at < end:
        shared, at = _varint(block, at)
        added, at = _varint(block, at)
        size, at = _varint(block, at)
        start = at + added
        key = key[:shared] + block[at:start]
        at, count = start + size, count + 1
        if len(key) != shared + added or len(key) > _LONGEST_NAME or count > _MOST_TENSORS:
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
    """Returns offset and size of a block, and where their bytes end."""
    offset, at = _varint(raw, at)
    size, at = _varint(raw, at)
    return (offset, size), at


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """Returns a number, seven bits a byte, the lowest first, and where its bytes end."""
    number = 0
    for shift, byte in enumerate(raw[at : at + 10]):
        number |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return number, at + shift + 1
    raise _Damage("a number has no end")
