"""Which examples make which row of a phase."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from bert_jax.data.loader.affine_permutation import Exchange
from bert_jax.data.loader.length_index import LengthIndex
from bert_jax.data.rows.packing_plan import PackingPlan


class Order(Protocol):
    """Rows p = 0, 1, … of a phase, all of an epoch's before the next one's."""

    @property
    def rows(self) -> int:
        """Rows in an epoch."""
        ...

    def examples(self, place: int, lengths: np.ndarray) -> Sequence[int]:
        """Returns the dataset's indices of the examples in row ``place``.

        Args:
            place: of the phase, from 0, in whichever epoch.
            lengths: of the dataset's examples.
        """
        ...


@dataclasses.dataclass(frozen=True)
class SingleOrder:
    """A row for each example.

    Attributes:
        rows: examples of the dataset.
        shuffled: 0 … rows − 1 in another order each epoch, one epoch after the other.
    """

    rows: int
    shuffled: Sequence[int]

    def examples(self, place: int, lengths: np.ndarray) -> Sequence[int]:
        """See :class:`Order`."""
        del lengths
        return [self.shuffled[place]]


@dataclasses.dataclass(frozen=True)
class PackedOrder:
    """Rows as planned, in another order each epoch, each time of other examples of those lengths.

    Attributes:
        plan: of an epoch's rows.
        index: finds the examples of a length.
        shuffled: 0 … plan.rows − 1 in another order each epoch, one epoch after the other.
        exchanges: by length, which of the examples of that length stands for which.
    """

    plan: PackingPlan
    index: LengthIndex
    shuffled: Sequence[int]
    exchanges: Mapping[int, Exchange]

    @property
    def rows(self) -> int:
        """Rows in an epoch."""
        return self.plan.rows

    def examples(self, place: int, lengths: np.ndarray) -> Sequence[int]:
        """See :class:`Order`; the longest example comes first."""
        epoch = place // self.plan.rows
        return [
            self.index.find(lengths, length, self.exchanges[length].at(rank, epoch=epoch))
            for length, rank in self.plan.slots(self.shuffled[place])
        ]
