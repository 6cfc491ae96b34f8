"""Per-epoch affine permutation, O(1) lookup."""

import math
from typing import Final

from bert_jax.data import rng

_TRIES: Final = 64  # candidates; below 2**32 each is coprime with probability 1/7 or more


class AffinePermutation:
    """A permutation of 0 … count − 1 per epoch: ``k -> (factor · k + offset) mod count``.

    With a factor coprime to the count. Far fewer permutations than there are, but enough to vary
    which examples share a row, since the rows themselves are shuffled fully. A cipher such as
    Grain's retries every value outside of a small range, which takes a hundred times as long for a
    handful of elements.
    """

    def __init__(self, count: int, seed: int, *key: int | str) -> None:
        """Draws nothing yet."""
        self._count = count
        self._seed = seed
        self._key = key
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
