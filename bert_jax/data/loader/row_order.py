"""Which examples make up which row of a phase: rows p = 0, 1, …, epoch after epoch.

Packed rows follow a plan, first-fit-decreasing over the lengths of a dataset. The plan fixes which
lengths share a row; which examples have these places changes every epoch. So every epoch has the
same number of rows, and any row of any epoch is found by one binary search. See
``docs/adr/0006-packing.md``.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from bert_jax.data import rng
from bert_jax.data.loader.packing import PackingPlan

_TRIES: Final = 64  # candidates; below 2**32 each is coprime with probability 1/7 or more

# Examples to scan per lookup; the table takes 4 bytes per length and block.
_BLOCK: Final = 4096


class AffinePermutation:
    """A permutation of 0 … count − 1 per epoch: ``k -> (factor · k + offset) mod count``.

    The factor is coprime to the count. There are far more permutations than these, but they vary
    enough which examples share a row, since the rows themselves are shuffled fully. A cipher such
    as Grain's takes a hundred times as long for a handful of elements: it retries every value
    outside of a small range.
    """

    def __init__(self, count: int, seed: int, *key: int | str) -> None:
        self._count, self._seed, self._key = count, seed, key
        self._latest = (-1, 1, 0)  # epoch, factor, offset of the latest lookup

    def at(self, k: int, *, epoch: int) -> int:
        """Returns the image of k, 0 … count − 1, in an epoch."""
        latest = self._latest
        if latest[0] != epoch:
            latest = self._latest = (epoch, *self._draw(epoch))
        return (latest[1] * k + latest[2]) % self._count

    def _draw(self, epoch: int) -> tuple[int, int]:
        first, *others = rng.stream(self._seed, *self._key, epoch).random(_TRIES).tolist()
        factors = (int(draw * self._count) for draw in others)
        coprime = (factor for factor in factors if math.gcd(factor, self._count) == 1)
        return next(coprime, 1), int(first * self._count)


class LengthIndex:
    """Answers "which is the 70th example of 128 tokens?" for a dataset, without a list of them.

    Holds the number of examples of each length before each block of 4,096 (half a byte per example
    at 512 tokens) and scans one block of the lengths per lookup. The lengths are an argument of
    each lookup: memory-mapped, they must not be pickled to workers.
    """

    def __init__(self, lengths: np.ndarray) -> None:
        """Reads ``lengths`` [n] once, in blocks."""
        starts = range(0, len(lengths), _BLOCK)
        before = np.zeros((len(starts) + 1, int(lengths.max()) + 1), np.uint32)
        for block, start in enumerate(starts):
            counts = np.bincount(lengths[start : start + _BLOCK], minlength=before.shape[1])
            before[block + 1] = before[block] + counts
        self._before = np.ascontiguousarray(before.T)

    @property
    def counts(self) -> np.ndarray:
        """Number of examples by length."""
        return self._before[:, -1]

    def find(self, lengths: np.ndarray, length: int, rank: int) -> int:
        """Returns the index of the ``rank``-th example of a length, from 0, in the dataset's order.

        ``lengths`` is the array that the index was made from; the rank is below ``counts[length]``.
        """
        before = self._before[length]
        block = int(before.searchsorted(rank, side="right")) - 1
        start = block * _BLOCK
        (hits,) = (lengths[start : start + _BLOCK] == length).nonzero()
        return start + int(hits[rank - int(before[block])])


@dataclasses.dataclass(frozen=True)
class ShuffledOrder:
    """One example per row."""

    rows: int  # in an epoch: examples of the dataset
    shuffled: Sequence[int]  # a permutation of 0 … rows − 1 for each epoch, one after the other

    def examples(self, row: int, lengths: np.ndarray) -> Sequence[int]:
        """Returns the dataset's indices of the examples in row p."""
        del lengths  # of the dataset's examples, which a packed order looks up
        return [self.shuffled[row]]


@dataclasses.dataclass(frozen=True)
class PackedOrder:
    """Planned rows, each epoch in another order and with other examples of the same lengths."""

    plan: PackingPlan  # of an epoch's rows
    index: LengthIndex
    shuffled: Sequence[int]  # the plan's rows, as in `ShuffledOrder`
    permutations: Mapping[int, AffinePermutation]  # by length, of the examples of that length

    @property
    def rows(self) -> int:
        """Rows in an epoch."""
        return self.plan.rows

    def examples(self, row: int, lengths: np.ndarray) -> Sequence[int]:
        """Returns the dataset's indices of the examples in row p, the longest first.

        ``lengths`` are the tokens of each example of the dataset.
        """
        epoch = row // self.plan.rows
        return [
            self.index.find(lengths, length, self.permutations[length].at(rank, epoch=epoch))
            for length, rank in self.plan.examples(self.shuffled[row])
        ]


RowOrder: TypeAlias = ShuffledOrder | PackedOrder
