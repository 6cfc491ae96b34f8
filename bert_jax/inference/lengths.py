"""Which lengths rows are padded to, in training and inference: padding against compilation."""

import bisect
import itertools
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

BUCKETS: Final = (8, 12, 16, 20, 24, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256, 384, 512)

# A program must save this share of the computation: so there are at most six in most cases.
LEAST_SAVING: Final = 0.05


def buckets_up_to(max_length: int) -> tuple[int, ...]:
    """Returns the buckets for rows of at most ``max_length``: ``100`` → ``(8, …, 96, 100)``."""
    return (*(size for size in BUCKETS if size < max_length), max_length)


def bucket_of(length: int, buckets: Sequence[int]) -> int:
    """Returns the smallest bucket that holds ``length`` tokens, of buckets in ascending order."""
    return buckets[bisect.bisect_left(buckets, length)]


def fitting(lengths: np.ndarray, chosen: Sequence[int]) -> np.ndarray:
    """Returns `bucket_of` each of ``lengths``: int64 [rows]."""
    return np.asarray(chosen, np.int64)[np.searchsorted(chosen, lengths)]


def choose_lengths(lengths: np.ndarray, *, max_length: int, program: float) -> list[int]:
    """Returns the few buckets to pad rows to, so that padding and compiling cost least.

    Three rows of 8 tokens, 40 of 16 and one of 32 → ``[16, 32]`` where a program costs more than
    padding three rows by 8. Exact, by dynamic programming over the buckets, the shortest first.

    Args:
        lengths: tokens of each row, int [rows].
        max_length: tokens of the longest row that is allowed.
        program: the number of positions that cost as much as compiling for one more length.
    """
    used, counts = np.unique(fitting(lengths, buckets_up_to(max_length)), return_counts=True)
    price = max(program, LEAST_SAVING * float(np.sum(lengths)))
    rows = [0, *itertools.accumulate(counts.tolist())]
    best: list[tuple[float, list[int]]] = [(0.0, [])]  # by the number of buckets served
    for end, bucket in enumerate(used.tolist(), 1):
        best.append(
            min(
                (cost + price + (rows[end] - rows[start]) * bucket, [*below, bucket])
                for start, (cost, below) in enumerate(best)
            )
        )
    return best[-1][1]


def reuse(chosen: Sequence[int], compiled: Collection[int], *, slack: float = 0.0) -> list[int]:
    """Replaces each length by the shortest compiled one that is near enough.

    It is at most twice as long, or longer by no more than `slack`.
    """

    def nearest(length: int) -> int:
        most = max(2 * length, length + slack)
        return min((each for each in compiled if length <= each <= most), default=length)

    return sorted(set(map(nearest, chosen)))
