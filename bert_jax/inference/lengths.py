"""Chooses the padded lengths of rows: a trade-off between padding and compile time."""

import bisect
import itertools
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

BUCKETS: Final = (
    *(8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    *(448, 512),
)

# Minimum fraction of the computation that each additional program must save. It limits most calls
# to ten programs.
LEAST_SAVING: Final = 0.02


def buckets_up_to(max_length: int) -> tuple[int, ...]:
    """Returns the buckets up to `max_length`: ``100`` → ``(8, …, 96, 100)``."""
    return (*(size for size in BUCKETS if size < max_length), max_length)


def bucket_of(length: int, buckets: Sequence[int]) -> int:
    """Returns the smallest bucket that is at least `length`. `buckets` are ascending."""
    return buckets[bisect.bisect_left(buckets, length)]


def fitting(lengths: np.ndarray, chosen: Sequence[int]) -> np.ndarray:
    """Returns `bucket_of` each of `lengths`, int64 [rows]."""
    return np.asarray(chosen, np.int64)[np.searchsorted(chosen, lengths)]


def choose_lengths(lengths: np.ndarray, *, max_length: int, program: float) -> list[int]:
    """Returns the buckets that minimise the total cost of padding and compilation.

    Example: for 3 rows of 8 tokens, 40 rows of 16 and 1 row of 32, the result is ``[16, 32]`` if a
    program costs more than 3 × 8 padding tokens. Dynamic programming finds the exact minimum.

    Args:
        lengths: number of tokens of each row, int [rows].
        max_length: maximum tokens of a row.
        program: compile time of one more length, in units of the compute time per token.
    """
    used, counts = np.unique(fitting(lengths, buckets_up_to(max_length)), return_counts=True)
    price = max(program, LEAST_SAVING * float(np.sum(lengths)))
    rows = [0, *itertools.accumulate(counts.tolist())]
    # best[n]: lowest cost of the rows in the n shortest buckets, and the chosen lengths
    best: list[tuple[float, list[int]]] = [(0.0, [])]
    for end, bucket in enumerate(used.tolist(), 1):
        best.append(
            min(
                (cost + price + (rows[end] - rows[start]) * bucket, [*below, bucket])
                for start, (cost, below) in enumerate(best)
            )
        )
    return best[-1][1]


def reuse(chosen: Sequence[int], compiled: Collection[int], *, slack: float = 0.0) -> list[int]:
    """Replaces each length by the shortest compiled length that can hold it, if that is close.

    Close means at most twice as long, or longer by at most `slack`.
    """

    def nearest(length: int) -> int:
        most = max(2 * length, length + slack)
        return min((each for each in compiled if length <= each <= most), default=length)

    return sorted(set(map(nearest, chosen)))
