"""Mixes the rows of several datasets by weight. See `Mixture`."""

import bisect
import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

from bert_jax.data import rng
from bert_jax.data.loader.data_position import BatchSizes

_BITS: Final = 53  # ratios and quotas are integers in units of 2**-53 rows
_MOST_STAGES: Final = 1000


class SourceRow(NamedTuple):
    """A row of one source of a mixture."""

    source: int
    row: int  # number of the row within its source, over all epochs


class _Split(NamedTuple):
    """Splits the rows of the first sources into the rows of the last of them and the others."""

    start: int  # rows of these sources before the stage
    quota: int  # quota of the others before the stage, plus one half for rounding
    ratio: int  # share of the others in the stage

    def quota_of(self, rows: int) -> int:
        return self.quota + (rows - self.start) * self.ratio

    def others(self, rows: int) -> int:
        """Returns how many of the first `rows` rows belong to the others."""
        return self.quota_of(rows) >> _BITS


class Mixture:
    """The source of each row of a phase, by exact quotas.

    ``Mixture([0.75, 0.25]).counts(8) -> [6, 2]``

    A split gives each row either to the last source or to the others, the next split divides the
    others, and so on. Each split rounds its exact quota, so the rows of a source are evenly spread,
    and its count is never more than half the number of sources away from its share. All numbers
    are integers, so `at` finds any row at once, on any host, and needs no random numbers.

    Weights that change do so in at most 1,000 stages. Quotas continue from stage to stage.
    """

    def __init__(
        self,
        weights: Sequence[float],
        until: Sequence[float] | None = None,
        starts: Sequence[int] = (0,),
    ) -> None:
        """Plans the stages.

        Args:
            weights: weight of each source in the first stage. The sum may be any positive number.
            until: weights in the last stage. They change linearly. None: they do not change.
            starts: first row of each stage, see `stage_starts`.
        """
        self._starts = list(starts)
        self._stages: list[list[_Split]] = []
        first, last = _normalized(weights), _normalized(until or weights)
        self._weights = first if until is None else [*first, *last]
        for stage, start in enumerate(self._starts):
            part = stage / max(len(self._starts) - 1, 1)
            now = [a + (b - a) * part for a, b in zip(first, last, strict=True)]
            self._stages.append(self._splits(now, start))

    def _splits(self, weights: Sequence[float], rows: int) -> list[_Split]:
        sums = list(itertools.accumulate(weights))
        ratios = [
            round(below / total * 2**_BITS) if total else 0
            for below, total in itertools.pairwise(sums)
        ]
        splits: list[_Split] = []
        for at, ratio in enumerate(reversed(ratios)):
            quota = self._stages[-1][at].quota_of(rows) if self._stages else 1 << _BITS - 1
            splits.append(_Split(rows, quota, ratio))
            rows = quota >> _BITS
        return splits

    def at(self, row: int) -> SourceRow:
        """Returns the source of a row of the phase, and the row within the source."""
        splits = self._stages[bisect.bisect_right(self._starts, row) - 1]
        for source, split in zip(range(len(splits), 0, -1), splits, strict=True):
            others = split.others(row)
            if split.others(row + 1) == others:
                return SourceRow(source, row - others)
            row = others
        return SourceRow(0, row)

    def counts(self, rows: int) -> list[int]:
        """Returns how many of the first `rows` rows of the phase each source has."""
        counts: list[int] = []
        for split in self._stages[bisect.bisect_right(self._starts, rows) - 1]:
            others = split.others(rows)
            counts.append(rows - others)
            rows = others
        return [rows, *reversed(counts)]

    def fingerprint(self) -> dict[str, str]:
        """Returns the values that decide the sources of the rows."""
        found = {"weights": ", ".join(map(repr, self._weights))}
        if len(self._starts) > 1:
            found["stages"] = f"{rng.digest128(0, *self._starts):032x}"
        return found


def stage_starts(steps: int, sizes: BatchSizes) -> list[int]:
    """Returns the first row of each stage of a phase: one stage per step, or 1,000.

    `sizes` has the rows of each step.
    """
    stages = min(steps, _MOST_STAGES)
    return [sizes.rows(steps * stage // stages).start for stage in range(stages)]


def _normalized(weights: Sequence[float]) -> list[float]:
    total = sum(weights)
    return [weight / total for weight in weights]


ONE_SOURCE: Final = Mixture([1.0])
