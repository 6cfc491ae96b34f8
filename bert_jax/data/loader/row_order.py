"""The examples of each row of a phase: rows p = 0, 1, …, epoch after epoch.

A first-fit-decreasing plan fixes which example lengths share a packed row. Every epoch assigns
other examples to these lengths. So all epochs have equal numbers of rows, and one binary search
finds any row of any epoch. See ``docs/adr/0006-packing.md``.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from bert_jax.data import rng
from bert_jax.data.loader.packing import PackingPlan

# Number of random candidates for a permutation's factor. If the count is below 2**32, a candidate
# is coprime to it with probability 1/7 or more.
_TRIES: Final = 64
# Number of examples that a lookup scans. The index has 4 bytes per length and block.
_BLOCK: Final = 4096


class AffinePermutation:
    """A permutation of 0 … count − 1 for each epoch: ``k -> (factor · k + offset) mod count``.

    The factor is coprime to the count. Few permutations have this form, but the examples that share
    a row vary enough, because the rows themselves are shuffled fully. Grain's shuffle is a cipher
    that retries values outside the range, so for small counts it takes a hundred times as long.
    """

    def __init__(self, count: int, seed: int, *key: int | str) -> None:
        self._count, self._seed, self._key = count, seed, key
        self._latest = (-1, 1, 0)  # (epoch, factor, offset) of the latest lookup

    def at(self, k: int, *, epoch: int) -> int:
        """Returns the image of k in an epoch."""
        latest = self._latest
        if latest[0] != epoch:
            first, *others = rng.stream(self._seed, *self._key, epoch).random(_TRIES).tolist()
            factors = (int(draw * self._count) for draw in others)
            coprime = (factor for factor in factors if math.gcd(factor, self._count) == 1)
            latest = self._latest = (epoch, next(coprime, 1), int(first * self._count))
        return (latest[1] * k + latest[2]) % self._count


class LengthIndex:
    """Finds examples by length and rank, such as the 70th example of 128 tokens.

    The index stores how many examples of each length come before each block of 4,096 examples, and
    a lookup scans one block. With lengths up to 512 it takes half a byte per example; a list of
    the examples of each length would take several bytes. The lengths are an argument of every
    lookup instead of an attribute: they are memory-mapped and must not be pickled to workers.
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
        """Number of examples of each length."""
        return self._before[:, -1]

    def find(self, lengths: np.ndarray, length: int, rank: int) -> int:
        """Returns the dataset index of the example that has a rank, from 0, within its length.

        ``lengths`` is the array that the index was made from. The rank is below ``counts[length]``.
        """
        before = self._before[length]
        block = int(before.searchsorted(rank, side="right")) - 1
        start = block * _BLOCK
        (hits,) = (lengths[start : start + _BLOCK] == length).nonzero()
        return start + int(hits[rank - int(before[block])])


@dataclasses.dataclass(frozen=True)
class ShuffledOrder:
    """One example per row."""

    rows: int  # number of rows in an epoch, which is the number of examples
    shuffled: Sequence[int]  # permutations of 0 … rows − 1, one epoch after the other

    def examples(self, row: int, lengths: np.ndarray) -> Sequence[int]:
        """Returns the dataset index of the example in a row, as a list."""
        del lengths  # only packed rows need the lengths
        return [self.shuffled[row]]


@dataclasses.dataclass(frozen=True)
class PackedOrder:
    """Rows of a packing plan. Every epoch reorders the rows and assigns other examples to them."""

    plan: PackingPlan  # plan of an epoch's rows
    index: LengthIndex
    shuffled: Sequence[int]  # permutations of the plan's rows, one epoch after the other
    permutations: Mapping[int, AffinePermutation]  # permutation of the examples of each length

    @property
    def rows(self) -> int:
        """Number of rows in an epoch."""
        return self.plan.rows

    def examples(self, row: int, lengths: np.ndarray) -> Sequence[int]:
        """Returns the dataset indices of the examples in a row, the longest first.

        ``lengths`` is the number of tokens of each example in the dataset.
        """
        epoch = row // self.plan.rows
        return [
            self.index.find(lengths, length, self.permutations[length].at(rank, epoch=epoch))
            for length, rank in self.plan.examples(self.shuffled[row])
        ]


RowOrder: TypeAlias = ShuffledOrder | PackedOrder
