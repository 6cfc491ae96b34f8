"""Length buckets: rows are padded to one of a few lengths, so that few programs are compiled."""

import bisect
from collections.abc import Sequence
from typing import Final

import numpy as np

# One compilation (seconds) per bucket that occurs; coarser steps would be more padding.
BUCKETS: Final = (8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256, 384, 512)


def buckets_up_to(max_length: int) -> tuple[int, ...]:
    """Returns the buckets for rows of at most ``max_length``: ``100`` → ``(8, …, 96, 100)``."""
    return (*(size for size in BUCKETS if size < max_length), max_length)


def bucket_of(length: int, buckets: Sequence[int]) -> int:
    """Returns the smallest bucket that holds ``length`` tokens, of buckets in ascending order."""
    return buckets[bisect.bisect_left(buckets, length)]


def buckets_of(lengths: np.ndarray, buckets: Sequence[int]) -> np.ndarray:
    """Returns `bucket_of` each of ``lengths``: int64 [rows]."""
    return np.asarray(buckets, np.int64)[np.searchsorted(buckets, lengths)]
