"""Tokenised documents as four flat arrays, in memory and on disk."""

from __future__ import annotations

import array
import bisect
import contextlib
import dataclasses
import io
import itertools
import os
import pathlib
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, Final, cast

import numpy as np
from etils import epath

from bert_jax.data.rng import digest128
from bert_jax.files.remote import is_remote

# One file with its own header, because reading the headers of four NumPy files takes longer than
# reading a few documents. The header has magic bytes, then the numbers of documents, sentences,
# tokens, and bytes per token.
_HEADER: Final = struct.Struct("<8sQQQQ")
_MAGIC: Final = b"bj-docs1"


class DocumentsFile:
    """Reads ranges of documents from a file that :meth:`TokenisedDocuments.save` wrote."""

    def __init__(self, file: BinaryIO) -> None:
        """Reads the header.

        Raises ValueError if the file has another format, and EOFError if it is truncated.
        """
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
        """Returns the high halves of the keys of documents ``start`` to ``stop``: uint64."""
        return self._array(0, 2 * start, 2 * stop)[::2]

    def between(self, first_key: int, last_key: int) -> tuple[int, int]:
        """Returns the start and stop index of the documents in a range of keys.

        ``first_key`` and ``last_key`` are high halves of keys, both inclusive.
        """
        numbers = range(len(self))

        def high_key(at: int) -> int:
            return int(self.high_keys(at, at + 1)[0])

        start = bisect.bisect_left(numbers, first_key, key=high_key)
        return start, bisect.bisect_right(numbers, last_key, start, key=high_key)

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


@contextlib.contextmanager
def open_documents(path: epath.PathLike) -> Iterator[DocumentsFile]:
    """Opens a file that :meth:`TokenisedDocuments.save` wrote. See `DocumentsFile` for errors."""
    # Local files are opened with Python's own `open`, which takes half the time of epath's.
    with epath.Path(path).open("rb") if is_remote(path) else open(os.fspath(path), "rb") as file:
        yield DocumentsFile(cast(BinaryIO, file))


def _dtypes(width: int) -> tuple[np.dtype, ...]:
    return tuple(map(np.dtype, ("<u8", "<i8", "<i8", f"<u{width}")))


@dataclasses.dataclass(frozen=True, eq=False)
class TokenisedDocuments:
    """Concatenated token ids of documents, with the starts of documents and sentences.

    Sentence ``s`` is ``tokens[sentence_starts[s]:sentence_starts[s + 1]]``. Document ``d`` has the
    sentences ``document_starts[d]`` to ``document_starts[d + 1]``. Every sentence has a token.
    """

    keys: np.ndarray  # 128-bit key per document, high half first: `[d, 2]` uint64
    document_starts: np.ndarray  # index of each document's first sentence: `[d + 1]` int64
    sentence_starts: np.ndarray  # index of each sentence's first token: `[s + 1]` int64
    tokens: np.ndarray  # token ids: `[t]` uint16 or uint32

    def __len__(self) -> int:
        return len(self.keys)

    def select(self, documents: Sequence[int] | np.ndarray) -> TokenisedDocuments:
        """Returns the given documents in the given order."""
        documents = np.asarray(documents, np.int64)
        starts, stops = self.document_starts[documents], self.document_starts[documents + 1]
        lengths = _ranges(np.diff(self.sentence_starts), starts, stops)
        tokens = _ranges(self.tokens, self.sentence_starts[starts], self.sentence_starts[stops])
        return TokenisedDocuments(
            self.keys[documents], starts_of(stops - starts), starts_of(lengths), tokens
        )

    def save(self, path: pathlib.Path) -> None:
        """Writes the documents, which must be sorted by key, to a new file."""
        arrays = (self.keys, self.document_starts, self.sentence_starts, self.tokens)
        width = self.tokens.dtype.itemsize
        sentences = len(self.sentence_starts) - 1
        with path.open("xb") as file:
            file.write(_HEADER.pack(_MAGIC, len(self), sentences, len(self.tokens), width))
            for held, dtype in zip(arrays, _dtypes(width), strict=True):
                file.write(np.ascontiguousarray(held, dtype).tobytes())

    @classmethod
    def load(
        cls, path: epath.PathLike, *, first_key: int = 0, last_key: int = 2**64 - 1
    ) -> TokenisedDocuments:
        """Reads only the documents in a range of keys from a file that :meth:`save` wrote.

        ``first_key`` and ``last_key`` are high halves of keys, both inclusive.
        """
        with open_documents(path) as file:
            return cls(*file.read(*file.between(first_key, last_key)))


def load_high_keys(paths: Sequence[epath.PathLike]) -> np.ndarray:
    """Returns the sorted high halves of the keys of all documents, 8 bytes of memory each."""
    held = array.array("Q")
    for path in paths:
        with open_documents(path) as file:
            held.frombytes(file.high_keys(0, len(file)).tobytes())
    high = np.asarray(held)  # shares the memory of `held`
    high.sort()
    return high


def concatenate(parts: Sequence[TokenisedDocuments]) -> TokenisedDocuments:
    """Returns the documents of all parts in order. There must be at least one part."""
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
    """Returns one row of :func:`split_keys` as an integer."""
    return int(halves[0]) << 64 | int(halves[1])


def key_order(keys: np.ndarray) -> np.ndarray:
    """Returns the indices that sort ``[n, 2]`` keys."""
    return np.lexsort((keys[:, 1], keys[:, 0]))


def save_array(path: pathlib.Path, array: np.ndarray) -> None:
    """Writes a ``.npy`` file. `np.save` would lose the ``errno`` of a full disk."""
    path.write_bytes(array_bytes(array))


def array_bytes(array: np.ndarray) -> bytes:
    """Returns the bytes of an array's ``.npy`` file."""
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def starts_of(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns the starts and the end of consecutive ranges: ``[2, 3] -> [0, 2, 5]``, int64."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(lengths, np.int64))])


def _ranges(array: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    pieces = (array[a:b] for a, b in zip(starts.tolist(), stops.tolist(), strict=True))
    return np.concatenate([array[:0], *pieces])


def is_validation(identity: str, *, fraction: float) -> bool:
    """Returns whether a document is in the validation split. This depends on its id alone."""
    return digest128(0, "validation", identity) < fraction * 2**128
