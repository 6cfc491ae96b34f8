"""``tf.train.Example`` in protobuf, and a fast decoder of its lists of numbers.

TFDS also defines this message, but importing TFDS takes a third of a second in every Beam worker,
pool worker and loader worker.

Source: ``tensorflow/core/example/feature.proto`` and ``example.proto``.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

_MORE: Final = 0x80  # bit that is set in every byte of a varint except the last
_WITH_MORE: Final = bytes(range(_MORE, 256))
_MOST_BYTES: Final = 10  # maximum bytes of a varint

_FILE: Final = """
name: "bert_jax/example.proto" package: "tensorflow" syntax: "proto3"
message_type {
  name: "BytesList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_BYTES } }
message_type {
  name: "FloatList" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_FLOAT } }
message_type {
  name: "Int64List" field { name: "value" number: 1 label: LABEL_REPEATED type: TYPE_INT64 } }
message_type {
  name: "Feature"
  oneof_decl { name: "kind" }
  field { name: "bytes_list" number: 1 type_name: "BytesList" oneof_index: 0 }
  field { name: "float_list" number: 2 type_name: "FloatList" oneof_index: 0 }
  field { name: "int64_list" number: 3 type_name: "Int64List" oneof_index: 0 } }
message_type {
  name: "Features"
  field { name: "feature" number: 1 label: LABEL_REPEATED type_name: "FeatureEntry" }
  nested_type {
    name: "FeatureEntry"
    options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type_name: "Feature" } } }
message_type {
  name: "Example" field { name: "features" number: 1 type_name: "Features" } }
"""


def decode_varints(packed: bytes) -> np.ndarray:
    r"""Decodes varints to int64 ``[n]``: ``b"\x01\xac\x02" -> [1, 300]``.

    Raises ValueError if the last number is truncated or a number has more than ten bytes.
    """
    content = np.frombuffer(packed, np.uint8)
    if packed.isascii():  # one byte per number
        return content.astype(np.int64)
    (ends,) = (content < _MORE).nonzero()
    if not len(ends) or ends[-1] != len(content) - 1:
        raise ValueError("found a truncated number, allowed: whole numbers")
    widths = ends + 1
    widths[1:] -= widths[:-1].copy()
    if (widest := widths.max()) > _MOST_BYTES:
        raise ValueError(f"found a number of {widest} bytes, allowed: at most {_MOST_BYTES}")
    numbers = content[ends].astype(np.int64)
    for byte in range(1, widest):
        (longer,) = (widths > byte).nonzero()
        numbers[longer] = numbers[longer] << 7 | (content[ends[longer] - byte] & 0x7F)
    return numbers


def decode_lists(packed: Sequence[bytes]) -> tuple[np.ndarray, list[int]]:
    """Decodes lists of varints. Returns all numbers concatenated, and the count of each list.

    One call for all lists is faster than a call per list, because a call has a fixed cost. Raises
    ValueError as `decode_varints` does.
    """
    if any(each and each[-1] >= _MORE for each in packed):  # it would continue in the next list
        raise ValueError("found a truncated number, allowed: whole numbers")
    counts = [
        len(each) if each.isascii() else len(each.translate(None, _WITH_MORE)) for each in packed
    ]
    return decode_varints(b"".join(packed)), counts


def message_classes(file: str) -> dict[str, Any]:
    """Returns the message classes of a ``.proto`` file by name.

    Uses a separate pool: TensorFlow and TFDS register these names in the default pool.
    """
    parsed = text_format.Parse(file, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(parsed)
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{parsed.package}.{message.name}")
        )
        for message in parsed.message_type
    }


# The classes are created at run time, so the type checker does not know them.
_made: Final = message_classes(_FILE)
Int64List: Final[Any] = _made["Int64List"]
Feature: Final[Any] = _made["Feature"]
Features: Final[Any] = _made["Features"]
Example: Final[Any] = _made["Example"]

_PACKED: Final = _FILE.replace("TYPE_FLOAT", "TYPE_BYTES").replace("TYPE_INT64", "TYPE_BYTES")
PackedExample: Final[Any] = message_classes(_PACKED)["Example"]
"""``tf.train.Example`` with lists of numbers as undecoded bytes. Decoding single numbers would take
most of the time of reading a record."""


def packed_example(record: bytes) -> Any:
    r"""Parses an example without decoding numbers: ``int64_list.value`` is ``[b"\x01\xac\x02"]``.

    Raises DecodeError if the bytes are not a ``tf.train.Example``.
    """
    example = PackedExample.FromString(record)
    example.DiscardUnknownFields()
    if example.ByteSize() == len(record):
        return example
    # Slow path for unknown fields or unpacked numbers, which no known program writes.
    return PackedExample.FromString(Example.FromString(record).SerializeToString())
