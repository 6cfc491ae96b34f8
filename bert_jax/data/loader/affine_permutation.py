"""Equal things that change places each epoch."""

from __future__ import annotations

import math
from typing import Final

from bert_jax.data import rng

_TRIES: Final = 64  # each of which is coprime with a chance of 1 in 7 or more below 2**32


class Exchange:
    """0 … count − 1 in another order each epoch, each place found at once.

    ``place -> (factor · place + offset) mod count``, with a factor coprime to the count: far fewer
    orders than there are, and enough for who shares a row with whom, since the rows themselves are
    shuffled in full. A cipher such as Grain's draws again whatever falls outside of a small range,
    which takes a hundred times as long for a handful of things.
    """

    def __init__(self, count: int, seed: int, *key: int | str) -> None:
        """Draws nothing yet.

        Args:
            count: at least 1.
            seed: of the run.
            *key: what the order is for.
        """
        self._count = count
        self._seed = seed
        self._key = key
        self._drawn = (-1, 1, 0)  # epoch, factor, offset: of the epoch that was asked for last

    def at(self, place: int, *, epoch: int) -> int:
        """Returns what stands at a place, 0 … count − 1, in an epoch."""
        drawn = self._drawn
        if drawn[0] != epoch:
            drawn = self._drawn = (epoch, *self._draw(epoch))
        return (drawn[1] * place + drawn[2]) % self._count

    def _draw(self, epoch: int) -> tuple[int, int]:
        first, *others = rng.stream(self._seed, *self._key, epoch).random(_TRIES).tolist()
        factors = (int(draw * self._count) for draw in others)
        coprime = (factor for factor in factors if math.gcd(factor, self._count) == 1)
        return next(coprime, 1), int(first * self._count)
