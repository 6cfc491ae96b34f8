"""Token sequences to rows, rows to a batch: assembling, padding and stacking."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_jax.task import HostBatch, Row
from bert_jax.text.tokenizer import Tokenizer
from bert_jax.text.vocabulary import SpecialIds

_TEXTS_AT_ONCE: Final = 10_000


class Ragged:
    """Sequences of unequal length, one after the other: ``[[7, 8], [], [9]]``.

    A list of Python integers takes ten times the room.
    """

    def __init__(self, sequences: Iterable[Sequence[int] | np.ndarray]) -> None:
        """Takes the sequences over, which are read once."""
        ends = [0]
        parts: list[np.ndarray] = []
        for sequence in sequences:
            parts.append(np.asarray(sequence, np.int32))
            ends.append(ends[-1] + len(sequence))
        self._flat = np.concatenate([np.zeros(0, np.int32), *parts])
        self.offsets = np.asarray(ends, np.int64)  # where each begins, and the end: [sequences + 1]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.between(index, index + 1)

    def between(self, first: int, end: int) -> np.ndarray:
        """Returns the sequences from `first` up to `end` joined to one: int32."""
        return self._flat[self.offsets[first] : self.offsets[end]]


def encode_ragged(tokenizer: Tokenizer, texts: Iterable[str]) -> Ragged:
    """Returns the pieces of each text, without special ones; the texts are read once."""
    iterator = iter(texts)  # itertools.batched came with Python 3.12
    batches = iter(lambda: list(itertools.islice(iterator, _TEXTS_AT_ONCE)), [])
    return Ragged(itertools.chain.from_iterable(map(tokenizer.encode_batch, batches)))


class Assembled(NamedTuple):
    """``[CLS] A [SEP]`` or ``[CLS] A [SEP] B [SEP]``, unpadded."""

    ids: list[int]
    second: int  # index of B's first token; the length if there is no B
    cut: bool  # whether tokens were dropped


def assemble(
    first: Sequence[int], second: Sequence[int] | None, special: SpecialIds, *, max_length: int
) -> Assembled:
    """Joins token sequences; the longer of two loses its last token until both fit.

    ``assemble([7, 8], [9], special, max_length=8)`` → ``[CLS] 7 8 [SEP] 9 [SEP]``, second = 4

    ``max_length`` counts special tokens too. Source: `_truncate_seq_pair` in google-research/bert
    `run_classifier.py`.
    """
    others = [] if second is None else list(second)
    room = max_length - (2 if second is None else 3)
    keep_first = max(room - len(others), min(len(first), -(-room // 2)))
    keep_first = min(keep_first, len(first), room)
    keep_second = min(len(others), room - keep_first)
    cut = keep_first < len(first) or keep_second < len(others)
    ids = [special.cls, *first[:keep_first], special.sep]
    start = len(ids)
    if second is not None:
        ids += [*others[:keep_second], special.sep]
    return Assembled(ids, start, cut)


def pad_rows(
    values: Sequence[Sequence[float] | np.ndarray], *, batch_size: int, length: int, fill: int = 0
) -> np.ndarray:
    """Pads sequences of different lengths: ``[[7, 8], [9]]``, 3, 2 -> ``[[7, 8], [9, 0], [0, 0]]``.

    Missing rows hold ``fill`` alone. Returns int32 ``[batch_size, length]``.
    """
    padded = np.full((batch_size, length), fill, np.int32)
    for row, value in zip(padded[: len(values)], values, strict=True):
        row[: len(value)] = value
    return padded


def collate_tokens(
    sequences: Sequence[Sequence[int] | np.ndarray],
    seconds: Sequence[int] | None = None,
    *,
    batch_size: int,
    length: int,
    pad_id: int,
) -> Row:
    """Pads token sequences to what the model reads; missing rows are padding only.

    ``[[2, 7, 3, 8, 3]]``, seconds ``[3]``, length 6, pad 0 -> ``input_ids [[2, 7, 3, 8, 3, 0]]``,
    ``token_type_ids [[0, 0, 0, 1, 1, 0]]``, ``segment_ids [[1, 1, 1, 1, 1, 0]]``, each int32
    ``[batch_size, length]``. For several sequences per row (multiple choice), pass them all in
    order and reshape the result.

    At most ``batch_size`` sequences, with their special tokens, none longer than ``length``;
    ``seconds`` is the index of the first token of each second span, the sequence's length where
    there is none, and None if no sequence has one.
    """
    sizes = np.zeros((batch_size, 1), np.int64)
    sizes[: len(sequences), 0] = [len(sequence) for sequence in sequences]
    starts = sizes.copy()
    if seconds is not None:
        starts[: len(sequences), 0] = seconds
    at = np.arange(length)
    return {
        "input_ids": pad_rows(sequences, batch_size=batch_size, length=length, fill=pad_id),
        "token_type_ids": ((at >= starts) & (at < sizes)).astype(np.int32),
        "segment_ids": (at < sizes).astype(np.int32),
    }


def stack_rows(rows: Sequence[Row], *, batch_size: int, like: Row | None = None) -> Row:
    """Stacks rows of equal shapes: three of ``{"input_ids": [L]}``, 4 -> ``{"input_ids": [4, L]}``.

    Missing rows are zeros: no token (``segment_ids`` 0) and no weight, so that they do not enter
    any sum. At most ``batch_size`` rows have the same names, shapes and dtypes; without any,
    ``like`` is a row that has them. Returns arrays ``[batch_size, *shape]`` by name.
    """
    batch = {}
    for name, first in (rows[0] if like is None else like).items():
        batch[name] = stacked = np.zeros((batch_size, *first.shape), first.dtype)
        if rows:
            np.stack([row[name] for row in rows], out=stacked[: len(rows)])
    return batch


def count_tokens(batch: HostBatch) -> int:
    """Returns the tokens of a batch without padding: positions whose ``segment_ids`` exceed 0."""
    return int(np.count_nonzero(batch["segment_ids"]))
