"""Rows of google-research/bert's ``create_pretraining_data.py``: seven features."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from bert_jax.data.google_bert import tf_example
from bert_jax.data.rows.static_masks import StaticExample
from bert_jax.task import Row

WEIGHTS: Final = "masked_lm_weights"
LABEL: Final = "next_sentence_labels"
PER_TOKEN: Final = ("input_ids", "input_mask", "segment_ids")
PER_PREDICTION: Final = ("masked_lm_positions", "masked_lm_ids", WEIGHTS)
_MOST: Final = 2**31 - 1
_FLOAT: Final = np.dtype("<f4")
FEATURES: Final = (*PER_TOKEN, *PER_PREDICTION, LABEL)


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
        feature = tf_example.Example.FromString(record).features.feature
    except DecodeError:
        raise ValueError("found no tf.train.Example, allowed: one in each record") from None
    numbers = {}
    for name in FEATURES:
        values = _values(feature, name)
        numbers[name] = np.fromiter(values, _FLOAT if name == WEIGHTS else np.int64, len(values))
    return numbers


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
