"""TFRecord files: framing and checksums.

A record is a uint64 length, the uint32 masked CRC-32C of the length, the payload, and the uint32
masked CRC-32C of the payload, all little-endian. Source:
``tensorflow/core/lib/io/record_writer.h``.
"""

import os
import struct
import threading
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import google_crc32c
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.read import require_file

_HEADER: Final = struct.Struct("<QI")
_CHECKSUM: Final = struct.Struct("<I")
_GZIP: Final = b"\x1f\x8b"

FRAME_BYTES: Final = _HEADER.size + _CHECKSUM.size  # bytes of a record besides its payload


class StoredRecord(NamedTuple):
    """A record and its place in the file."""

    offset: int  # offset of the record's frame, in bytes from the start of the file
    payload: bytes
    checksum: int  # masked CRC-32C of the payload, as stored


def masked_crc(content: bytes) -> int:
    """Returns the masked CRC-32C: the CRC, rotated, plus a constant, modulo 2**32."""
    crc = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """Returns a record as stored, `FRAME_BYTES` longer than its payload."""
    length = len(payload).to_bytes(8, "little")
    return b"".join(part + _CHECKSUM.pack(masked_crc(part)) for part in (length, payload))


def scan_records(path: epath.Path) -> Iterator[StoredRecord]:
    """Yields every record of a file in order. Raises UserError as `RecordFile` does."""
    file = RecordFile(path)
    offset, number = 0, 1
    while offset < file.size:
        record = file.read(offset, number=number)
        yield record
        offset += FRAME_BYTES + len(record.payload)
        number += 1


class RecordFile:
    """Thread-safe random access to the records of an uncompressed file, local or ``gs://``."""

    def __init__(self, path: epath.Path) -> None:
        """Opens the file. Raises UserError if it cannot be read."""
        require_file(path)
        self._path, self._lock = path, threading.Lock()
        try:
            self.size = path.stat().length  # bytes
            self._file: Any = path.open("rb")
        except OSError as error:
            raise self._unreadable(error) from error

    def __del__(self) -> None:
        if hasattr(self, "_file"):  # absent if opening the file failed
            self._file.close()

    def read(self, offset: int, *, number: int) -> StoredRecord:
        """Returns the record whose frame is at ``offset``.

        ``number`` is the record's number from 1, for messages. Raises UserError if the file cannot
        be read, or if the record is truncated or damaged.
        """
        try:
            with self._lock:
                self._file.seek(offset)
                header = self._file.read(_HEADER.size)
                length = self._length(header, offset, number)
                payload = self._file.read(length)
                footer = self._file.read(_CHECKSUM.size)
        except OSError as error:
            raise self._unreadable(error) from error
        if len(footer) < _CHECKSUM.size:
            raise self._cut_short(number)
        (checksum,) = _CHECKSUM.unpack(footer)
        if masked_crc(payload) != checksum:
            raise self._damaged(number, "bytes")
        return StoredRecord(offset, payload, checksum)

    def _length(self, header: bytes, offset: int, number: int) -> int:
        if len(header) < _HEADER.size:
            raise self._cut_short(number)
        length, checksum = _HEADER.unpack(header)
        if masked_crc(header[:8]) != checksum:
            if offset == 0 and header.startswith(_GZIP):
                raise UserError(
                    "tfrecord.gzip",
                    "found a gzip file, allowed: TFRecords without compression",
                    place=self._path,
                )
            # Check before using the length: a file of another format has an arbitrary length here.
            raise self._damaged(number, "length")
        if length + FRAME_BYTES > self.size - offset:
            raise self._cut_short(number)
        return length

    def _cut_short(self, number: int) -> UserError:
        return UserError(
            "tfrecord.cut_short",
            "the file ends within this record. Copy the file again.",
            place=f"{self._path}: record {number}",
        )

    def _damaged(self, number: int, part: str) -> UserError:
        return UserError(
            "tfrecord.checksum",
            f"damaged: the checksum of its {part} does not match. Copy the file again.",
            place=f"{self._path}: record {number}",
        )

    def _unreadable(self, error: OSError) -> UserError:
        reason = os.strerror(error.errno).lower() if error.errno else error
        return UserError("file.unreadable", f"cannot be read ({reason})", place=self._path)
