"""Rows of google-research/bert's ``create_pretraining_data.py``: seven features.

Statistics of many rows at once are vectorised, five times as fast as decoding each row. They cover
rows as all known writers write them; the caller decodes any others one by one.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from google.protobuf.message import DecodeError

from bert_jax.data.google_bert import tf_example
from bert_jax.data.google_bert.tf_example import decode_lists
from bert_jax.data.rows.static_masks import StaticExample
from bert_jax.task import Row

WEIGHTS: Final = "masked_lm_weights"
LABEL: Final = "next_sentence_labels"
PER_TOKEN: Final = ("input_ids", "input_mask", "segment_ids")
PER_PREDICTION: Final = ("masked_lm_positions", "masked_lm_ids", WEIGHTS)
_MOST: Final = 2**31 - 1
_FLOAT: Final = np.dtype("<f4")
FEATURES: Final = (*PER_TOKEN, *PER_PREDICTION, LABEL)

_LABELS: Final = (b"\0", b"\1")


def encode_row(row: Row) -> bytes:
    """Returns a row of one example as a serialized ``tf.train.Example``.

    google-research/bert's ``segment_ids`` are our ``token_type_ids``, its ``input_mask`` our
    ``segment_ids``, which are 1 for every token. The message is in protobuf's deterministic order,
    so that equal rows are equal bytes. Rows come from
    `bert_jax.data.rows.masking_transform.MaskingTransform`, without packing.
    """
    renamed = {
        "input_ids": row["input_ids"],
        "input_mask": row["segment_ids"],
        "segment_ids": row["token_type_ids"],
        **{name: row[name] for name in (*PER_PREDICTION, LABEL)},
    }
    feature = {}
    for name, values in renamed.items():
        kind = "float_list" if name == WEIGHTS else "int64_list"
        feature[name] = tf_example.Feature(**{kind: {"value": values.tolist()}})
    features = tf_example.Features(feature=feature)
    return tf_example.Example(features=features).SerializeToString(deterministic=True)


def decode_row(record: bytes) -> tuple[StaticExample, int]:
    """Returns the example of a row without padding, and the row's slots for predictions.

    Raises:
        ValueError: the bytes are not such a row; says what was found and what is allowed.
    """
    values = _numbers(record)
    for names in (PER_TOKEN, PER_PREDICTION):
        sizes = {name: len(values[name]) for name in names}
        if len(set(sizes.values())) > 1:
            found = ", ".join(f"{size} {name}" for name, size in sizes.items())
            raise ValueError(f"found {found}, allowed: as many of each")
    label = values[LABEL].tolist()
    if label not in ([0], [1]):
        raise ValueError(f"found {LABEL} {label}, allowed: one, 0 or 1")
    length = _length(values["input_mask"])
    weights = values[WEIGHTS]
    count = _leading(weights > 0)
    highest = {"input_ids": _MOST, "segment_ids": 1}
    highest |= {"masked_lm_positions": length - 1, "masked_lm_ids": _MOST}
    kept = {}
    for name, most in highest.items():
        held = values[name][: length if name in PER_TOKEN else count]
        # Compared as unsigned, where negative numbers exceed every limit.
        if held.size and held.view(np.uint64).max() > most:
            wrong = held[(held < 0) | (held > most)][0]
            raise ValueError(f"found {name} {wrong}, allowed: 0 to {most}")
        kept[name] = held.astype(np.int32)
    example = StaticExample(
        input_ids=kept["input_ids"],
        token_type_ids=kept["segment_ids"],
        positions=kept["masked_lm_positions"],
        ids=kept["masked_lm_ids"],
        weights=weights[:count],
        next_sentence_label=label[0],
    )
    return example, len(weights)


def _numbers(record: bytes) -> dict[str, np.ndarray]:
    """Returns int64 ``[n]`` of each feature, float32 of the weights."""
    try:
        if (packed := packed_values(record)) is not None:
            weights = np.frombuffer(packed.pop(WEIGHTS), _FLOAT)
            flat, counts = decode_lists(list(packed.values()))
            stops = itertools.accumulate(counts)
            numbers = {
                name: flat[stop - count : stop]
                for name, count, stop in zip(packed, counts, stops, strict=True)
            }
            return {**numbers, WEIGHTS: weights}
        feature = tf_example.Example.FromString(record).features.feature
    except (DecodeError, ValueError):  # ValueError: truncated numbers
        raise ValueError("found no tf.train.Example, allowed: one in each record") from None
    return {
        name: np.array(_values(feature, name), _FLOAT if name == WEIGHTS else np.int64)
        for name in FEATURES
    }


def packed_values(record: bytes) -> dict[str, bytes] | None:
    """Returns the packed numbers of each feature, not decoded.

    Varints, for the weights little-endian floats; None where the record has to be read number by
    number: it is not as all known writers write it, or a feature is missing.

    Raises:
        DecodeError: the bytes are not a ``tf.train.Example``.
    """
    example = tf_example.packed_example(record)
    if example is None:
        return None
    feature = example.features.feature
    try:
        return {name: b"".join(_values(feature, name)) for name in FEATURES}
    except ValueError:
        return None


def _values(feature: Mapping[str, Any], name: str) -> Sequence[Any]:
    if name not in feature:
        found = ", ".join(sorted(feature)) or "no feature at all"
        raise ValueError(f"found no feature {name} (but {found}), allowed: {', '.join(FEATURES)}")
    wanted = "float_list" if name == WEIGHTS else "int64_list"
    held = feature[name]
    if not held.HasField(wanted):
        found = held.WhichOneof("kind") or "an empty feature"
        raise ValueError(f"found {name} as {found}, allowed: {wanted}")
    return getattr(held, wanted).value


def _length(mask: np.ndarray) -> int:
    """Returns the number of tokens of an ``input_mask``: ones, then zeros."""
    length = int(mask.sum())
    if not 0 < length <= len(mask) or not (mask[:length] == 1).all() or mask[length:].any():
        raise ValueError("found an input_mask with gaps or without tokens, allowed: 1s, then 0s")
    return length


def _leading(real: np.ndarray) -> int:
    """Returns the number of predictions: weights above 0, then zeros."""
    count = int(np.count_nonzero(real))
    if not real[:count].all():
        raise ValueError(f"found {WEIGHTS} with gaps, allowed: above 0, then 0")
    return count


class RowStatistics(NamedTuple):
    """Statistics of n rows."""

    lengths: np.ndarray  # int64 `[n]`: tokens
    slots: int  # most slots for predictions in a row
    most_predictions: int
    highest_id: int
    originals: np.ndarray
    """int64: the tokens before masking without special ones, in no particular order."""


class _Ragged(NamedTuple):
    """Rows of different lengths, concatenated."""

    starts: np.ndarray  # int64 `[n]`
    sizes: np.ndarray  # int64 `[n]`, none 0

    def sums(self, values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, self.starts, dtype=np.int64)

    def prefixes(self, flags: np.ndarray) -> bool:
        """Whether the True of every row are a non-empty prefix of it."""
        rises = flags[1:] & ~flags[:-1]
        rises[self.starts[1:] - 1] = False
        return bool(flags[self.starts].all()) and not rises.any()


def row_statistics(records: Sequence[bytes]) -> RowStatistics | None:
    """Returns the statistics of some rows, if all of them are valid.

    Takes one or more serialized ``tf.train.Example`` messages. None where the caller has to decode
    them one by one (`decode_row`): one may be damaged, or only be written in another way.
    """
    packed = []
    for record in records:
        try:
            held = packed_values(record)
        except DecodeError:
            return None
        if held is None or held[LABEL] not in _LABELS:
            return None
        packed.append(held)
    try:
        return _statistics({name: [held[name] for held in packed] for name in packed[0]})
    except ValueError:  # truncated numbers
        return None


def _statistics(packed: dict[str, list[bytes]]) -> RowStatistics | None:
    numbers = {name: _flat(name, held) for name, held in packed.items()}
    tokens = _ragged(numbers, PER_TOKEN)
    predictions = _ragged(numbers, PER_PREDICTION)
    if tokens is None or predictions is None:
        return None
    values = {name: flat for name, (flat, _) in numbers.items()}
    mask, weights = values["input_mask"], values[WEIGHTS] > 0
    second = values["segment_ids"] == 1
    lengths, counts = tokens.sums(mask), predictions.sums(weights)
    ids, hidden, places = (
        values["input_ids"],
        values["masked_lm_ids"][weights],
        values["masked_lm_positions"][weights],
    )
    # Compared as unsigned, where negative numbers exceed every limit.
    limits = (
        (mask, np.int64(1)),
        (values["segment_ids"], np.int64(1)),
        (ids[mask == 1], np.int64(_MOST)),
        (hidden, np.int64(_MOST)),
        (places, (lengths - 1).repeat(counts)),
    )
    in_range = all((held.view(np.uint64) <= most.view(np.uint64)).all() for held, most in limits)
    # Every row begins with a span A; B, if any, follows it to the end of the tokens.
    first = (mask == 1) & ~second
    if not (in_range and tokens.prefixes(mask == 1) and tokens.prefixes(first)):
        return None
    if not predictions.prefixes(weights):
        return None
    highest = int(ids[mask == 1].max())
    originals = ids.copy()
    originals[tokens.starts.repeat(counts) + places] = hidden
    special = np.zeros(len(ids), bool)
    begins = tokens.sums(first)
    special[tokens.starts] = True
    special[tokens.starts + lengths - 1] = True
    special[(tokens.starts + begins - 1)[begins < lengths]] = True
    return RowStatistics(
        lengths=lengths,
        slots=int(predictions.sizes.max()),
        most_predictions=int(counts.max()),
        highest_id=highest,
        originals=originals[(mask == 1) & ~special],
    )


def _flat(name: str, held: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the numbers of all rows, concatenated, and their count per row."""
    if name == WEIGHTS:
        numbers = [np.frombuffer(row, "<f4") for row in held]
        return np.concatenate(numbers), np.array([len(row) for row in numbers])
    flat, counts = decode_lists(held)
    return flat, np.array(counts)


def _ragged(
    numbers: dict[str, tuple[np.ndarray, np.ndarray]], names: Sequence[str]
) -> _Ragged | None:
    """Returns the rows of features that must have equal sizes; None where they differ."""
    sizes = numbers[names[0]][1]
    if not sizes.all() or any((numbers[name][1] != sizes).any() for name in names):
        return None
    return _Ragged(np.concatenate([[0], sizes[:-1].cumsum()]), sizes)
