"""Which examples make up which row of a phase."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from bert_jax.data.loader.affine_permutation import AffinePermutation
from bert_jax.data.loader.length_index import LengthIndex
from bert_jax.data.rows.packing_plan import PackingPlan


class RowOrder(Protocol):
    """Rows p = 0, 1, … of a phase, epoch after epoch."""

    @property
    def rows(self) -> int:
        """Rows in an epoch."""
        ...

    def examples(self, row: int, lengths: np.ndarray) -> Sequence[int]:
        """Returns the dataset's indices of the examples in a row.

        Args:
            row: p, of the phase.
            lengths: of the dataset's examples.
        """
        ...


@dataclasses.dataclass(frozen=True)
class ShuffledOrder:
    """One example per row.

    Attributes:
        rows: examples of the dataset.
        shuffled: a permutation of 0 … rows − 1 for each epoch, one after the other.
    """

    rows: int
    shuffled: Sequence[int]

    def examples(self, row: int, lengths: np.ndarray) -> Sequence[int]:
        """See :class:`RowOrder`."""
        del lengths
        return [self.shuffled[row]]


@dataclasses.dataclass(frozen=True)
class PackedOrder:
    """Planned rows, each epoch in another order and with other examples of the same lengths.

    Attributes:
        plan: of an epoch's rows.
        index: finds the examples of a length.
        shuffled: a permutation of 0 … plan.rows − 1 for each epoch, one after the other.
        permutations: by length, of the examples of that length.
    """

    plan: PackingPlan
    index: LengthIndex
    shuffled: Sequence[int]
    permutations: Mapping[int, AffinePermutation]

    @property
    def rows(self) -> int:
        """Rows in an epoch."""
        return self.plan.rows

    def examples(self, row: int, lengths: np.ndarray) -> Sequence[int]:
        """See :class:`RowOrder`; the longest example comes first."""
        epoch = row // self.plan.rows
        return [
            self.index.find(lengths, length, self.permutations[length].at(rank, epoch=epoch))
            for length, rank in self.plan.examples(self.shuffled[row])
        ]
