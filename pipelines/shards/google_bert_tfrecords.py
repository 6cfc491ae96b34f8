"""Datasets as google-research/bert's TFRecords: static masks, all seven features."""

import contextlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from bert_jax.data.dataset.reader import Dataset
from bert_jax.data.google_bert.schema import encode_row
from bert_jax.data.google_bert.tfrecord import frame
from bert_jax.data.rng import digest128, mix64, stream
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.errors import UserError
from bert_jax.files.atomic import new_directory

_ROUNDS: Final = 6

_READ: Final = 1024  # examples at a time


class FeistelPermutation:
    """``FeistelPermutation(5, seed=7)([0, 1, 2, 3, 4])`` -> an order of 0 to 4, always the same.

    A Feistel network, in constant memory, over the smallest even number of bits that holds
    ``count``. A result outside the range is permuted again (cycle walking), at most four times on
    average.
    """

    def __init__(self, count: int, *, seed: int) -> None:
        """Derives the round keys from ``seed``; ``count`` is at least 1."""
        self._count = count
        self._half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        low = (1 << 64) - 1
        keys = [digest128(seed, "permutation", round_) & low for round_ in range(_ROUNDS)]
        self._keys = np.array(keys, np.uint64)

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """Returns the permuted ``places``, int64; each in ``[0, count)``."""
        found = self._once(np.asarray(places, np.uint64))
        while len(outside := np.flatnonzero(found >= self._count)):
            found[outside] = self._once(found[outside])
        return found.astype(np.int64)

    def _once(self, values: np.ndarray) -> np.ndarray:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (mix64(right + key) & self._mask)
        return left << self._half | right


def tfrecord_name(split: str, index: int, count: int) -> str:
    """Returns ``"train.tfrecord-00003-of-00010"``."""
    return f"{split}.tfrecord-{index:05d}-of-{count:05d}"


def write_tfrecords(
    datasets: Sequence[Dataset],
    output: pathlib.Path,
    *,
    rows: MaskingTransform,
    seed: int,
    copies: int = 1,
) -> dict[str, int]:
    """Writes splits as ``create_pretraining_data.py`` of google-research/bert writes them.

    Rows are in a random order, in turn over as many files as the split has shards. Each training
    example is written ``copies`` times, each copy with its own masks; ``seed`` decides the order
    and the masks. The directory appears atomically. Returns the number of records of each split.
    Raises UserError: another pairing kind, an example longer than a row, the output exists already,
    or the disk is full.
    """
    written = {}
    for dataset in datasets:
        _check(dataset, rows)
    with new_directory(output, force=False) as aside:
        for dataset in datasets:
            times = copies if dataset.split == "train" else 1
            count = len(dataset.provenance.splits[dataset.split].shards)
            paths = [aside / tfrecord_name(dataset.split, at, count) for at in range(count)]
            with contextlib.ExitStack() as stack:
                files = [stack.enter_context(path.open("wb")) for path in paths]
                for number, record in enumerate(_rows(dataset, rows, seed=seed, copies=times)):
                    files[number % count].write(frame(record))
            written[dataset.split] = times * len(dataset)
    return written


def _check(dataset: Dataset, rows: MaskingTransform) -> None:
    kind = dataset.provenance.pairing.kind
    if kind != "nsp":
        raise UserError(
            f"{dataset.directory}: was made with pairing kind {kind}, allowed: nsp, since each row "
            "of google-research/bert's TFRecords has a next sentence label"
        )
    longest = int(dataset.lengths.max())
    if longest > rows.seq_length:
        raise UserError(
            f"{dataset.directory}: found an example of {longest} tokens, allowed: up to "
            f"{rows.seq_length} in a row"
        )


def _rows(dataset: Dataset, rows: MaskingTransform, *, seed: int, copies: int) -> Iterator[bytes]:
    size = len(dataset)
    total = size * copies
    order = FeistelPermutation(total, seed=seed)
    for start in range(0, total, _READ):
        places = order(np.arange(start, min(start + _READ, total)))
        found = dataset.__getitems__((places % size).tolist())
        for place, example in zip(places.tolist(), found, strict=True):
            copy, index = divmod(place, size)
            yield encode_row(rows(example, stream(seed, "static mask", copy, index)))
