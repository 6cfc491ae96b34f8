"""``tf.train.Example`` for protobuf, without importing TFDS.

The import takes a third of a second in every process that reads or writes records: Beam workers,
pool workers and loader workers.

Source: ``tensorflow/core/example/feature.proto`` and ``example.proto``.
"""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE: Final = "tensorflow"
_FIELD: Final = descriptor_pb2.FieldDescriptorProto
_KINDS: Final = {
    "bytes_list": ("BytesList", _FIELD.TYPE_BYTES),
    "float_list": ("FloatList", _FIELD.TYPE_FLOAT),
    "int64_list": ("Int64List", _FIELD.TYPE_INT64),
}


def _messages(*, packed: bool = False) -> dict[str, Any]:
    """Returns the classes by name, in a separate pool: TensorFlow and TFDS register theirs.

    Args:
        packed: lists of numbers stay undecoded bytes.
    """
    file = descriptor_pb2.FileDescriptorProto(
        name="bert_jax/example.proto", package=_PACKAGE, syntax="proto3"
    )
    feature = descriptor_pb2.DescriptorProto(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, (name, (kind, value)) in enumerate(_KINDS.items(), 1):
        held = file.message_type.add(name=kind)
        value = _FIELD.TYPE_BYTES if packed else value
        held.field.add(name="value", number=1, label=_FIELD.LABEL_REPEATED, type=value)
        _add_message(feature, name, number, kind, oneof_index=0)
    file.message_type.append(feature)
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry", options={"map_entry": True})
    entry.field.add(name="key", number=1, label=_FIELD.LABEL_OPTIONAL, type=_FIELD.TYPE_STRING)
    _add_message(entry, "value", 2, "Feature")
    _add_message(features, "feature", 1, "Features.FeatureEntry", label=_FIELD.LABEL_REPEATED)
    _add_message(file.message_type.add(name="Example"), "features", 1, "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in ("BytesList", "FloatList", "Int64List", "Feature", "Features", "Example")
    }


def _add_message(
    to: descriptor_pb2.DescriptorProto,
    name: str,
    number: int,
    kind: str,
    *,
    label: Any = _FIELD.LABEL_OPTIONAL,
    **more: Any,
) -> None:
    to.field.add(
        name=name,
        number=number,
        label=label,
        type=_FIELD.TYPE_MESSAGE,
        type_name=f".{_PACKAGE}.{kind}",
        **more,
    )


# Created at run time, unknown to the type checker.
_made: Final = _messages()
BytesList: Final[Any] = _made["BytesList"]
FloatList: Final[Any] = _made["FloatList"]
Int64List: Final[Any] = _made["Int64List"]
Feature: Final[Any] = _made["Feature"]
Features: Final[Any] = _made["Features"]
Example: Final[Any] = _made["Example"]

PackedExample: Final[Any] = _messages(packed=True)["Example"]
"""The same message with lists of numbers as undecoded bytes: decoding them one by one is most of
the cost of reading a record."""


def packed_example(record: bytes) -> Any:
    r"""Parses an example without decoding numbers: ``int64_list.value`` is ``[b"\x01\xac\x02"]``.

    Returns:
        A `PackedExample`; None if the record has anything else in it, such as numbers that are not
        packed, which no known writer does.

    Raises:
        DecodeError: the bytes are not such a message.
    """
    example = PackedExample.FromString(record)
    example.DiscardUnknownFields()
    return example if example.ByteSize() == len(record) else None
