"""Tokenised documents as four flat arrays, in memory and on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import os
import pathlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, Final, Literal, cast

import numpy as np
from etils import epath

from bert_jax.files.remote import is_remote

# Not ``.npy`` files: reading the headers of four takes longer than reading a few documents, and a
# worker does so for every tokenised part and every bucket of documents. The file's header: magic
# bytes; documents, sentences, tokens, bytes of a token.
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
    """Opens a file of :func:`write_arrays`; ValueError: another file; EOFError: it is cut short."""
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


@dataclasses.dataclass(frozen=True, eq=False)
class TokenisedDocuments:
    """Documents, each a list of sentences, each a list of token ids, concatenated.

    Sentence ``s`` is ``tokens[sentence_starts[s]:sentence_starts[s + 1]]``; document ``d`` holds
    the sentences ``document_starts[d]`` to ``document_starts[d + 1]``. No sentence and no document
    is empty.
    """

    keys: np.ndarray  # `[d, 2]` uint64: each document's 128-bit key, the high half first
    document_starts: np.ndarray  # `[d + 1]` int64, in sentences
    sentence_starts: np.ndarray  # `[s + 1]` int64, in tokens
    tokens: np.ndarray  # `[t]` uint16 or uint32

    def __len__(self) -> int:
        return len(self.keys)

    def select(self, documents: Sequence[int] | np.ndarray) -> TokenisedDocuments:
        """Returns the given documents in the given order."""
        documents = np.asarray(documents, np.int64)
        sentences = _ranges(self.document_starts, documents)
        lengths = np.diff(self.sentence_starts)[sentences]
        # A document's tokens are contiguous, so they move together.
        first = self.sentence_starts[self.document_starts[documents]]
        last = self.sentence_starts[self.document_starts[documents + 1]]
        pieces = [self.tokens[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True)]
        return TokenisedDocuments(
            self.keys[documents],
            starts_of(np.diff(self.document_starts)[documents]),
            starts_of(lengths),
            np.concatenate([self.tokens[:0], *pieces]),
        )

    def save(self, path: pathlib.Path) -> None:
        """Writes documents that are sorted by key into a new file."""
        with path.open("xb") as file:
            write_arrays(file, (self.keys, self.document_starts, self.sentence_starts, self.tokens))

    @classmethod
    def load(
        cls, path: epath.PathLike, *, first_key: int = 0, last_key: int = 2**64 - 1
    ) -> TokenisedDocuments:
        """Reads the documents of a range of keys from a file of :meth:`save`, and no others.

        ``first_key`` and ``last_key``, both inclusive, are high halves of keys.
        """
        with open_documents(path) as file:
            start, stop = file.find(first_key, side="left"), file.find(last_key, side="right")
            return cls(*file.read(start, max(start, stop)))


def load_high_keys(paths: Sequence[epath.PathLike]) -> np.ndarray:
    """Returns the high halves of the keys of all documents, sorted: 8 bytes of memory for each."""
    sizes = [_length(path) for path in paths]
    high = np.empty(sum(sizes), np.uint64)
    filled = 0
    for path, size in zip(paths, sizes, strict=True):
        with open_documents(path) as file:
            high[filled : filled + size] = file.high_keys(0, size)
        filled += size
    high.sort()
    return high


def concatenate(parts: Sequence[TokenisedDocuments]) -> TokenisedDocuments:
    """Returns the documents of all parts (at least one part) in order."""
    return TokenisedDocuments(
        np.concatenate([part.keys for part in parts]),
        starts_of(np.concatenate([np.diff(part.document_starts) for part in parts])),
        starts_of(np.concatenate([np.diff(part.sentence_starts) for part in parts])),
        np.concatenate([part.tokens for part in parts]),
    )


def split_keys(keys: Iterable[int]) -> np.ndarray:
    """Returns 128-bit keys as ``[n, 2]`` uint64, the high half first."""
    raw = b"".join(key.to_bytes(16, "big") for key in keys)
    return np.frombuffer(raw, ">u8").astype(np.uint64).reshape(-1, 2)


def join_key(halves: np.ndarray) -> int:
    """Returns one row of :func:`split_keys` as a number."""
    return int(halves[0]) << 64 | int(halves[1])


def key_order(keys: np.ndarray) -> np.ndarray:
    """Returns the order that sorts ``[n, 2]`` keys."""
    return np.lexsort((keys[:, 1], keys[:, 0]))


def save_array(path: pathlib.Path, array: np.ndarray) -> None:
    """Writes a ``.npy`` file.

    By way of memory, since ``np.save`` into a file drops the reason (``errno``) when the disk is
    full.
    """
    path.write_bytes(array_bytes(array))


def array_bytes(array: np.ndarray) -> bytes:
    """Returns an array as a ``.npy`` file has it."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _length(path: epath.PathLike) -> int:
    with open_documents(path) as file:
        return len(file)


def starts_of(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns int64 starts and the end of ranges with these lengths: ``[2, 3] -> [0, 2, 5]``."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(lengths, np.int64))])


def _ranges(starts: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Returns the ranges' members: ``starts [0, 2, 5], chosen [1, 0] -> [2, 3, 4, 0, 1]``."""
    lengths = starts[chosen + 1] - starts[chosen]
    ends = np.cumsum(lengths)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    return np.repeat(starts[chosen], lengths) + within
