"""Writes google-research/bert's TFRecords with TensorFlow."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.tensorflow_alone import tf

CLS, SEP, MASK = 2, 3, 4
LENGTH, SLOTS = 32, 5


def random_rows(count: int, *, seed: int = 0, vocab: int = 200) -> list[dict[str, Any]]:
    """Returns random rows of two spans, padded to `LENGTH` tokens and `SLOTS` predictions."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        length = int(rng.integers(8, LENGTH + 1))
        first = int(rng.integers(3, length - 2))  # length of [CLS] A [SEP]
        ids = rng.integers(5, vocab, length)
        ids[[0, first - 1, length - 1]] = CLS, SEP, SEP
        places = np.sort(rng.choice([at for at in range(1, length - 1) if at != first - 1], 2))
        masked = ids[places].copy()
        ids[places[0]] = MASK
        rows.append(
            {
                "input_ids": [*ids.tolist(), *[0] * (LENGTH - length)],
                "input_mask": [1] * length + [0] * (LENGTH - length),
                "segment_ids": [0] * first + [1] * (length - first) + [0] * (LENGTH - length),
                "masked_lm_positions": [*places.tolist(), *[0] * (SLOTS - 2)],
                "masked_lm_ids": [*masked.tolist(), *[0] * (SLOTS - 2)],
                "masked_lm_weights": [1.0] * 2 + [0.0] * (SLOTS - 2),
                "next_sentence_labels": [int(rng.integers(2))],
            }
        )
    return rows


def example_bytes(row: dict[str, Any]) -> bytes:
    """Returns a row as a `tf.train.Example`. The types of the values decide the feature types."""
    feature = {}
    for name, values in row.items():
        if values and isinstance(values[0], float):
            feature[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
        else:
            feature[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


def write_release(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Writes a file as ``create_pretraining_data.py`` does."""
    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in rows:
            writer.write(example_bytes(row))
    return path


def read_release(paths: list[Path], *, length: int, slots: int) -> list[dict[str, Any]]:
    """Reads rows of fixed length with TensorFlow, as ``run_pretraining.py`` does."""
    features = {
        name: tf.io.FixedLenFeature([size], tf.float32 if "weights" in name else tf.int64)
        for name, size in (
            *((name, length) for name in ("input_ids", "input_mask", "segment_ids")),
            *((f"masked_lm_{name}", slots) for name in ("positions", "ids", "weights")),
            ("next_sentence_labels", 1),
        )
    }
    return [
        {name: value.numpy().tolist() for name, value in parsed.items()}
        for record in tf.data.TFRecordDataset([str(path) for path in paths])
        for parsed in [tf.io.parse_single_example(record, features)]
    ]
