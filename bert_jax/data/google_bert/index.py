"""Index of google-research/bert's TFRecords: offset and length of every record, cached."""

import array
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from etils import epath

from bert_jax.data.google_bert.schema import RowStatistics, decode_row, row_statistics
from bert_jax.data.google_bert.tfrecord import scan_records
from bert_jax.errors import UserError
from bert_jax.files.atomic import new_directory
from bert_jax.files.remote import is_remote
from bert_jax.section import Section

_CHECKSUM: Final = "sha256"
_VERSION: Final = 1  # of the cache; other versions are rebuilt
_CHUNK: Final = 256  # records
_LONGEST: Final = 2**16 - 1  # tokens of an example
_CACHE_NAME: Final = ".bert_jax_index"


class FileRecord(Section):
    """A file at the time it was indexed."""

    path: str
    bytes: int
    modified: int  # modification time in nanoseconds since 1970; seconds on remote storage
    records: int


class IndexSummary(Section):
    """Statistics of all records."""

    version: int = _VERSION
    files: tuple[FileRecord, ...]
    fingerprint: str  # hash of the checksums of all records in order: 32 hexadecimal digits
    slots: int  # slots for predictions in a row (`max_predictions_per_seq`)
    most_predictions: int  # most predictions of an example
    highest_id: int
    tokens: int  # special tokens included, padding excluded
    unigram_entropy: float
    """Entropy of the tokens before masking, without special ones, in nats per token."""


class RecordIndex(NamedTuple):
    """Offset and length of each of n records."""

    summary: IndexSummary
    offsets: np.ndarray  # int64 `[n]`: of the record's frame in its file
    lengths: np.ndarray  # uint16 `[n]`: tokens of the example


def load_index(paths: Sequence[epath.Path]) -> RecordIndex:
    """Returns the index of one file or more, in the dataset's order, built unless one is cached.

    Building reads every byte and checks every record. The index is cached beside local files, in a
    directory whose name begins with ``.bert_jax_index``; where that is not writable, and for
    ``gs://``, it is rebuilt each time.

    Raises:
        UserError: a file cannot be read, is damaged or has other content.
    """
    cache = _cache_of(paths)
    if cache is not None and (held := _read(cache, paths)) is not None:
        return held
    index = _build(paths)
    if cache is not None and os.access(cache.parent, os.W_OK):
        with new_directory(cache, force=True) as aside:
            np.save(aside / "offsets.npy", index.offsets)
            np.save(aside / "lengths.npy", index.lengths)
            (aside / "index.json").write_text(index.summary.model_dump_json(indent=1) + "\n")
            (aside / _CHECKSUM).write_text(_checksum(aside))
        # Memory-mapped, so that worker processes share it.
        return _read(cache, paths) or index
    return index


def _cache_of(paths: Sequence[epath.Path]) -> Path | None:
    if any(map(is_remote, paths)):
        return None
    names = "\n".join(path.name for path in paths)
    digest = hashlib.blake2b(names.encode(), digest_size=4).hexdigest()
    return Path(paths[0]).parent / f"{_CACHE_NAME}-{digest}"


def _read(cache: Path, paths: Sequence[epath.Path]) -> RecordIndex | None:
    """Returns the cached index, None if there is none or it is of other files or versions."""
    try:
        if (cache / _CHECKSUM).read_text() != _checksum(cache):
            return None
        summary = IndexSummary.model_validate_json((cache / "index.json").read_text())
        offsets = np.load(cache / "offsets.npy", mmap_mode="r", allow_pickle=False)
        lengths = np.load(cache / "lengths.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):  # pydantic's ValidationError is a ValueError
        return None
    pairs = zip(paths, [file.records for file in summary.files], strict=False)
    found = tuple(_file_record(path, records) for path, records in pairs)
    count = sum(file.records for file in summary.files)
    fits = summary.version == _VERSION and summary.files == found and len(paths) == len(found)
    if not fits or offsets.shape != (count,) or lengths.shape != (count,):
        return None
    return RecordIndex(summary, offsets, lengths)


def _checksum(cache: Path) -> str:
    """Returns the SHA-256 of the files of a cache: a damaged one is made again."""
    digest = hashlib.sha256()
    for name in ("index.json", "offsets.npy", "lengths.npy"):
        with (cache / name).open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _file_record(path: epath.Path, records: int) -> FileRecord:
    if is_remote(path):
        stat = path.stat()
        size, modified = stat.length, int(stat.mtime)
    else:
        found = os.stat(path)
        size, modified = found.st_size, found.st_mtime_ns
    return FileRecord(path=path.name, bytes=size, modified=modified, records=records)


def _build(paths: Sequence[epath.Path]) -> RecordIndex:
    offsets, lengths = array.array("q"), array.array("H")
    digest = hashlib.blake2b(digest_size=16)
    totals = _Totals()
    files = []
    for path in paths:
        before = len(offsets)
        records = scan_records(path)
        while held := list(itertools.islice(records, _CHUNK)):
            payloads = [record.payload for record in held]
            for statistics in _statistics(path, payloads, first=len(offsets) - before + 1):
                lengths.extend(statistics.lengths.tolist())
                totals.add(statistics)
            offsets.extend(record.offset for record in held)
            digest.update(b"".join(record.checksum.to_bytes(4, "little") for record in held))
        files.append(_file_record(path, len(offsets) - before))
    if not offsets:
        raise UserError(f"{paths[0].parent}: found no record in its TFRecords, allowed: some")
    summary = IndexSummary(
        files=tuple(files),
        fingerprint=digest.hexdigest(),
        slots=totals.slots,
        most_predictions=totals.most,
        highest_id=totals.highest,
        tokens=sum(lengths),
        unigram_entropy=unigram_entropy(totals.counts),
    )
    return RecordIndex(summary, np.frombuffer(offsets, np.int64), np.frombuffer(lengths, np.uint16))


def _statistics(
    path: epath.Path, payloads: Sequence[bytes], *, first: int
) -> Iterator[RowStatistics]:
    """Yields the statistics of some rows of a file, of which the first has the number ``first``."""
    found = row_statistics(payloads)
    if found is not None and found.lengths.max() <= _LONGEST:
        yield found
        return
    for number, payload in enumerate(payloads, first):
        try:
            example, slots = decode_row(payload)
            if len(example.input_ids) > _LONGEST:
                raise ValueError(
                    f"found {len(example.input_ids)} tokens, allowed: up to {_LONGEST}"
                )
        except ValueError as error:
            raise UserError(f"{path}: record {number}: {error}") from None
        yield RowStatistics(
            lengths=np.array([len(example.input_ids)]),
            slots=slots,
            most_predictions=len(example.positions),
            highest_id=int(example.input_ids.max()),
            originals=np.delete(example.original(), example.special_positions),
        )


class _Totals:
    """Statistics of all rows so far."""

    def __init__(self) -> None:
        self.slots = 0
        self.most = 0
        self.highest = 0
        self.counts = np.zeros(1, np.int64)  # by id, without special tokens

    def add(self, rows: RowStatistics) -> None:
        self.slots = max(self.slots, rows.slots)
        self.most = max(self.most, rows.most_predictions)
        added = np.bincount(rows.originals, minlength=len(self.counts))
        added[: len(self.counts)] += self.counts
        self.counts = added
        self.highest = max(self.highest, rows.highest_id, len(added) - 1)


def unigram_entropy(counts: np.ndarray) -> float:
    """Returns the entropy of a distribution given by counts, in nats: ``[2, 2] -> 0.6931``."""
    shares = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(shares * np.log(shares)).sum())
