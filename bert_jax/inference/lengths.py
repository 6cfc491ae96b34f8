"""Which lengths rows are padded to: padding against compilation."""

import bisect
import itertools
from collections.abc import Container, Sequence
from typing import Final, NamedTuple

import numpy as np

from bert_jax.model.shape_cost import ShapeCost

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


class BucketRows(NamedTuple):
    """Rows whose own bucket is one of some length."""

    length: int  # positions
    now: int  # rows of this call
    before: int  # of earlier calls, which foretell later ones


class PaddedLengths:
    """Chooses what the rows of each call are padded to.

    Where every row comes once, the rows of earlier calls count too: a stream of windows or of
    single texts compiles for a length once padding to the next longer program has cost as much.
    Rows that come in several passes get the same lengths in all of them, so that a run that was
    stopped and resumed has the figures of one that was not.
    """

    def __init__(self, max_length: int, cost: ShapeCost | None) -> None:
        """Takes the longest row; without a cost, each is padded to its own bucket."""
        self._buckets, self._cost = buckets_up_to(max_length), cost
        self._before: dict[int, np.ndarray] = {}  # by batch size: rows of each bucket
        self._chosen: dict[tuple[int, bytes], list[int]] = {}  # for rows that come again

    def of(
        self, lengths: np.ndarray, *, size: int, compiled: Container[tuple[int, int]]
    ) -> np.ndarray:
        """Returns the positions that each row is padded to, int64 [rows].

        `lengths` are tokens of one row or more, int [rows]; `size` counts the rows of a batch; the
        `compiled` shapes ``(size, length)`` cost no compilation.
        """
        if self._cost is None:
            return buckets_of(lengths, self._buckets)
        now = np.bincount(np.searchsorted(self._buckets, lengths), minlength=len(self._buckets))
        key = size, now.tobytes()
        if (chosen := self._chosen.get(key)) is None:
            before = self._before.get(size, np.zeros_like(now))
            columns = self._buckets, now.tolist(), before.tolist()
            chosen = choose_lengths(
                [BucketRows(*each) for each in zip(*columns, strict=True)],
                size=size,
                compiled={length for length in self._buckets if (size, length) in compiled},
                cost=self._cost,
            )
            if self._cost.passes > 1:
                self._chosen[key] = chosen
            else:
                self._before[size] = before + now
        return buckets_of(lengths, chosen)


class _Choice(NamedTuple):
    """Programs for the rows of the shortest buckets; of two, the lesser costs less."""

    seconds: float = 0.0
    compilations: int = 0
    lengths: tuple[int, ...] = ()


def choose_lengths(
    rows: Sequence[BucketRows], *, size: int, compiled: Container[int], cost: ShapeCost
) -> list[int]:
    """Returns the lengths of the programs with which compiling and computing take least.

    ``[8: 3 rows, 16: 40, 24: 0, 32: 1]`` → ``[16, 32]`` where compiling for 8 costs more than
    padding three rows by 8. A row is padded to the smallest of the lengths that holds it.

    Exact, by dynamic programming over the buckets, the shortest first, one row or more in all: the
    best choice whose longest program is a bucket follows from the best ones of the buckets below
    it. Rows of this call that fill no batch of `size` are computed as if they did; lengths that are
    `compiled` cost no compilation.
    """
    now = [0, *itertools.accumulate(each.now for each in rows)]
    before = [0, *itertools.accumulate(each.before for each in rows)]

    def computed(start: int, end: int) -> int:
        """Returns the rows of these buckets, and what fills their last batch."""
        return -(-(now[end] - now[start]) // size) * size + before[end] - before[start]

    best = [_Choice()]  # by the number of buckets that it serves
    for end, bucket in enumerate(rows, 1):
        new = bucket.length not in compiled
        row = cost.passes * cost.position * bucket.length  # seconds, in all passes
        best.append(
            min(
                _Choice(
                    below.seconds + new * cost.program + computed(start, end) * row,
                    below.compilations + new,
                    (*below.lengths, bucket.length),
                )
                for start, below in enumerate(best)
            )
        )
    longest = max(end for end, each in enumerate(rows, 1) if each.now or each.before)
    return list(min(best[longest:]).lengths)
