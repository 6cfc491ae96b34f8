"""Records to rows of pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bert_jax.data.rows.assemble import assemble
from bert_jax.feature_extraction.texts import Record
from bert_jax.text import Tokenizer


class Row(NamedTuple):
    """``[CLS] A [SEP]`` or ``[CLS] A [SEP] B [SEP]``, unpadded."""

    record: Record
    ids: list[int]
    second: int  # where B begins; the row's length without one
    cut: bool  # whether pieces were left out

    @property
    def text_positions(self) -> np.ndarray:
        """Positions of the pieces that are text, int [pieces]."""
        special = {0, self.second - 1, len(self.ids) - 1}
        return np.asarray([at for at in range(len(self.ids)) if at not in special], np.intp)


def encode(records: Sequence[Record], tokenizer: Tokenizer, *, max_length: int) -> list[Row]:
    """Returns each record's row; the longer of two spans loses its last piece until both fit.

    Args:
        records: one text or two each.
        tokenizer: of the run.
        max_length: pieces in a row, special ones included.
    """
    firsts = tokenizer.encode_batch([record.text for record in records])
    seconds = tokenizer.encode_batch([record.pair or "" for record in records])
    return [
        Row(
            record,
            *assemble(
                first,
                None if record.pair is None else second,
                tokenizer.special,
                max_length=max_length,
            ),
        )
        for record, first, second in zip(records, firsts, seconds, strict=True)
    ]


def word_starts(row: Row, is_continuation: np.ndarray) -> np.ndarray:
    """Returns which of `row.text_positions` begin a word: bool [pieces].

    The first piece of a span begins one, whatever it is.
    """
    at = row.text_positions
    starts = ~is_continuation[np.asarray(row.ids)[at]]
    return starts | (at == 1) | (at == row.second)


def pad(rows: Sequence[Row], *, count: int, length: int, pad_id: int) -> dict[str, np.ndarray]:
    """Returns a batch of int32 [count, length]; rows that are missing are all padding.

    Args:
        rows: at most `count`, none longer than `length`.
        count: rows of the batch.
        length: positions of a row.
        pad_id: of the tokenizer.
    """
    batch = {
        "input_ids": np.full((count, length), pad_id, np.int32),
        "token_type_ids": np.zeros((count, length), np.int32),
        "segment_ids": np.zeros((count, length), np.int32),
    }
    for number, row in enumerate(rows):
        size = len(row.ids)
        batch["input_ids"][number, :size] = row.ids
        batch["token_type_ids"][number, row.second : size] = 1
        batch["segment_ids"][number, :size] = 1
    return batch
