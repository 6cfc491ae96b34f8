"""Encoding of an example on disk."""

from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from bert_jax.data.dataset.provenance import TokenDtype
from bert_jax.data.google_bert import tf_example
from bert_jax.errors import UserError

DATASET_NAME: Final = "bert_examples"  # for TFDS: the first part of its shards' names
_MOST_USES: Final = 512  # of a message object


class Example(NamedTuple):
    """``[CLS] A [SEP] B [SEP]``, or ``[CLS] A [SEP]`` without a pair task: unmasked, unpadded."""

    input_ids: np.ndarray  # `[n]` uint16 or uint32, read-only
    first_length: int  # tokens of `[CLS] A [SEP]`, which have type 0; n without a second span
    # 0 if B really follows A, 1 if B is random, as in google-research/bert. With pairing kind
    # `sop`, 1 if A really follows B. 0 without a second span.
    next_sentence_label: int

    @property
    def has_pair(self) -> bool:
        """Whether there is a second span, so that the label has a meaning."""
        return self.first_length < len(self.input_ids)


def token_dtype(vocab_size: int) -> TokenDtype:
    """Returns the type of stored ids: ``30_522 -> "uint16", 119_547 -> "uint32"``."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def shard_name(split: str, index: int, count: int) -> str:
    """Returns ``"bert_examples-train.array_record-00003-of-00010"``, as TFDS names shards."""
    return f"{DATASET_NAME}-{split}.array_record-{index:05d}-of-{count:05d}"


def check_row_length(seq_length: int, lengths: np.ndarray) -> None:
    """Refuses rows of ``seq_length`` tokens if an example has more; UserError.

    ``lengths`` are the tokens of each example, [examples], at least one.
    """
    if (longest := int(np.max(lengths))) > seq_length:
        raise UserError(
            "dataset.example_too_long",
            "found {found}, but the dataset's longest example has {longest} tokens. Use at least "
            "{longest}, or make the dataset with examples.max_seq_length={found}.",
            place="seq_length",
            found=seq_length,
            longest=longest,
        )


def lengths_name(split: str) -> str:
    """Returns ``"train.lengths.npy"``: tokens per example in the split's order."""
    return f"{split}.lengths.npy"


class ExampleEncoder:
    """Encodes examples as serialized ``tf.train.Example`` messages."""

    def __init__(self) -> None:
        self._renew()

    def encode(self, input_ids: bytes, *, first_length: int, next_sentence_label: int) -> bytes:
        """Returns one example as bytes.

        The ids are little-endian bytes of the dataset's token type. The message is in protobuf's
        deterministic order, so that equal examples are equal bytes.
        """
        if self._used == _MOST_USES:
            self._renew()
        self._used += 1
        self._ids[0], self._first_length[0] = input_ids, first_length
        self._label[0] = next_sentence_label
        return self._message.SerializeToString(deterministic=True)

    def _renew(self) -> None:
        # A message object is reused, since creating one takes three times as long; not forever,
        # because protobuf frees its memory only with the object.
        self._used = 0
        self._message: Any = tf_example.Example()
        feature = self._message.features.feature
        self._ids = feature["input_ids"].bytes_list.value
        self._first_length = feature["first_length"].int64_list.value
        self._label = feature["next_sentence_label"].int64_list.value
        for values, filler in ((self._ids, b""), (self._first_length, 0), (self._label, 0)):
            values.append(filler)


def decode(record: bytes, dtype: np.dtype) -> Example:
    """Decodes a message of :class:`ExampleEncoder`.

    Raises ValueError: the bytes are not such a message, or its spans and label not possible. The
    row transform compares the ids with the vocabulary.
    """
    try:
        feature = tf_example.Example.FromString(record).features.feature
        example = Example(
            np.frombuffer(feature["input_ids"].bytes_list.value[0], dtype),
            feature["first_length"].int64_list.value[0],
            feature["next_sentence_label"].int64_list.value[0],
        )
    except (DecodeError, IndexError) as error:
        raise ValueError(f"not an example: {error}") from error
    ids, first_length, label = example
    if not 0 < first_length <= len(ids):
        raise ValueError(f"a first span of {first_length} tokens in an example of {len(ids)}")
    if label not in (0, 1):
        raise ValueError(f"the next sentence label {label}")
    return example
