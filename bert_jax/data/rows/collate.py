"""Assembles token sequences into rows, pads them, and stacks rows into a batch."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_jax.task import HostBatch, Row
from bert_jax.text.tokenizer import Tokenizer

_TEXTS_AT_ONCE: Final = 10_000


class Ragged:
    """Sequences of unequal length, ``[[7, 8], [], [9]]``, stored in one array.

    Lists of Python integers would need ten times the memory.
    """

    def __init__(self, sequences: Iterable[Sequence[int] | np.ndarray]) -> None:
        """Copies the sequences in one pass."""
        ends = [0]
        parts: list[np.ndarray] = []
        for sequence in sequences:
            parts.append(np.asarray(sequence, np.int32))
            ends.append(ends[-1] + len(sequence))
        self._flat = np.concatenate([np.zeros(0, np.int32), *parts])
        # Start offset of each sequence in `_flat`, then the end of the last; [sequences + 1].
        self.offsets = np.asarray(ends, np.int64)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        return self.between(index, index + 1)

    def between(self, first: int, end: int) -> np.ndarray:
        """Returns the sequences `first` to `end` − 1, concatenated into one int32 array."""
        return self._flat[self.offsets[first] : self.offsets[end]]


def encode_ragged(tokenizer: Tokenizer, texts: Iterable[str]) -> Ragged:
    """Returns the token ids of each text, without special tokens. The texts are read once."""
    iterator = iter(texts)  # Python 3.11 has no itertools.batched
    batches = iter(lambda: list(itertools.islice(iterator, _TEXTS_AT_ONCE)), [])
    return Ragged(itertools.chain.from_iterable(map(tokenizer.encode_batch, batches)))


def special_tokens(tokenizer: Tokenizer, *, pair: bool) -> int:
    """Returns the number of special tokens in a row of one text, or of a pair."""
    return 2 + pair * tokenizer.separators


class Assembled(NamedTuple):
    """Unpadded token ids: ``[CLS] A [SEP]`` or ``[CLS] A [SEP] B [SEP]``.

    RoBERTa's pairs have two separators after A.
    """

    ids: list[int]
    second: int  # index of B's first token; without B the number of tokens
    cut: bool  # whether tokens were dropped


def assemble(
    first: Sequence[int], second: Sequence[int] | None, tokenizer: Tokenizer, *, max_length: int
) -> Assembled:
    """Joins one or two token sequences with special tokens.

    ``assemble([7, 8], [9], tokenizer, max_length=8)`` → ``[CLS] 7 8 [SEP] 9 [SEP]``, second = 4

    While the result is longer than ``max_length``, including special tokens, the longer sequence
    loses its last token. Source: `_truncate_seq_pair` in google-research/bert `run_classifier.py`.
    """
    special = tokenizer.special
    others = [] if second is None else list(second)
    room = max_length - special_tokens(tokenizer, pair=second is not None)
    keep_first = max(room - len(others), min(len(first), -(-room // 2)))
    keep_first = min(keep_first, len(first), room)
    keep_second = min(len(others), room - keep_first)
    cut = keep_first < len(first) or keep_second < len(others)
    ids = [special.cls, *first[:keep_first], special.sep]
    if second is not None:
        ids += [special.sep] * (tokenizer.separators - 1)
    start = len(ids)
    if second is not None:
        ids += [*others[:keep_second], special.sep]
    return Assembled(ids, start, cut)


def fill_up(ids: list[int], least: int, *, mask: int, seen: bool) -> list[int]:
    """Returns token ids with mask tokens at the end, so that there are at least `least`.

    If they are not `seen`, no token attends to them: their ids are ``~mask``, see `collate_tokens`.
    """
    return ids + [mask if seen else ~mask] * (least - len(ids))


def assemble_longest_first(
    first: Sequence[int], second: Sequence[int], tokenizer: Tokenizer, *, max_length: int
) -> Assembled:
    """Joins a pair like `assemble`, truncated as by `longest_first` of Hugging Face.

    The two differ if an odd number of tokens remains of two long texts. Hugging Face leaves the
    middle one to the longer text, and to the second of equal texts; `assemble` to the first.
    """
    half = (max_length - special_tokens(tokenizer, pair=True)) // 2
    if half < len(first) <= len(second):
        first = first[:half]
    return assemble(first, second, tokenizer, max_length=max_length)


def pad_rows(
    values: Sequence[Sequence[float] | np.ndarray], *, batch_size: int, length: int, fill: int = 0
) -> np.ndarray:
    """Pads sequences of different lengths: ``[[7, 8], [9]]``, 3, 2 -> ``[[7, 8], [9, 0], [0, 0]]``.

    Missing rows consist of ``fill``. Returns int32 ``[batch_size, length]``.
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
    """Returns the model's input arrays for token sequences, padded.

    ``[[2, 7, 3, 8, 3]]``, seconds ``[3]``, length 6, pad 0 -> ``input_ids [[2, 7, 3, 8, 3, 0]]``,
    ``token_type_ids [[0, 0, 0, 1, 1, 0]]``, ``segment_ids [[1, 1, 1, 1, 1, 0]]``.

    A negative id ``~id`` is a token that attends to its sequence, but no token attends to it. Its
    `segment_ids` is −1.

    For several sequences per row (multiple choice), pass all sequences in order and reshape the
    arrays.

    Args:
        sequences: token ids with special tokens; at most ``batch_size`` sequences of at most
            ``length`` tokens.
        seconds: index of the first token of each second span. For a sequence without a second span
            it is the number of tokens. Omit it if no sequence has a second span.
        batch_size: rows of the batch. Missing rows are padding.
        length: tokens in a row.
        pad_id: id of [PAD].

    Returns:
        int32 arrays ``[batch_size, length]`` by name.
    """
    sizes = np.zeros((batch_size, 1), np.int64)
    sizes[: len(sequences), 0] = [len(sequence) for sequence in sequences]
    starts = sizes.copy()
    if seconds is not None:
        starts[: len(sequences), 0] = seconds
    at = np.arange(length)
    ids = pad_rows(sequences, batch_size=batch_size, length=length, fill=pad_id)
    return {
        "input_ids": np.maximum(ids, ~ids),
        "token_type_ids": ((at >= starts) & (at < sizes)).astype(np.int32),
        "segment_ids": np.where(ids < 0, -1, at < sizes).astype(np.int32),
    }


def stack_rows(rows: Sequence[Row], *, batch_size: int, like: Row | None = None) -> Row:
    """Stacks rows of equal names, shapes and dtypes into arrays ``[batch_size, *shape]``.

    Three rows ``{"input_ids": [L]}``, ``batch_size`` 4 -> ``{"input_ids": [4, L]}``. Missing rows
    are zeros. They have no token (``segment_ids`` 0) and no weight, so no sum includes them.
    ``rows`` has at most ``batch_size`` rows. If it is empty, ``like`` is a row of the right shapes.
    """
    batch = {}
    for name, first in (rows[0] if like is None else like).items():
        batch[name] = stacked = np.zeros((batch_size, *first.shape), first.dtype)
        if rows:
            np.stack([row[name] for row in rows], out=stacked[: len(rows)])
    return batch


def count_tokens(batch: HostBatch) -> int:
    """Returns the number of tokens in a batch, without padding (``segment_ids`` 0)."""
    segments = (ids for name, ids in batch.items() if name.endswith("segment_ids"))
    return sum(int(np.count_nonzero(ids)) for ids in segments)
