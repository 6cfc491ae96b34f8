"""Packing: a plan that assigns example lengths to rows. See ``docs/adr/0006-packing.md``."""

import bisect
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pydantic

from bert_jax.section import Section


class PackingSection(Section):
    """Packs several examples into a row. Each example attends only to itself.

    Attributes:
        max_examples: maximum number of examples in a row. Every row has this many [CLS] slots.
    """

    max_examples: int = pydantic.Field(default=8, ge=2)


class RowPattern(NamedTuple):
    """A group of rows with equal example lengths: 30 rows of (300, 200, 12) tokens."""

    rows: int  # number of rows
    lengths: tuple[int, ...]  # lengths of the examples in each row, longest first


class LengthRank(NamedTuple):
    """Identifies an example of an epoch by its rank (from 0) among examples of its length."""

    length: int
    rank: int


def first_fit_decreasing(
    counts: Sequence[int] | np.ndarray, *, capacity: int, max_examples: int
) -> list[RowPattern]:
    """Packs examples, longest first, each into the first row in which it fits.

    ``counts[3] = 2, counts[5] = 1``, capacity 8 → ``[1 row of (5, 3), 1 row of (3,)]``

    Examples of equal length are placed together, so the time depends on the number of distinct
    lengths, not of examples. "Histogram" packing (arXiv 2107.02027) does this too, but chooses the
    fullest row.

    Args:
        counts: number of examples by length, up to ``capacity``.
        capacity: tokens in a row.
        max_examples: maximum number of examples in a row.

    Returns:
        Rows in the order in which they were opened, grouped by pattern.
    """
    patterns: list[RowPattern] = []
    for length in range(len(counts) - 1, 0, -1):
        left = int(counts[length])
        if not left:
            continue
        filled: list[RowPattern] = []
        for pattern in patterns:
            fit = min(
                (capacity - sum(pattern.lengths)) // length, max_examples - len(pattern.lengths)
            )
            filled += _fill(pattern, length, fit=fit, left=left)
            left -= min(left, fit * pattern.rows)
        if left:
            fit = min(capacity // length, max_examples)
            filled += _fill(RowPattern(-(-left // fit), ()), length, fit=fit, left=left)
        patterns = filled
    return patterns


def _fill(pattern: RowPattern, length: int, *, fit: int, left: int) -> list[RowPattern]:
    """Adds at most ``left`` examples to the rows of a pattern, at most ``fit`` to each row."""
    if not fit or not left:
        return [pattern]
    full = min(pattern.rows, left // fit)
    rest = left - full * fit if full < pattern.rows else 0
    parts = (
        RowPattern(full, (*pattern.lengths, *[length] * fit)),
        RowPattern(1 if rest else 0, (*pattern.lengths, *[length] * rest)),
        RowPattern(pattern.rows - full - (1 if rest else 0), pattern.lengths),
    )
    return [part for part in parts if part.rows]


class PackingPlan:
    """The example lengths in each row of an epoch. A plan has only a few kilobytes.

    Attributes:
        rows: number of rows in every epoch.
        examples_per_row: mean number of examples in a row.
        padding_share: share of padding among the positions of all rows.
    """

    def __init__(self, counts: np.ndarray, *, capacity: int, max_examples: int) -> None:
        patterns = first_fit_decreasing(counts, capacity=capacity, max_examples=max_examples)
        self._starts = [0, *itertools.accumulate(pattern.rows for pattern in patterns)]
        # For each pattern: (length, examples of this length per row, their first rank in the first
        # row).
        self._lengths: list[list[tuple[int, int, int]]] = []
        taken: Counter[int] = Counter()
        for pattern in patterns:
            times = Counter(pattern.lengths)
            self._lengths.append([(length, n, taken[length]) for length, n in times.items()])
            taken.update({length: n * pattern.rows for length, n in times.items()})
        self.rows = self._starts[-1]
        self.examples_per_row = sum(taken.values()) / self.rows
        tokens = sum(length * count for length, count in taken.items())
        self.padding_share = 1.0 - tokens / (self.rows * capacity)

    def examples(self, row: int) -> list[LengthRank]:
        """Returns the examples of a row. Every (length, rank) is in exactly one row."""
        at = bisect.bisect_right(self._starts, row) - 1
        offset = row - self._starts[at]
        return [
            LengthRank(length, first + offset * times + k)
            for length, times, first in self._lengths[at]
            for k in range(times)
        ]
