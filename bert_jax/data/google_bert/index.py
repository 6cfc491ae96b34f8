"""Where each record of a directory of the release's TFRecords stands, found in one pass."""

from __future__ import annotations

import array
import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pydantic
from etils import epath

from bert_jax.data.google_bert.figures import RowFigures, figures_of_rows
from bert_jax.data.google_bert.schema import decode_row
from bert_jax.data.google_bert.tfrecord import scan_records
from bert_jax.data.rows.static_masks import StaticExample
from bert_jax.errors import UserError
from bert_jax.files.small import new_directory
from bert_jax.section import Section

_VERSION: Final = 1  # of the index; another one is made anew
_AT_A_TIME: Final = 256  # records
_LONGEST: Final = 2**16 - 1  # tokens of an example
_NAME: Final = ".bert_jax_index"


class FileRecord(Section):
    """A file as it was when it was indexed."""

    path: str
    bytes: int
    modified: int
    """Nanoseconds since 1970, or seconds where the storage has no finer clock."""
    records: int


class ReleasedFigures(Section):
    """What the records hold, all together."""

    version: int = _VERSION
    files: tuple[FileRecord, ...]
    fingerprint: str
    """Over the checksums of all records in order: 32 hexadecimal digits."""
    slots: int
    """Predictions that a row has room for (``max_predictions_per_seq``)."""
    most_predictions: int
    """Predictions of the example that has most."""
    highest_id: int
    tokens: int
    """Special tokens included, padding not."""
    unigram_entropy: float
    """Entropy of the tokens before masking, special ones left out, in nats per token."""


class ReleasedIndex(NamedTuple):
    """Of each record, where it stands and how long its example is."""

    figures: ReleasedFigures
    offsets: np.ndarray
    """int64 ``[n]``: of the record's frame in its file."""
    lengths: np.ndarray
    """uint16 ``[n]``: tokens of the example."""


def load_index(paths: Sequence[epath.Path]) -> ReleasedIndex:
    """Returns the index of some files, which is made where there is none that fits them.

    Making it reads every byte and checks every record. It is kept beside local files, in a
    directory whose name begins with ``.bert_jax_index``; where that cannot be written to, and for
    ``gs://``, it is made anew each time.

    Args:
        paths: at least one file, in the order of the dataset.

    Raises:
        UserError: a file cannot be read, is damaged or holds something else.
    """
    cache = _cache_of(paths)
    if cache is not None and (held := _read(cache, paths)) is not None:
        return held
    index = _make(paths)
    if cache is not None and os.access(cache.parent, os.W_OK):
        with new_directory(cache, force=True) as aside:
            np.save(aside / "offsets.npy", index.offsets)
            np.save(aside / "lengths.npy", index.lengths)
            (aside / "index.json").write_text(index.figures.model_dump_json(indent=1) + "\n")
        # As it is read the next time: mapped into memory, so that workers share it.
        return _read(cache, paths) or index
    return index


def _cache_of(paths: Sequence[epath.Path]) -> Path | None:
    if any("://" in os.fspath(path) for path in paths):
        return None
    names = "\n".join(path.name for path in paths)
    digest = hashlib.blake2b(names.encode(), digest_size=4).hexdigest()
    return Path(paths[0]).parent / f"{_NAME}-{digest}"


def _read(cache: Path, paths: Sequence[epath.Path]) -> ReleasedIndex | None:
    """Returns what is kept, ``None`` if nothing is, or other files, or another version's."""
    try:
        content = json.loads((cache / "index.json").read_text())
        figures = ReleasedFigures.model_validate_json(json.dumps(content))
        offsets = np.load(cache / "offsets.npy", mmap_mode="r", allow_pickle=False)
        lengths = np.load(cache / "lengths.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, pydantic.ValidationError):
        return None
    if len(paths) != len(figures.files):
        return None
    pairs = zip(paths, figures.files, strict=True)
    now = tuple(_file_record(path, file.records) for path, file in pairs)
    count = sum(file.records for file in figures.files)
    fits = figures.version == _VERSION and figures.files == now
    if not fits or offsets.shape != (count,) or lengths.shape != (count,):
        return None
    return ReleasedIndex(figures, offsets, lengths)


def _file_record(path: epath.Path, records: int) -> FileRecord:
    if "://" in os.fspath(path):
        stat = path.stat()
        size, modified = stat.length, int(stat.mtime)
    else:
        found = os.stat(path)
        size, modified = found.st_size, found.st_mtime_ns
    return FileRecord(path=path.name, bytes=size, modified=modified, records=records)


def _make(paths: Sequence[epath.Path]) -> ReleasedIndex:
    offsets, lengths = array.array("q"), array.array("H")
    digest = hashlib.blake2b(digest_size=16)
    tally = _Tally()
    files = []
    for path in paths:
        before = len(offsets)
        records = scan_records(path)
        while held := list(itertools.islice(records, _AT_A_TIME)):
            payloads = [record.payload for record in held]
            _count(path, payloads, first=len(offsets) - before + 1, lengths=lengths, tally=tally)
            offsets.extend(record.offset for record in held)
            digest.update(b"".join(record.checksum.to_bytes(4, "little") for record in held))
        files.append(_file_record(path, len(offsets) - before))
    if not offsets:
        raise UserError(f"{paths[0].parent}: found no record in its TFRecords, allowed: some")
    figures = ReleasedFigures(
        files=tuple(files),
        fingerprint=digest.hexdigest(),
        slots=tally.slots,
        most_predictions=tally.most,
        highest_id=tally.highest,
        tokens=sum(lengths),
        unigram_entropy=tally.entropy(),
    )
    return ReleasedIndex(
        figures, np.frombuffer(offsets, np.int64), np.frombuffer(lengths, np.uint16)
    )


def _count(
    path: epath.Path,
    payloads: Sequence[bytes],
    *,
    first: int,
    lengths: array.array[int],
    tally: _Tally,
) -> None:
    """Counts some rows of a file, of which the first has the number ``first``."""
    if (figures := figures_of_rows(payloads)) is not None and figures.lengths.max() <= _LONGEST:
        lengths.extend(figures.lengths.tolist())
        tally.add(figures)
        return
    for number, payload in enumerate(payloads, first):
        try:
            example, slots = decode_row(payload)
            lengths.append(len(example.input_ids))
        except (ValueError, OverflowError) as error:
            raise UserError(f"{path}: record {number}: {error}") from None
        tally.add(_figures_of(example, slots))


def _figures_of(example: StaticExample, slots: int) -> RowFigures:
    return RowFigures(
        lengths=np.array([len(example.input_ids)]),
        slots=slots,
        most_predictions=len(example.positions),
        highest_id=int(example.input_ids.max()),
        originals=np.delete(example.original(), example.special_places),
    )


class _Tally:
    """Sums over all examples."""

    def __init__(self) -> None:
        self.slots = 0
        self.most = 0
        self.highest = 0
        self._counts = np.zeros(1, np.int64)  # of each id, special tokens left out

    def add(self, figures: RowFigures) -> None:
        self.slots = max(self.slots, figures.slots)
        self.most = max(self.most, figures.most_predictions)
        added = np.bincount(figures.originals, minlength=len(self._counts))
        added[: len(self._counts)] += self._counts
        self._counts = added
        self.highest = max(self.highest, figures.highest_id, len(added) - 1)

    def entropy(self) -> float:
        shares = self._counts[self._counts > 0] / max(self._counts.sum(), 1)
        return float(-(shares * np.log(shares)).sum())
