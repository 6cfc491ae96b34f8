"""Finding the examples of a length without a list of them."""

from __future__ import annotations

from typing import Final

import numpy as np

# Examples to look through for one; the table takes 4 bytes per length for so many of them.
_BLOCK: Final = 4096


class LengthIndex:
    """Answers "which is the 70th example of 128 tokens?" for a dataset.

    Holds how many examples of each length lie before each block of 4,096, which is half a
    byte per example at 512 tokens, and reads one block of the lengths per question. The lengths
    themselves are handed in each time: mapped from the disk, they must not travel to workers.
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
        """Examples of each length, by length."""
        return self._before[:, -1]

    def find(self, lengths: np.ndarray, length: int, rank: int) -> int:
        """Returns the index of an example.

        Args:
            lengths: those that the index was made of.
            length: tokens of the example.
            rank: which of that length, from 0, in the dataset's order; below ``counts[length]``.
        """
        before = self._before[length]
        block = int(before.searchsorted(rank, side="right")) - 1
        start = block * _BLOCK
        (hits,) = (lengths[start : start + _BLOCK] == length).nonzero()
        return start + int(hits[rank - int(before[block])])
