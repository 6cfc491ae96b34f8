"""Random access to the examples of a dataset directory, without TensorFlow."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from array_record.python import array_record_module  # pyright: ignore[reportAttributeAccessIssue]
from etils import epath

from bert_jax.data.dataset.provenance import (
    Provenance,
    ShardRecord,
    file_missing,
    read_provenance,
    split_unknown,
    wrong_size,
)
from bert_jax.data.dataset.schema import Example, decode, lengths_name
from bert_jax.errors import UserError, first_line
from bert_jax.files.read import sha256_of

__all__ = ["Dataset", "Example", "open_dataset"]

# Disables read-ahead: a random read then fetches one record instead of megabytes.
_READER_OPTIONS = "readahead_buffer_size:0"
_READER_BUFFER_BYTES = 32768


def open_dataset(directory: epath.PathLike, split: str) -> Dataset:
    """Opens a split, "train" or "validation": ``open_dataset("data/wiki", "train")[0].input_ids``.

    Checks the size of every shard and the hash of the lengths index. Reading a record checks the
    checksum of its chunk; :meth:`Dataset.verify` checks every byte. Raises UserError if the
    directory is not a dataset, the split does not exist, a file is missing or damaged, or the
    dataset is from a newer version.
    """
    root = epath.Path(directory)
    provenance = read_provenance(root)
    if split not in provenance.splits:
        raise split_unknown(root, split, provenance.splits)
    record = provenance.splits[split]
    for shard in record.shards:
        _check_size(root / shard.name, shard)
    # The whole lengths index is hashed: it is small (2 bytes per example), and the order of the
    # examples depends on it.
    lengths = root / lengths_name(split)
    if not lengths.exists():
        raise file_missing(lengths)
    _check_hash(lengths, record.lengths_sha256)
    return Dataset(directory=str(root), split=split, provenance=provenance)


class Dataset:
    """One split of a dataset directory: a sequence of :class:`Example`.

    A pickled dataset contains only the directory's name and the provenance; each worker process
    opens the files itself. Implements Grain's random-access protocol (``__len__``, ``__getitem__``,
    stable ``__repr__``).

    Attributes:
        provenance: settings and sources of the dataset.
        fingerprint: identity of the split's content; see :meth:`Provenance.fingerprint`.
        lengths: tokens per example, ``[len(self)]`` uint16 or uint32, memory-mapped and read-only.
    """

    def __init__(self, *, directory: str, split: str, provenance: Provenance) -> None:
        self.directory, self.split, self.provenance = directory, split, provenance
        self.fingerprint = provenance.fingerprint(split)
        self._dtype = np.dtype(provenance.token_dtype)
        self._record = provenance.splits[split]
        # starts[k] is the index of shard k's first example; the last entry is the total.
        self._starts = [0, *itertools.accumulate(s.examples for s in self._record.shards)]
        self._readers: dict[int, Any] = {}
        path = epath.Path(directory) / lengths_name(split)
        self.lengths = np.load(path, mmap_mode="r", allow_pickle=False)

    def __getstate__(self) -> dict[str, Any]:
        return {"directory": self.directory, "split": self.split, "provenance": self.provenance}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    def __repr__(self) -> str:
        return f"Dataset(split={self.split!r}, fingerprint={self.fingerprint!r})"

    def __len__(self) -> int:
        return self._record.examples

    def __getitem__(self, index: int) -> Example:
        """Returns one example; a negative index counts from the end."""
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Example]:
        """Returns examples in the order of ``indices``. Several times faster than single reads.

        The indices are in ``[-len(self), len(self))``, in any order, with or without repeats.
        Raises IndexError if an index is out of range and UserError if a shard is damaged.
        """
        positions: dict[int, tuple[list[int], list[int]]] = {}
        total = len(self)
        for place, index in enumerate(indices):
            if not -total <= index < total:
                raise IndexError(f"example {index} of {total}")
            index = int(index) % total
            shard = bisect.bisect_right(self._starts, index) - 1
            wanted, places = positions.setdefault(shard, ([], []))
            wanted.append(index - self._starts[shard])
            places.append(place)
        expected = np.asarray(self.lengths)[np.asarray(indices, np.int64)].tolist()
        examples: list[Any] = [None] * len(indices)
        for shard, (wanted, places) in positions.items():
            for place, example in zip(places, self._read(shard, wanted), strict=True):
                examples[place] = example
                if len(example.input_ids) != expected[place]:
                    raise UserError(
                        "dataset.example_length",
                        f"found {len(example.input_ids)} tokens; the index has {expected[place]}",
                        place=self._shard_path(shard),
                    )
        return examples

    def verify(self) -> None:
        """Checks the hashes of all shards and of the lengths index.

        Raises UserError for the first file that differs.
        """
        root = epath.Path(self.directory)
        for shard in self._record.shards:
            _check_size(root / shard.name, shard)
            _check_hash(root / shard.name, shard.sha256)
        _check_hash(root / lengths_name(self.split), self._record.lengths_sha256)

    def _read(self, shard: int, positions: list[int]) -> list[Example]:
        try:
            if shard not in self._readers:
                self._readers[shard] = self._open_reader(shard)
            records = self._readers[shard].read(positions)
            return [decode(record, self._dtype) for record in records]
        # ArrayRecord raises RuntimeError for any damage.
        except (RuntimeError, ValueError, IndexError) as error:
            raise UserError(
                "dataset.shard_damaged",
                f"damaged ({first_line(error)}). Copy this file again.",
                place=self._shard_path(shard),
            ) from error

    def _open_reader(self, shard: int) -> Any:
        reader = array_record_module.ArrayRecordReader(
            str(self._shard_path(shard)),
            options=_READER_OPTIONS,
            file_reader_buffer_size=_READER_BUFFER_BYTES,
        )
        # A file truncated at a block boundary opens without an error but has fewer records.
        expected = self._record.shards[shard].examples
        if reader.num_records() != expected:
            raise ValueError(f"{reader.num_records()} examples, expected {expected}")
        return reader

    def _shard_path(self, shard: int) -> epath.Path:
        return epath.Path(self.directory) / self._record.shards[shard].name


def _check_size(path: epath.Path, shard: ShardRecord) -> None:
    if not path.exists():
        raise file_missing(path)
    if (found := path.stat().length) != shard.bytes:
        raise wrong_size(path, found, expected=shard.bytes)


def _check_hash(path: epath.Path, expected: str) -> None:
    if (found := sha256_of(path)) != expected:
        raise UserError(
            "dataset.file_hash",
            f"damaged: SHA-256 is {found}, expected {expected}. Copy this file again.",
            place=path,
        )
