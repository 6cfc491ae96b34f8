"""Which examples share a row: first-fit-decreasing over the lengths of a dataset.

What is planned is how lengths share rows; which example of a length stands where is drawn anew
each epoch (`order`). So every epoch has the same number of rows, and any row of any
epoch is found at once. ``docs/adr/0006-packing.md`` says why.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pydantic

from bert_jax.section import Section


class PackingSection(Section):
    """Several examples in a row, each attending to itself alone.

    Attributes:
        max_examples: most examples in a row, the [CLS] slots of each row.
    """

    max_examples: int = pydantic.Field(default=8, ge=2)


class RowKind(NamedTuple):
    """So many rows that hold examples of these lengths: 30 rows of (300, 200, 12) tokens."""

    rows: int
    lengths: tuple[int, ...]  # longest first


class Slot(NamedTuple):
    """A place in a row: the rank-th (from 0) of the epoch's examples of a length."""

    length: int
    rank: int


def first_fit_decreasing(
    counts: Sequence[int] | np.ndarray, *, capacity: int, max_examples: int
) -> list[RowKind]:
    """Packs examples, longest first, each into the first row that has room for it.

    ``counts[3] = 2, counts[5] = 1``, capacity 8 → ``[1 row of (5, 3), 1 row of (3,)]``

    Equal examples are placed together, so the time depends on how many lengths there are, not on
    how many examples (as in arXiv 2107.02027, "histogram" packing, which chooses the fullest row
    that fits instead of the first).

    Args:
        counts: examples of each length, by length; none longer than ``capacity``.
        capacity: tokens in a row.
        max_examples: most examples in a row.

    Returns:
        The rows in the order in which they were opened, equal neighbours together.
    """
    kinds: list[RowKind] = []
    for length in range(len(counts) - 1, 0, -1):
        left = int(counts[length])
        if not left:
            continue
        filled: list[RowKind] = []
        for kind in kinds:
            fit = min((capacity - sum(kind.lengths)) // length, max_examples - len(kind.lengths))
            filled += _fill(kind, length, fit=fit, left=left)
            left -= min(left, fit * kind.rows)
        if left:
            fit = min(capacity // length, max_examples)
            filled += _fill(RowKind(-(-left // fit), ()), length, fit=fit, left=left)
        kinds = filled
    return kinds


def _fill(kind: RowKind, length: int, *, fit: int, left: int) -> list[RowKind]:
    """Puts up to ``left`` examples into rows of a kind, ``fit`` into each until none is left."""
    if not fit or not left:
        return [kind]
    full = min(kind.rows, left // fit)
    rest = left - full * fit if full < kind.rows else 0
    parts = (
        RowKind(full, (*kind.lengths, *[length] * fit)),
        RowKind(1 if rest else 0, (*kind.lengths, *[length] * rest)),
        RowKind(kind.rows - full - (1 if rest else 0), kind.lengths),
    )
    return [part for part in parts if part.rows]


class PackingPlan:
    """The rows of an epoch, by the lengths that share them; a few kilobytes at any scale."""

    def __init__(self, counts: np.ndarray, *, capacity: int, max_examples: int) -> None:
        """Plans the rows of examples of which there are ``counts[n]`` of n tokens.

        Args:
            counts: examples of each length, by length; none longer than ``capacity``.
            capacity: tokens in a row.
            max_examples: most examples in a row.
        """
        self.kinds = first_fit_decreasing(counts, capacity=capacity, max_examples=max_examples)
        self._starts = [0, *itertools.accumulate(kind.rows for kind in self.kinds)]
        # Per kind: each length, how often it is in a row, and its rank where the first row begins.
        self._parts: list[list[tuple[int, int, int]]] = []
        taken: Counter[int] = Counter()
        for kind in self.kinds:
            times = Counter(kind.lengths)
            self._parts.append([(length, n, taken[length]) for length, n in times.items()])
            taken.update({length: n * kind.rows for length, n in times.items()})
        self._examples = sum(taken.values())
        self._tokens = sum(length * count for length, count in taken.items())
        self._capacity = capacity

    @property
    def rows(self) -> int:
        """Rows in every epoch."""
        return self._starts[-1]

    @property
    def examples_per_row(self) -> float:
        """Examples in a row, on average."""
        return self._examples / self.rows

    @property
    def padding_share(self) -> float:
        """Share of the positions of all rows that hold no token."""
        return 1.0 - self._tokens / (self.rows * self._capacity)

    def slots(self, row: int) -> list[Slot]:
        """Returns what stands in a row, 0 … rows − 1; over all rows, each (length, rank) once."""
        at = bisect.bisect_right(self._starts, row) - 1
        offset = row - self._starts[at]
        return [
            Slot(length, first + offset * times + k)
            for length, times, first in self._parts[at]
            for k in range(times)
        ]
