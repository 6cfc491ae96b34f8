"""Rows of google-research/bert's ``create_pretraining_data.py``: seven features.

Rows of equal size are decoded together, five times as fast as one by one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from bert_jax.data.google_bert import tf_example
from bert_jax.data.rows.masking_transform import StaticExample
from bert_jax.errors import UserError, commas
from bert_jax.task import Row

WEIGHTS: Final = "masked_lm_weights"
LABEL: Final = "next_sentence_labels"
PER_TOKEN: Final = ("input_ids", "input_mask", "segment_ids")
PER_PREDICTION: Final = ("masked_lm_positions", "masked_lm_ids", WEIGHTS)
FEATURES: Final = (*PER_TOKEN, *PER_PREDICTION, LABEL)
_KINDS: Final = {name: "float_list" if name == WEIGHTS else "int64_list" for name in FEATURES}
TOGETHER: Final = 64  # number of rows decoded at once; their arrays fit in the CPU cache
_HIGHEST: Final = 2**31 - 1
_LONGEST: Final = 2**16 - 1  # maximum number of tokens in an example


class StoredRows(NamedTuple):
    """n valid rows of equal size: L tokens and P prediction slots, including padding."""

    values: dict[str, np.ndarray]  # features by name, `[n, size]`; weights float32, others int64
    lengths: np.ndarray  # number of tokens in each row, int `[n]`
    counts: np.ndarray  # number of predictions in each row, int `[n]`

    def examples(self) -> Iterator[StaticExample]:
        """Yields the example of each row, without padding."""
        sizes = zip(self.lengths.tolist(), self.counts.tolist(), strict=True)
        for row, (length, count) in enumerate(sizes):
            features = {name: values[row] for name, values in self.values.items()}
            yield StaticExample(
                input_ids=features["input_ids"][:length].astype(np.int32),
                token_type_ids=features["segment_ids"][:length].astype(np.int32),
                positions=features["masked_lm_positions"][:count].astype(np.int32),
                ids=features["masked_lm_ids"][:count].astype(np.int32),
                weights=features[WEIGHTS][:count],
                next_sentence_label=int(features[LABEL][0]),
            )

    @property
    def slots(self) -> int:
        """Number of prediction slots in each row."""
        return self.values[WEIGHTS].shape[1]

    @property
    def highest_id(self) -> int:
        """Highest token id after masking."""
        ids = self.values["input_ids"]
        return int(ids[_first(self.lengths, ids.shape[1])].max())

    def originals(self) -> np.ndarray:
        """Returns the tokens before masking, without special tokens: int64 `[tokens]`."""
        row, slot = _first(self.counts, self.slots).nonzero()
        original = self.values["input_ids"].copy()
        positions = self.values["masked_lm_positions"][row, slot]
        original[row, positions] = self.values["masked_lm_ids"][row, slot]
        ordinary = _first(self.lengths, original.shape[1])
        # Position of B's first token; 0 if there is no B.
        second = ((self.values["segment_ids"] == 1) & ordinary).argmax(1)
        for special in (0, np.maximum(second - 1, 0), self.lengths - 1):
            ordinary[np.arange(len(ordinary)), special] = False
        return original[ordinary]


def encode_row(row: Row) -> bytes:
    """Returns a row with one example as a serialized ``tf.train.Example``.

    google-research/bert's ``segment_ids`` are our ``token_type_ids``. Its ``input_mask`` is our
    ``segment_ids``, which is 1 for every token. Equal rows give equal bytes. The row comes from a
    `bert_jax.data.rows.masking_transform.MaskingTransform` without packing.
    """
    renamed = {**row, "input_mask": row["segment_ids"], "segment_ids": row["token_type_ids"]}
    feature = {
        name: tf_example.Feature(**{kind: {"value": renamed[name].tolist()}})
        for name, kind in _KINDS.items()
    }
    features = tf_example.Features(feature=feature)
    return tf_example.Example(features=features).SerializeToString(deterministic=True)


def decode_rows(records: Sequence[bytes], places: Sequence[str]) -> list[StoredRows]:
    """Returns the rows of serialized ``tf.train.Example`` messages, `TOGETHER` at a time.

    If a record is not a valid row, raises UserError at its place.
    """
    rows = []
    for start in range(0, len(records), TOGETHER):
        stop = start + TOGETHER
        try:
            rows.append(_decode(records[start:stop]))
        except (UserError, ValueError):  # damage or different sizes: decode one by one
            for record, place in zip(records[start:stop], places[start:stop], strict=True):
                try:
                    rows.append(_decode([record]))
                except UserError as error:
                    raise error.located(place) from None
    return rows


def _decode(records: Sequence[bytes]) -> StoredRows:
    """Decodes rows. Raises ValueError if their sizes differ and UserError for a wrong feature."""
    values = _numbers(records)
    for names in (PER_TOKEN, PER_PREDICTION):
        sizes = {name: values[name].shape[1] for name in names}
        if len(set(sizes.values())) > 1:
            raise UserError(
                "tfrecord.sizes",
                f"found {commas(f'{size} {name}' for name, size in sizes.items())}; sizes differ",
            )
    labels = values[LABEL]
    if labels.shape[1] != 1 or labels.min() < 0 or labels.max() > 1:
        raise UserError.wrong("tfrecord.label", f"{LABEL} {labels[0].tolist()}", "one, 0 or 1")
    mask, real = values["input_mask"], values[WEIGHTS] > 0
    lengths, counts = mask.sum(1), real.sum(1)
    token, prediction = _first(lengths, mask.shape[1]), _first(counts, real.shape[1])
    if lengths.min() < 1 or (mask != token).any():
        raise UserError.wrong(
            "tfrecord.input_mask", "an input_mask with gaps or without tokens", "1s, then 0s"
        )
    if (longest := int(lengths.max())) > _LONGEST:
        raise UserError.wrong("tfrecord.too_long", f"{longest} tokens", f"up to {_LONGEST}")
    if (real != prediction).any():
        raise UserError.wrong("tfrecord.weights", "masked_lm_weights with gaps", "above 0, then 0")
    for name, used, highest in (
        ("input_ids", token, _HIGHEST),
        ("segment_ids", token, 1),
        ("masked_lm_positions", prediction, lengths[:, None].astype(np.uint64) - 1),
        ("masked_lm_ids", prediction, _HIGHEST),
    ):
        numbers = values[name]
        # As unsigned numbers, negative ids exceed every limit.
        wrong = (numbers.view(np.uint64) > highest) & used
        if wrong.any():
            raise UserError(
                "tfrecord.number",
                f"found {name} {int(numbers[wrong][0])}, allowed: 0 to "
                f"{int(np.broadcast_to(highest, numbers.shape)[wrong][0])}",
            )
    return StoredRows(values, lengths, counts)


def _first(counts: np.ndarray, size: int) -> np.ndarray:
    """Returns bool `[n, size]`, true in the first `counts[row]` columns of each row."""
    return np.arange(size) < counts[:, None]


def _numbers(records: Sequence[bytes]) -> dict[str, np.ndarray]:
    """Returns each feature of n records, `[n, size]`: weights float32, others int64."""
    packed = [_packed(record) for record in records]
    values = {}
    for name in FEATURES:
        lists = [row[name] for row in packed]
        try:
            if name == WEIGHTS:
                flat, sizes = np.frombuffer(b"".join(lists), "<f4"), [*map(len, lists)]
            else:
                flat, sizes = tf_example.decode_lists(lists)
        except ValueError:  # truncated numbers
            raise _no_example() from None
        if len(set(sizes)) > 1:
            raise ValueError("rows of different sizes")
        values[name] = flat.reshape(len(records), -1)
    return values


def _packed(record: bytes) -> dict[str, bytes]:
    """Returns the packed numbers of each feature: the weights float32, all others varints."""
    try:
        example = tf_example.packed_example(record)
    except DecodeError:
        raise _no_example() from None
    feature: Mapping[str, Any] = example.features.feature
    packed = {}
    for name, kind in _KINDS.items():
        if name not in feature:
            raise UserError(
                "tfrecord.feature_missing",
                f"feature {name} is missing; found: {commas(sorted(feature))}",
            )
        entry = feature[name]
        if not entry.HasField(kind):
            found = entry.WhichOneof("kind") or "an empty feature"
            raise UserError.wrong("tfrecord.feature_kind", f"{name} as {found}", kind)
        packed[name] = b"".join(getattr(entry, kind).value)
    return packed


def _no_example() -> UserError:
    return UserError.wrong("tfrecord.no_example", "no tf.train.Example", "one in each record")
