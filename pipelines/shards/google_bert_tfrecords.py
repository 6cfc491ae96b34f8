"""Writes datasets as google-research/bert's TFRecords, with static masks and all seven features."""

import contextlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from bert_jax.data.dataset.reader import Dataset
from bert_jax.data.google_bert.schema import encode_row
from bert_jax.data.google_bert.tfrecord import frame
from bert_jax.data.rng import stream
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.errors import UserError
from bert_jax.files.atomic import new_directory

_READ: Final = 1024  # examples per read


def write_tfrecords(
    datasets: Sequence[Dataset], output: pathlib.Path, *, rows: MaskingTransform, seed: int
) -> dict[str, int]:
    """Writes splits as ``create_pretraining_data.py`` of google-research/bert writes them.

    Rows are written in random order, round-robin to as many files as the split has shards.
    ``seed`` decides the order and the masks. The directory appears atomically.

    Returns the number of records of each split. Raises UserError if the dataset's pairing kind is
    not ``nsp``, an example is longer than a row, the output exists already, or the disk is full.
    """
    written = {}
    for dataset in datasets:
        kind = dataset.provenance.pairing.kind
        if kind != "nsp":
            raise UserError.wrong(
                "tfrecords.pairing",
                kind,
                "nsp, because rows need a next-sentence label",
                place=dataset.directory,
            )
        longest = int(dataset.lengths.max())
        if longest > rows.seq_length:
            raise UserError(
                "tfrecords.too_long",
                f"found an example of {longest} tokens, allowed: at most {rows.seq_length}",
                place=dataset.directory,
            )
    with new_directory(output) as aside:
        for dataset in datasets:
            count = len(dataset.provenance.splits[dataset.split].shards)
            names = [f"{dataset.split}.tfrecord-{at:05d}-of-{count:05d}" for at in range(count)]
            with contextlib.ExitStack() as stack:
                files = [stack.enter_context((aside / name).open("wb")) for name in names]
                for number, record in enumerate(_rows(dataset, rows, seed=seed)):
                    files[number % count].write(frame(record))
            written[dataset.split] = len(dataset)
    return written


def _rows(dataset: Dataset, rows: MaskingTransform, *, seed: int) -> Iterator[bytes]:
    order = np.argsort(stream(seed, "row order").random(len(dataset)), kind="stable")
    for start in range(0, len(order), _READ):
        places = order[start : start + _READ].tolist()
        for index, example in zip(places, dataset.__getitems__(places), strict=True):
            # 0 was once the number of a copy. It stays, so that the records stay the same.
            yield encode_row(rows(example, stream(seed, "static mask", 0, index)))
