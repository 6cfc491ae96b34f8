"""Tokenised documents in one file, of which any range is read by seeking: also from a bucket.

Not ``.npy`` files: reading the headers of four takes longer than reading a few documents, and a
worker does so for every tokenised part and every bucket of documents.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Final, Literal, cast

import numpy as np
from etils import epath

from bert_jax.files.remote import is_remote

# Magic bytes; documents, sentences, tokens, bytes of a token.
_HEADER: Final = struct.Struct("<8sQQQQ")
_MAGIC: Final = b"bj-docs1"
_WINDOW: Final = 512  # keys that are searched in memory


def write_arrays(file: BinaryIO, arrays: Sequence[np.ndarray]) -> None:
    """Writes the fields of :class:`TokenisedDocuments`, sorted by key, into an empty file."""
    keys, _, sentence_starts, tokens = arrays
    width = tokens.dtype.itemsize
    file.write(_HEADER.pack(_MAGIC, len(keys), len(sentence_starts) - 1, len(tokens), width))
    for array, dtype in zip(arrays, _dtypes(width), strict=True):
        file.write(np.ascontiguousarray(array, dtype).tobytes())


@contextlib.contextmanager
def open_documents(path: epath.PathLike) -> Iterator[DocumentsFile]:
    """Opens a file that :func:`write_arrays` has written.

    Raises:
        ValueError: it is another file.
        EOFError: it is cut short.
    """
    # Python's own open for local files, since it takes half the time.
    with epath.Path(path).open("rb") if is_remote(path) else open(os.fspath(path), "rb") as file:
        yield DocumentsFile(cast(BinaryIO, file))


class DocumentsFile:
    """An open file; only what is asked for is read."""

    def __init__(self, file: BinaryIO) -> None:
        """Reads the header: see :func:`open_documents`."""
        self._file = file
        magic, documents, sentences, tokens, width = _HEADER.unpack(self._bytes(0, _HEADER.size))
        if magic != _MAGIC:
            raise ValueError(f"file begins with {magic!r}, allowed: {_MAGIC!r}")
        self._documents = documents
        self._dtypes = _dtypes(width)
        numbers = (2 * documents, documents + 1, sentences + 1, tokens)
        sizes = (n * dtype.itemsize for n, dtype in zip(numbers, self._dtypes, strict=True))
        self._offsets = list(itertools.accumulate(sizes, initial=_HEADER.size))

    def __len__(self) -> int:
        return self._documents

    def high_keys(self, start: int, stop: int) -> np.ndarray:
        """Returns the high halves of the keys of documents ``start`` to ``stop``, uint64."""
        return self._array(0, 2 * start, 2 * stop)[::2]

    def find(self, high_key: int, *, side: Literal["left", "right"]) -> int:
        """Returns the first document whose key's high half is not below ``high_key``.

        With ``side="right"``, the first whose high half is above it.
        """
        low, high = 0, self._documents
        while high - low > _WINDOW:
            middle = (low + high) // 2
            found = int(self.high_keys(middle, middle + 1)[0])
            if found < high_key or (side == "right" and found == high_key):
                low = middle + 1
            else:
                high = middle
        window = self.high_keys(low, high)
        return low + int(np.searchsorted(window, np.uint64(high_key), side=side))

    def read(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        """Returns the fields of :class:`TokenisedDocuments` of documents ``start`` to ``stop``."""
        documents = self._array(1, start, stop + 1)
        sentences = self._array(2, int(documents[0]), int(documents[-1]) + 1)
        return (
            self._array(0, 2 * start, 2 * stop).reshape(-1, 2),
            documents - documents[0],
            sentences - sentences[0],
            self._array(3, int(sentences[0]), int(sentences[-1])),
        )

    def _array(self, number: int, start: int, stop: int) -> np.ndarray:
        dtype = self._dtypes[number]
        offset, width = self._offsets[number], dtype.itemsize
        return np.frombuffer(self._bytes(offset + start * width, (stop - start) * width), dtype)

    def _bytes(self, offset: int, size: int) -> bytes:
        self._file.seek(offset)
        found = self._file.read(size)
        if len(found) < size:
            raise EOFError(f"documents cut short: {len(found)} bytes at {offset} instead of {size}")
        return found


def _dtypes(width: int) -> tuple[np.dtype, ...]:
    return tuple(map(np.dtype, ("<u8", "<i8", "<i8", f"<u{width}")))
