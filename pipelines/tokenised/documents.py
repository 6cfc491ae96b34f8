"""Tokenised documents as four flat arrays, in memory and on disk."""

from __future__ import annotations

import dataclasses
import io
import pathlib
from collections.abc import Iterable, Sequence

import numpy as np
from etils import epath

from bert_jax.pipelines.tokenised.documents_file import open_documents, write_arrays


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
