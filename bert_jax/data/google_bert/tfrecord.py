"""TFRecord files: framing and checksums.

Source: ``tensorflow/core/lib/io/record_writer.h``: uint64 length, uint32 masked CRC-32C of the
length, the bytes, uint32 masked CRC-32C of the bytes; all little-endian.
"""

import os
import struct
import threading
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple, cast

import google_crc32c
from etils import epath

from bert_jax.errors import UserError
from bert_jax.files.read import require_file

_HEADER: Final = struct.Struct("<QI")
_CHECKSUM: Final = struct.Struct("<I")
_GZIP: Final = b"\x1f\x8b"

FRAME_BYTES: Final = _HEADER.size + _CHECKSUM.size  # overhead of a record in bytes


class StoredRecord(NamedTuple):
    """A record and its offset."""

    offset: int  # of its frame, in bytes from the start of the file
    payload: bytes
    checksum: int  # masked CRC-32C of the payload, as stored


def masked_crc(content: bytes) -> int:
    """Returns a TFRecord checksum: CRC-32C, rotated, plus a constant, in 32 bits."""
    crc = google_crc32c.value(content)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame(payload: bytes) -> bytes:
    """Returns a record as stored, `FRAME_BYTES` longer than its payload."""
    length = len(payload).to_bytes(8, "little")
    parts = (length, payload)
    return b"".join(part + _CHECKSUM.pack(masked_crc(part)) for part in parts)


def scan_records(path: epath.Path) -> Iterator[StoredRecord]:
    """Yields every record in order of a file, local or ``gs://``, that is not compressed.

    Raises:
        UserError: the file cannot be read, is truncated or damaged; names the record, counted from
            1.
    """
    require_file(path)
    try:
        size = path.stat().length
        with path.open("rb") as file:
            offset, number = 0, 1
            while offset < size:
                room = size - offset
                record = _read(cast(BinaryIO, file), path, offset=offset, room=room, number=number)
                yield record
                offset += FRAME_BYTES + len(record.payload)
                number += 1
    except OSError as error:
        raise _unreadable(path, error) from error


class RecordFile:
    """Random access to the records of one file by offset. Thread-safe."""

    def __init__(self, path: epath.Path) -> None:
        """Opens the file; UserError if it cannot be read."""
        self._path = path
        self._lock = threading.Lock()
        require_file(path)
        try:
            self._size = path.stat().length
            self._file = cast(BinaryIO, path.open("rb"))
        except OSError as error:
            raise _unreadable(path, error) from error

    def read(self, offset: int, *, number: int) -> bytes:
        """Returns a record's payload, checked.

        ``offset`` is that of its frame; messages name its ``number`` in the file, from 1.

        Raises:
            UserError: the file has changed or is damaged.
        """
        room = self._size - offset
        try:
            with self._lock:
                self._file.seek(offset)
                return _read(
                    self._file, self._path, offset=offset, room=room, number=number
                ).payload
        except OSError as error:
            raise _unreadable(self._path, error) from error

    def close(self) -> None:
        """Closes the file."""
        if (file := getattr(self, "_file", None)) is not None:  # None if opening it failed
            file.close()

    __del__ = close


def _read(file: BinaryIO, path: epath.Path, *, offset: int, room: int, number: int) -> StoredRecord:
    """Reads the record at the file's position, ``room`` bytes before its end."""
    header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise _damaged(path, number, "cut short")
    length, checksum = _HEADER.unpack(header)
    if masked_crc(header[:8]) != checksum:
        if offset == 0 and header.startswith(_GZIP):
            raise UserError(f"{path}: found a gzip file, allowed: TFRecords without compression")
        # Checked first: in another format the length would be arbitrary.
        raise _damaged(path, number, "the checksum of its length does not match")
    if length + FRAME_BYTES > room:
        raise _damaged(path, number, "cut short")
    payload = file.read(length)
    footer = file.read(_CHECKSUM.size)
    if len(payload) + len(footer) < length + _CHECKSUM.size:
        raise _damaged(path, number, "cut short")
    (checksum,) = _CHECKSUM.unpack(footer)
    if masked_crc(payload) != checksum:
        raise _damaged(path, number, "the checksum of its bytes does not match")
    return StoredRecord(offset, payload, checksum)


def _damaged(path: epath.Path, number: int, found: str) -> UserError:
    return UserError(f"{path}: record {number}: damaged ({found}), allowed: a whole TFRecord file")


def _unreadable(path: epath.Path, error: OSError) -> UserError:
    reason = os.strerror(error.errno).lower() if error.errno else error
    return UserError(f"{path}: cannot be read ({reason})")
