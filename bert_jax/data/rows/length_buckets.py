"""The few lengths that rows are padded to, so that few programs are compiled."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import Final

import numpy as np

# A program is compiled for each that occurs, in seconds; a step between them is padding, up to a
# third of a short row's positions.
BUCKETS: Final = (8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256, 384, 512)


def buckets_up_to(max_length: int) -> tuple[int, ...]:
    """Returns the lengths to pad to where none is longer: ``100`` → ``(8, …, 96, 100)``."""
    return (*(size for size in BUCKETS if size < max_length), max_length)


def bucket_of(length: int, buckets: Sequence[int]) -> int:
    """Returns the smallest bucket that holds a row.

    Args:
        length: pieces of the row, at most the last bucket.
        buckets: rising.
    """
    return buckets[bisect.bisect_left(buckets, length)]


def buckets_of(lengths: np.ndarray, buckets: Sequence[int]) -> np.ndarray:
    """Returns the bucket of each of many rows, see `bucket_of`: int64 [rows]."""
    return np.asarray(buckets, np.int64)[np.searchsorted(buckets, lengths)]
