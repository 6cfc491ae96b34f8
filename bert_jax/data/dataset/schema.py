"""Encoding of an example on disk."""

from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from bert_jax.data.dataset.provenance import TokenDtype
from bert_jax.data.google_bert import tf_example
from bert_jax.errors import UserError

DATASET_NAME: Final = "bert_examples"  # name for TFDS: the first part of every shard's name
_MOST_USES: Final = 512  # number of examples encoded with one message object


class Example(NamedTuple):
    """An unmasked, unpadded example of n tokens: ``[CLS] A [SEP] B [SEP]`` or ``[CLS] A [SEP]``."""

    input_ids: np.ndarray  # token ids `[n]`, uint16 or uint32, read-only
    first_length: int  # number of tokens in `[CLS] A [SEP]`; n if there is no B
    # Label as in google-research/bert: 0 if B really follows A, 1 if B is random. With pairing kind
    # `sop`: 1 if the spans are swapped. Without B: 0.
    next_sentence_label: int

    @property
    def has_pair(self) -> bool:
        """Whether the example has a second span. Without it, the label has no meaning."""
        return self.first_length < len(self.input_ids)


def token_dtype(vocab_size: int) -> TokenDtype:
    """Returns the dtype of stored ids: ``30_522 -> "uint16", 119_547 -> "uint32"``."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def shard_name(split: str, index: int, count: int) -> str:
    """Returns a shard's name for TFDS: ``"bert_examples-train.array_record-00003-of-00010"``."""
    return f"{DATASET_NAME}-{split}.array_record-{index:05d}-of-{count:05d}"


def check_row_length(seq_length: int, lengths: np.ndarray) -> None:
    """Raises UserError if there are no examples, or an example has more than ``seq_length`` tokens.

    ``lengths`` has the number of tokens of each example, [examples].
    """
    if not len(lengths):
        raise UserError.wrong(
            "dataset.empty", "no examples in this split", "at least one", place="dataset"
        )
    if (longest := int(np.max(lengths))) > seq_length:
        raise UserError(
            "dataset.example_too_long",
            f"found {seq_length}, but the dataset's longest example has {longest} tokens",
            place="seq_length",
        )


def lengths_name(split: str) -> str:
    """Returns the file name of a split's lengths index: ``"train.lengths.npy"``."""
    return f"{split}.lengths.npy"


class ExampleEncoder:
    """Encodes examples as serialized ``tf.train.Example`` messages."""

    def __init__(self) -> None:
        self._renew()

    def encode(self, input_ids: bytes, *, first_length: int, next_sentence_label: int) -> bytes:
        """Returns one example as bytes. Equal examples give equal bytes.

        ``input_ids`` has little-endian token ids of the dataset's dtype.
        """
        if self._used == _MOST_USES:
            self._renew()
        self._used += 1
        self._ids[0], self._first_length[0] = input_ids, first_length
        self._label[0] = next_sentence_label
        return self._message.SerializeToString(deterministic=True)

    def _renew(self) -> None:
        # The message object is reused because creating a new one for each example takes three times
        # as long. It is replaced after _MOST_USES examples because protobuf frees the memory of
        # earlier values only with the object.
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

    Raises ValueError if the bytes are not such a message, or if the first span's length or the
    label is out of range. Does not check the ids: the row transform compares them with the
    vocabulary.
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
