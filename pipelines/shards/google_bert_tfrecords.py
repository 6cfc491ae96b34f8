"""Datasets as the release's TFRecords: masks drawn once, all seven features."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, Final

import numpy as np

from bert_jax.data.dataset.reader import Dataset
from bert_jax.data.google_bert.schema import encode_row
from bert_jax.data.google_bert.tfrecord import frame
from bert_jax.data.rng import stream
from bert_jax.data.rows.masking_transform import MaskingTransform
from bert_jax.errors import UserError
from bert_jax.files.atomic import disk_errors
from bert_jax.files.small import new_directory
from bert_jax.pipelines.pairing.random_permutation import Permutation

_READ: Final = 1024  # examples at a time


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
    force: bool = False,
    progress: Callable[[str], None] | None = None,
) -> dict[str, int]:
    """Writes splits as ``create_pretraining_data.py`` of google-research/bert writes them.

    Row by row in a random order, dealt out to as many files as the split has shards. Each copy of
    an example has its own masks, which are a function of the seed, the copy and the example. The
    directory appears whole.

    Args:
        datasets: splits of one dataset of pairing kind ``nsp``: the release's label means that.
        output: a directory that is not there yet.
        rows: masks an example and pads it.
        seed: of order and masks.
        copies: how often each example is written; of a validation split, always once.
        force: replace what is there.
        progress: called with a line of text now and then.

    Returns:
        The records of each split.

    Raises:
        UserError: another pairing kind, an example longer than a row, the output is there already,
            or the disk is full.
    """
    written = {}
    for dataset in datasets:
        _check(dataset, rows)
    with disk_errors(output), new_directory(output, force=force) as aside:
        for dataset in datasets:
            times = copies if dataset.split == "train" else 1
            count = len(dataset.provenance.splits[dataset.split].shards)
            paths = [aside / tfrecord_name(dataset.split, at, count) for at in range(count)]
            with contextlib.ExitStack() as stack:
                files = [stack.enter_context(path.open("wb")) for path in paths]
                rows_of = _rows(dataset, rows, seed=seed, copies=times)
                written[dataset.split] = _deal(rows_of, files)
            if progress is not None:
                progress(f"{dataset.split}: {written[dataset.split]:,} records in {count} files")
    return written


def _check(dataset: Dataset, rows: MaskingTransform) -> None:
    kind = dataset.provenance.pairing.kind
    if kind != "nsp":
        raise UserError(
            f"{dataset.directory}: was made with pairing kind {kind}, allowed: nsp, since each row "
            "of the release's TFRecords has a next sentence label"
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
    order = Permutation(total, seed=seed)
    for start in range(0, total, _READ):
        places = order(np.arange(start, min(start + _READ, total)))
        found = dataset.__getitems__((places % size).tolist())
        for place, example in zip(places.tolist(), found, strict=True):
            copy, index = divmod(place, size)
            yield encode_row(rows(example, stream(seed, "static mask", copy, index)))


def _deal(records: Iterator[bytes], files: Sequence[BinaryIO]) -> int:
    """Writes records to the files in turn, as the release does, and returns their number."""
    count = 0
    for record in records:
        files[count % len(files)].write(frame(record))
        count += 1
    return count
