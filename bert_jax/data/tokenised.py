"""Tokenised documents as four flat arrays, in memory and on disk."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import pathlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import numpy as np
from etils import epath

from bert_jax.data.array_file import open_array


@dataclasses.dataclass(frozen=True, eq=False)
class TokenisedDocuments:
    """Documents, each a list of sentences, each a list of token ids, laid end to end.

    Sentence ``s`` is ``tokens[sentence_starts[s]:sentence_starts[s + 1]]``; document ``d`` holds
    the sentences ``document_starts[d]`` to ``document_starts[d + 1]``. No sentence and no document
    is empty.
    """

    keys: np.ndarray
    """``[d, 2]`` uint64: each document's 128-bit key, the high half first."""
    document_starts: np.ndarray
    """``[d + 1]`` int64, in sentences."""
    sentence_starts: np.ndarray
    """``[s + 1]`` int64, in tokens."""
    tokens: np.ndarray
    """``[t]`` uint16 or uint32."""

    def __len__(self) -> int:
        return len(self.keys)

    def select(self, documents: Sequence[int] | np.ndarray) -> TokenisedDocuments:
        """Returns the given documents in the given order."""
        documents = np.asarray(documents, np.int64)
        sentences = _ranges(self.document_starts, documents)
        lengths = np.diff(self.sentence_starts)[sentences]
        # A document's tokens are one stretch, so they move as one.
        first = self.sentence_starts[self.document_starts[documents]]
        last = self.sentence_starts[self.document_starts[documents + 1]]
        pieces = [self.tokens[a:b] for a, b in zip(first.tolist(), last.tolist(), strict=True)]
        return TokenisedDocuments(
            self.keys[documents],
            _starts(np.diff(self.document_starts)[documents]),
            _starts(lengths),
            np.concatenate([self.tokens[:0], *pieces]),
        )

    def save(self, directory: pathlib.Path) -> None:
        """Writes one ``.npy`` file per array into a directory, which is made."""
        directory.mkdir()
        for field in dataclasses.fields(self):
            save_array(directory / f"{field.name}.npy", getattr(self, field.name))

    @classmethod
    def load(
        cls, directory: epath.PathLike, *, first_key: int = 0, last_key: int = 2**64 - 1
    ) -> TokenisedDocuments:
        """Reads documents that :meth:`save` has written; no others are read, nor kept in memory.

        Args:
            directory: of documents that are sorted by key.
            first_key: high half of the first key.
            last_key: high half of the last key, which is included.
        """
        with contextlib.ExitStack() as files:
            keys, documents, sentences, tokens = (
                files.enter_context(open_array(epath.Path(directory) / f"{field.name}.npy"))
                for field in dataclasses.fields(cls)
            )
            start = bisect_left(keys, first_key, key=_high_half)
            stop = bisect_right(keys, last_key, start, key=_high_half)
            document_starts = documents.read(start, stop + 1)
            sentence_starts = sentences.read(int(document_starts[0]), int(document_starts[-1]) + 1)
            return cls(
                keys.read(start, stop),
                document_starts - document_starts[0],
                sentence_starts - sentence_starts[0],
                tokens.read(int(sentence_starts[0]), int(sentence_starts[-1])),
            )


def load_high_keys(directories: Sequence[epath.PathLike]) -> np.ndarray:
    """Returns the high halves of the keys of all documents, sorted: 8 bytes of memory for each.

    Args:
        directories: what :meth:`TokenisedDocuments.save` has written.
    """
    paths = [epath.Path(directory) / "keys.npy" for directory in directories]
    sizes = [_length(path) for path in paths]
    high = np.empty(sum(sizes), np.uint64)
    filled = 0
    for path, size in zip(paths, sizes, strict=True):
        with open_array(path) as keys:
            high[filled : filled + size] = keys.read(0, size)[:, 0]
        filled += size
    high.sort()
    return high


def from_lists(
    keys: Iterable[int], documents: Iterable[Sequence[Sequence[int]]], dtype: np.dtype
) -> TokenisedDocuments:
    """Lays documents end to end: ``[[[7, 8], [9]]] -> tokens [7, 8, 9]``.

    Args:
        keys: a 128-bit key per document.
        documents: sentences of ids; none may be empty.
        dtype: of the tokens.
    """
    held = list(documents)
    sentences = [sentence for document in held for sentence in document]
    return TokenisedDocuments(
        split_keys(keys),
        _starts([len(document) for document in held]),
        _starts([len(sentence) for sentence in sentences]),
        np.array([token for sentence in sentences for token in sentence], dtype),
    )


def concatenate(parts: Sequence[TokenisedDocuments]) -> TokenisedDocuments:
    """Returns the documents of all parts (at least one part) in order."""
    return TokenisedDocuments(
        np.concatenate([part.keys for part in parts]),
        _starts(np.concatenate([np.diff(part.document_starts) for part in parts])),
        _starts(np.concatenate([np.diff(part.sentence_starts) for part in parts])),
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


def _length(path: epath.Path) -> int:
    with open_array(path) as array:
        return len(array)


def _high_half(key: np.ndarray) -> int:
    return int(key[0])


def _starts(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(lengths, np.int64))])


def _ranges(starts: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Returns the ranges' members: ``starts [0, 2, 5], chosen [1, 0] -> [2, 3, 4, 0, 1]``."""
    lengths = starts[chosen + 1] - starts[chosen]
    ends = np.cumsum(lengths)
    within = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - lengths, lengths)
    return np.repeat(starts[chosen], lengths) + within
