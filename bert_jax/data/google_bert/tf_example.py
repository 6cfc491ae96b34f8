"""``tf.train.Example`` for protobuf, without importing TFDS.

The import takes a third of a second in every process that reads or writes records: Beam workers,
pool workers and loader workers.

Source: ``tensorflow/core/example/feature.proto`` and ``example.proto``.
"""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

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


def message_classes(file: str) -> dict[str, Any]:
    """Returns the classes by name, in a separate pool: TensorFlow and TFDS register theirs."""
    parsed = text_format.Parse(file, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(parsed)
    return {
        message.name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{parsed.package}.{message.name}")
        )
        for message in parsed.message_type
    }


# Created at run time, unknown to the type checker.
_made: Final = message_classes(_FILE)
Feature: Final[Any] = _made["Feature"]
Features: Final[Any] = _made["Features"]
Example: Final[Any] = _made["Example"]
