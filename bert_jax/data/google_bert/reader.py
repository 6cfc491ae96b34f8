"""Datasets written by google-research/bert's ``create_pretraining_data.py``."""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from etils import epath

from bert_jax.data.dataset.provenance import PROVENANCE_NAME, split_unknown
from bert_jax.data.google_bert.index import RecordIndex, load_index
from bert_jax.data.google_bert.schema import decode_rows
from bert_jax.data.google_bert.tfrecord import RecordFile
from bert_jax.data.rows.masking_transform import StaticExample
from bert_jax.errors import UserError

_MARK: Final = "tfrecord"
_WILD: Final = "*?["
_MOST_OPEN: Final = 256  # maximum number of open files
SPLITS: Final = ("train", "validation")


def is_google_bert(path: epath.PathLike) -> bool:
    """Returns whether a path is TFRecords rather than a dataset of ``bert-jax examples``.

    A glob or an existing file counts as TFRecords. A directory counts if a file's name contains
    ``tfrecord``.
    """
    if _is_glob(path):
        return True
    return not (epath.Path(path) / PROVENANCE_NAME).exists() and bool(_files(path))


def open_google_bert(path: epath.PathLike, split: str = "train") -> GoogleBertDataset:
    """Opens TFRecords: ``open_google_bert("data/tf_examples.tfrecord*")[0].input_ids``.

    The first call reads and checks every byte; see `load_index`. The path is a file, a glob or a
    directory, local or ``gs://``. In a directory only files whose names contain ``tfrecord`` are
    read. Files named ``validation.*`` are the validation split, as ``bert-jax examples
    --tfrecords`` names them; all other files are the training split. Raises UserError if there is
    no file, if the split has no file, or if a file is damaged.
    """
    splits = find_splits(path)
    if split not in splits:
        raise split_unknown(path, split, splits)
    return GoogleBertDataset(str(path), split, splits[split], load_index(splits[split]))


def find_splits(path: epath.PathLike) -> dict[str, list[epath.Path]]:
    """Returns the files of each split, sorted by name. Raises UserError if there is no file."""
    if not (files := _files(path)):
        raise UserError("tfrecord.missing", "no such TFRecord file", place=path)
    splits: dict[str, list[epath.Path]] = {}
    for file in files:
        prefix = file.name.partition(".")[0]
        splits.setdefault(prefix if prefix in SPLITS else "train", []).append(file)
    return splits


class GoogleBertDataset:
    """One split of TFRecords: a sequence of `StaticExample`, with stored masks.

    It can be pickled and implements Grain's random-access protocol.

    Attributes:
        directory: path that was opened.
        summary: statistics of the records.
        fingerprint: identity of the split's content, independent of file names.
        lengths: tokens per example, ``[len(self)]`` uint16, read-only.
    """

    def __init__(
        self, directory: str, split: str, files: Sequence[epath.Path], index: RecordIndex
    ) -> None:
        self.directory, self.split = directory, split
        self.summary, self.fingerprint = index.summary, index.summary.fingerprint
        self.lengths = index.lengths
        self._files = list(files)
        self._offsets = index.offsets
        self._starts = [0, *itertools.accumulate(file.records for file in index.summary.files)]
        self._open: dict[int, RecordFile] = {}

    def __getstate__(self) -> dict[str, Any]:
        cached = isinstance(self.lengths, np.memmap)  # a worker process maps the same file
        index = None if cached else RecordIndex(self.summary, self._offsets, self.lengths)
        files = [os.fspath(file) for file in self._files]
        fields = {"directory": self.directory, "split": self.split, "files": files}
        return {**fields, "fingerprint": self.fingerprint, "index": index}

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = [epath.Path(file) for file in state.pop("files")]
        index, fingerprint = state.pop("index") or load_index(files), state.pop("fingerprint")
        if index.summary.fingerprint != fingerprint:
            raise UserError(
                "tfrecord.changed",
                "the files have changed. Run the same command again.",
                place=state["directory"],
            )
        self.__init__(**state, files=files, index=index)

    def __repr__(self) -> str:
        return f"GoogleBertDataset(split={self.split!r}, fingerprint={self.fingerprint!r})"

    def __len__(self) -> int:
        return self._starts[-1]

    def __getitem__(self, index: int) -> StaticExample:
        """Returns one example; a negative index counts from the end."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[StaticExample]:
        """Returns examples in the order of ``indices``. Several times faster than single reads.

        Raises IndexError if an index is out of range. If a record is damaged, raises UserError with
        the file and the record's number (from 1).
        """
        payloads, places, total = [], [], len(self)
        for index in indices:
            if not -total <= index < total:
                raise IndexError(f"example {index} of {total}")
            index = int(index) % total
            at = bisect.bisect_right(self._starts, index) - 1
            number = index - self._starts[at] + 1
            places.append(f"{self._files[at]}: record {number}")
            payloads.append(self._file(at).read(int(self._offsets[index]), number=number).payload)
        rows = decode_rows(payloads, places)
        return list(itertools.chain.from_iterable(each.examples() for each in rows))

    def _file(self, at: int) -> RecordFile:
        file = self._open.get(at)
        if file is None:
            if len(self._open) >= _MOST_OPEN:
                # Running reads can finish: a file closes when its last reference is deleted.
                self._open.clear()
            file = self._open[at] = RecordFile(self._files[at])
        return file


def _is_glob(path: epath.PathLike) -> bool:
    return any(character in os.fspath(path) for character in _WILD)


def _files(path: epath.PathLike) -> list[epath.Path]:
    root = epath.Path(path)
    if _is_glob(path):
        parts = root.parts
        first = next(at for at, part in enumerate(parts) if _is_glob(part))
        found = epath.Path(*parts[:first]).glob("/".join(parts[first:]))
    elif root.is_dir():
        found = [file for file in root.iterdir() if _MARK in file.name]
    else:
        return [root] if root.exists() else []
    return sorted(file for file in found if not file.name.startswith(".") and file.is_file())
