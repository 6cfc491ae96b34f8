"""Lookup of the examples of a length without a list of them."""

from __future__ import annotations

from typing import Final

import numpy as np

# Examples to scan per lookup; the table takes 4 bytes per length and block.
_BLOCK: Final = 4096


class LengthIndex:
    """Answers "which is the 70th example of 128 tokens?" for a dataset.

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
        """Returns the index of an example.

        Args:
            lengths: the array that the index was made from.
            length: tokens of the example.
            rank: which one of that length, from 0, in the dataset's order; below
                ``counts[length]``.
        """
        before = self._before[length]
        block = int(before.searchsorted(rank, side="right")) - 1
        start = block * _BLOCK
        (hits,) = (lengths[start : start + _BLOCK] == length).nonzero()
        return start + int(hits[rank - int(before[block])])
