"""A random order of any number of things that takes no memory: each place is computed."""

from __future__ import annotations

from typing import Final

import numpy as np

from bert_jax.data.rng import digest128

_ROUNDS: Final = 6
_MULTIPLIERS: Final = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class Permutation:
    """``Permutation(5, seed=7)([0, 1, 2, 3, 4])`` -> an order of 0 to 4, always the same.

    A Feistel network over the smallest even number of bits that holds ``count``; a place beyond it
    is sent through again until it falls inside (cycle walking), at most four times on average. The
    mixing of each half is that of SplitMix64 (Steele, Lea and Flood, 2014).
    """

    def __init__(self, count: int, *, seed: int) -> None:
        """Sets the order up.

        Args:
            count: of things, at least 1.
            seed: of the order.
        """
        self._count = count
        self._half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        low = (1 << 64) - 1
        keys = [digest128(seed, "permutation", round_) & low for round_ in range(_ROUNDS)]
        self._keys = np.array(keys, np.uint64)

    def __len__(self) -> int:
        return self._count

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """Returns what stands at each place, int64.

        Args:
            places: in ``[0, count)``.
        """
        found = self._once(np.asarray(places, np.uint64))
        while len(outside := np.flatnonzero(found >= self._count)):
            found[outside] = self._once(found[outside])
        return found.astype(np.int64)

    def _once(self, values: np.ndarray) -> np.ndarray:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (mix64(right + key) & self._mask)
        return left << self._half | right


def mix64(values: np.ndarray) -> np.ndarray:
    """Returns 64-bit numbers scattered over all of the range, one to one: SplitMix64's mixing."""
    values = (values ^ (values >> np.uint64(30))) * _MULTIPLIERS[0]
    values = (values ^ (values >> np.uint64(27))) * _MULTIPLIERS[1]
    return values ^ (values >> np.uint64(31))
