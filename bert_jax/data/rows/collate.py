"""Rows put together to the batch that a train step sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from bert_jax.task import HostBatch, Row

Part = TypeVar("Part")


def stack_rows(rows: Sequence[Row], *, batch_size: int) -> Row:
    """Stacks rows to a batch: three rows of ``{"input_ids": [L]}``, 4 -> ``{"input_ids": [4, L]}``.

    Slots without a row are filled with zeros: no token (``segment_ids`` 0) and no weight, so that
    they count in no sum.

    Args:
        rows: at least one row, all with the same names, shapes and dtypes.
        batch_size: rows in the batch, at least ``len(rows)``.

    Returns:
        A dict of arrays with ``batch_size`` in front of each row's shape.
    """
    batch = {}
    for name, first in rows[0].items():
        stacked = np.zeros((batch_size, *first.shape), first.dtype)
        np.stack([row[name] for row in rows], out=stacked[: len(rows)])
        batch[name] = stacked
    return batch


def parts_of(batch: Part | tuple[Part, ...]) -> tuple[Part, ...]:
    """Returns the parts of a batch whose rows have different lengths; of another, it alone."""
    return batch if isinstance(batch, tuple) else (batch,)


def count_tokens(batch: HostBatch) -> int:
    """Returns the tokens in a batch that are not padding (those of ``segment_ids`` above 0)."""
    return sum(int(np.count_nonzero(part["segment_ids"])) for part in parts_of(batch))
