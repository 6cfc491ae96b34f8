"""Index of google-research/bert's TFRecords: offset and length of every record, cached."""

import array
import hashlib
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from etils import epath

from bert_jax.data.google_bert.schema import TOGETHER, decode_rows
from bert_jax.data.google_bert.tfrecord import scan_records
from bert_jax.errors import UserError
from bert_jax.files.atomic import new_directory
from bert_jax.files.read import sha256_of_files
from bert_jax.files.remote import file_state, is_remote
from bert_jax.section import Section

_CHECKSUM: Final = "sha256"
_VERSION: Final = 1  # version of the cached index; an index of another version is rebuilt
_CACHE_NAME: Final = ".bert_jax_index"


class FileRecord(Section):
    """State of a file when it was indexed."""

    path: str  # name of the file without its directory
    bytes: int
    modified: int  # modification time since 1970, in nanoseconds; in a bucket, in seconds
    records: int


class IndexSummary(Section):
    """Statistics of all records."""

    version: int = _VERSION
    files: tuple[FileRecord, ...]
    fingerprint: str  # hash of the checksums of all records in order: 32 hexadecimal digits
    slots: int  # number of prediction slots in a row (`max_predictions_per_seq`)
    most_predictions: int  # maximum number of predictions in an example
    highest_id: int
    tokens: int  # number of tokens, with special tokens and without padding
    # Entropy of the token frequencies before masking, without special tokens, in nats per token.
    unigram_entropy: float


class RecordIndex(NamedTuple):
    """Offsets and lengths of n records."""

    summary: IndexSummary
    offsets: np.ndarray  # offset of each record's frame in its file, int64 `[n]`
    lengths: np.ndarray  # number of tokens of each example, uint16 `[n]`


def load_index(paths: Sequence[epath.Path]) -> RecordIndex:
    """Returns the index of all records of one or more files, in the dataset's order.

    Building the index reads every byte and checks every record. The index of local files is cached
    beside them, in a directory whose name begins with ``.bert_jax_index``. The index of ``gs://``
    files, and of files in a read-only directory, is rebuilt each time. Raises UserError if a file
    cannot be read, is damaged, or has records of another kind.
    """
    names = "\n".join(path.name for path in paths)
    digest = hashlib.blake2b(names.encode(), digest_size=4).hexdigest()
    local = not any(map(is_remote, paths))
    cache = Path(paths[0]).parent / f"{_CACHE_NAME}-{digest}" if local else None
    if cache is not None and (cached := _read(cache, paths)) is not None:
        return cached
    index = _build(paths)
    if cache is not None and os.access(cache.parent, os.W_OK):
        with new_directory(cache, force=True, ours=lambda _: ("*",)) as aside:
            np.save(aside / "offsets.npy", index.offsets)
            np.save(aside / "lengths.npy", index.lengths)
            (aside / "index.json").write_text(index.summary.model_dump_json(indent=1) + "\n")
            (aside / _CHECKSUM).write_text(_checksum(aside))
        # Read again as a memory map, which worker processes share.
        return _read(cache, paths) or index
    return index


def _read(cache: Path, paths: Sequence[epath.Path]) -> RecordIndex | None:
    """Returns the cached index. If it is missing, damaged or out of date, returns None."""
    try:
        if (cache / _CHECKSUM).read_text() != _checksum(cache):
            return None
        summary = IndexSummary.model_validate_json((cache / "index.json").read_text())
        offsets, lengths = (
            np.load(cache / name, mmap_mode="r", allow_pickle=False)
            for name in ("offsets.npy", "lengths.npy")
        )
    except (OSError, ValueError, EOFError, UserError):  # pydantic raises ValueError
        return None
    records = [file.records for file in summary.files]
    if summary.version != _VERSION or len(records) != len(paths):
        return None
    if summary.files != tuple(map(_file_record, paths, records)):
        return None
    return RecordIndex(summary, offsets, lengths)


def _checksum(cache: Path) -> str:
    """Returns the SHA-256 of the files of a cached index."""
    return sha256_of_files(
        {name: cache / name for name in ("index.json", "offsets.npy", "lengths.npy")}
    )


def _file_record(path: epath.Path, records: int) -> FileRecord:
    return FileRecord(path=path.name, records=records, **file_state(path)._asdict())


def _build(paths: Sequence[epath.Path]) -> RecordIndex:
    offsets, lengths = array.array("q"), array.array("H")
    digest = hashlib.blake2b(digest_size=16)
    slots = most = highest = 0
    counts = np.zeros(1, np.int64)  # number of tokens before masking, by id
    files = []
    for path in paths:
        before, name, records = len(offsets), str(path), scan_records(path)
        while stored := list(itertools.islice(records, TOGETHER)):
            first = len(offsets) - before + 1
            places = [f"{name}: record {number}" for number in range(first, first + len(stored))]
            for rows in decode_rows([record.payload for record in stored], places):
                lengths.extend(rows.lengths.tolist())
                slots = max(slots, rows.slots)
                most = max(most, int(rows.counts.max()))
                highest = max(highest, rows.highest_id)
                added = np.bincount(rows.originals(), minlength=len(counts))
                added[: len(counts)] += counts
                counts = added
            offsets.extend(record.offset for record in stored)
            digest.update(b"".join(record.checksum.to_bytes(4, "little") for record in stored))
        files.append(_file_record(path, len(offsets) - before))
    if not offsets:
        raise UserError(
            "tfrecord.no_records",
            "found no record in the TFRecords, allowed: at least one",
            place=paths[0].parent,
        )
    summary = IndexSummary(
        files=tuple(files),
        fingerprint=digest.hexdigest(),
        slots=slots,
        most_predictions=most,
        highest_id=max(highest, len(counts) - 1),
        tokens=sum(lengths),
        unigram_entropy=unigram_entropy(counts),
    )
    return RecordIndex(summary, np.frombuffer(offsets, np.int64), np.frombuffer(lengths, np.uint16))


def unigram_entropy(counts: np.ndarray) -> float:
    """Returns the entropy of frequencies, in nats: counts ``[2, 2] -> 0.6931``."""
    shares = counts[counts > 0] / max(counts.sum(), 1)
    return float(-(shares * np.log(shares)).sum())
