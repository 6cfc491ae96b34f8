"""A random permutation of any size in constant memory: each place is computed."""

from typing import Final

import numpy as np

from bert_jax.data.rng import digest128, mix64

_ROUNDS: Final = 6


class FeistelPermutation:
    """``FeistelPermutation(5, seed=7)([0, 1, 2, 3, 4])`` -> an order of 0 to 4, always the same.

    A Feistel network over the smallest even number of bits that holds ``count``. A result outside
    the range is permuted again until it is inside (cycle walking), at most four times on average.
    """

    def __init__(self, count: int, *, seed: int) -> None:
        """Derives the round keys from ``seed``; ``count`` is at least 1."""
        self._count = count
        self._half = np.uint64(max(1, ((count - 1).bit_length() + 1) // 2))
        self._mask = np.uint64((1 << int(self._half)) - 1)
        low = (1 << 64) - 1
        keys = [digest128(seed, "permutation", round_) & low for round_ in range(_ROUNDS)]
        self._keys = np.array(keys, np.uint64)

    def __len__(self) -> int:
        return self._count

    def __call__(self, places: np.ndarray) -> np.ndarray:
        """Returns the permuted ``places``, int64; each in ``[0, count)``."""
        found = self._once(np.asarray(places, np.uint64))
        while len(outside := np.flatnonzero(found >= self._count)):
            found[outside] = self._once(found[outside])
        return found.astype(np.int64)

    def _once(self, values: np.ndarray) -> np.ndarray:
        left, right = values >> self._half, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (mix64(right + key) & self._mask)
        return left << self._half | right
