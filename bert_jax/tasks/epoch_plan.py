"""Which rows make up which batch of a fine-tuning epoch, and in how many shapes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from bert_jax.data import rng
from bert_jax.inference.lengths import buckets_of, buckets_up_to
from bert_jax.model.shape_cost import ShapeCost

# A bucket with a smaller share of the rows joins the next longer one.
SPARSE: Final = 0.1

# Positions that a second group in a batch costs, whatever is in it: the gradient of the embedding
# table is written once more. Halves that as much padding makes equally long become one group.
SECOND_GROUP: Final = 128

BatchShapes: TypeAlias = tuple[tuple[int, int], ...]  # (length, size) of each group of a batch

# Lengths of a batch's two halves, the shorter first.
Lengths: TypeAlias = tuple[int, int]

# A step over halves of two lengths runs the model twice: so much longer it compiles.
TWO_PARTS: Final = 1.7


class LengthGroup(NamedTuple):
    """Rows of one batch that are padded to one length."""

    length: int  # positions of each row
    size: int  # rows it has room for; missing rows are filler
    rows: np.ndarray  # int64 [<= size]


PlannedBatch: TypeAlias = tuple[LengthGroup, ...]


class EpochPlan:
    """Which rows make up which batch of an epoch.

    Rows are sorted by bucket, shuffled within each, and cut into half batches. The shortest half
    is paired with the one right above the median, and so on up to the median and the longest:
    texts of one length often share a source, and batches of one length are noisier samples than
    random ones, which costs a dev figure a point or more. A half is padded to its own bucket;
    halves of nearly equal length form one group.

    Every row comes once, every batch but one is full, and an epoch has
    ``ceil(rows / batch_size)`` batches. Their lengths and order depend on the epoch alone; only
    which rows are in them depends on the seed, so that runs with different seeds share
    their compiled programs.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        *,
        batch_size: int,
        max_length: int,
        seed: int,
        cost: ShapeCost | None = None,
    ) -> None:
        """Sorts the rows, of `lengths` pieces (int [rows], none above `max_length`), into buckets.

        The cost decides how many shapes there are, see `choose_shapes`, and no more than how far
        rows are padded. None for a shape for each pair of buckets.
        """
        self.batch_size = batch_size
        self.steps = -(-len(lengths) // batch_size)
        self._seed = seed
        buckets = buckets_up_to(max_length)
        found = buckets_of(lengths, buckets)
        self._by_bucket = _without_sparse(
            [(bucket, np.flatnonzero(found == bucket)) for bucket in buckets]
        )
        self._epoch: int | None = None
        self._batches: list[PlannedBatch] = []
        self._pad_to: dict[tuple[int, int], tuple[int, int]] = {}
        if cost is not None and batch_size > 1:
            halves = batch_size // 2, batch_size - batch_size // 2
            kinds = Counter(
                (short.length, long.length) for short, long in self._pairs(np.arange(len(lengths)))
            )
            self._pad_to = choose_shapes(kinds, sizes=halves, cost=cost)

    def batch(self, step: int) -> PlannedBatch:
        """Returns the batch of a step of the run."""
        epoch, at = divmod(step, self.steps)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._plan(epoch)
        return self._batches[at]

    @property
    def shapes(self) -> frozenset[BatchShapes]:
        """The shapes that the batches have, of any seed."""
        return frozenset(
            tuple((group.length, group.size) for group in batch) for batch in self._plan(0)
        )

    @property
    def mean_length(self) -> float:
        """Positions of a row, padding included, on average over an epoch."""
        groups = [group for batch in self._plan(0) for group in batch]
        positions = sum(group.length * group.size for group in groups)
        return positions / sum(group.size for group in groups)

    def _plan(self, epoch: int) -> list[PlannedBatch]:
        generator = rng.stream(self._seed, "finetune rows", epoch)
        rows = np.concatenate([generator.permutation(members) for _, members in self._by_bucket])
        batches = [_joined(*self._padded(shorter, longer)) for shorter, longer in self._pairs(rows)]
        order = rng.stream(0, "finetune batches", epoch).permutation(len(batches))
        return [batches[at] for at in order]

    def _pairs(self, rows: np.ndarray) -> Iterator[tuple[LengthGroup, LengthGroup]]:
        """Yields the halves of each batch of rows in order of their buckets, each in its own."""
        padded = np.concatenate([np.full(len(rows), length) for length, rows in self._by_bucket])

        def group(at: RankRange) -> LengthGroup:
            # An empty one has the length of the rows that follow: no shape of its own.
            length = int(padded[max(at.first, at.end - 1)])
            return LengthGroup(length, at.size, rows[at.first : at.end])

        for shorter, longer in _halves(len(rows), self.batch_size):
            yield group(shorter), group(longer)

    def _padded(self, shorter: LengthGroup, longer: LengthGroup) -> tuple[LengthGroup, LengthGroup]:
        """Returns the halves of a batch at the lengths that were chosen for them."""
        own = shorter.length, longer.length
        short, long = self._pad_to.get(own, own)
        return shorter._replace(length=short), longer._replace(length=long)


class RankRange(NamedTuple):
    """Consecutive rows in order of their length, the shortest first."""

    first: int
    end: int
    size: int  # rows it has room for


def _halves(rows: int, batch_size: int) -> Iterator[tuple[RankRange, RankRange]]:
    """Yields the two halves of each batch, the shorter rows first.

    Five rows in batches of two: ``((0, 0, 1), (2, 3, 1))``, ``((0, 1, 1), (3, 4, 1))``,
    ``((1, 2, 1), (4, 5, 1))``. Only the first batch may have less than its size, and its longer
    half only if its shorter half has nothing.
    """
    batches = -(-rows // batch_size)
    missing = batches * batch_size - rows
    small, large = batch_size // 2, batch_size - batch_size // 2
    counts = np.repeat([small, large], batches)
    counts[0] = max(small - missing, 0)
    counts[batches] = large - max(missing - small, 0)
    ends = np.cumsum(counts)
    for at in range(batches):
        shorter, longer = int(ends[at]), int(ends[batches + at])
        yield (
            RankRange(shorter - int(counts[at]), shorter, small),
            RankRange(longer - int(counts[batches + at]), longer, large),
        )


def _joined(shorter: LengthGroup, longer: LengthGroup) -> PlannedBatch:
    """Returns two halves as the groups of a batch: as one where that costs little padding."""
    if not shorter.size:
        return (longer,)
    if (longer.length - shorter.length) * shorter.size > SECOND_GROUP:
        return (shorter, longer)
    rows = np.concatenate([shorter.rows, longer.rows])
    return (LengthGroup(longer.length, shorter.size + longer.size, rows),)


def _without_sparse(by_bucket: list[tuple[int, np.ndarray]]) -> list[tuple[int, np.ndarray]]:
    """Joins buckets of few rows to the next longer one: a program takes seconds to compile."""
    total = sum(len(rows) for _, rows in by_bucket)
    kept, carried = [], np.empty(0, np.int64)
    for bucket, rows in by_bucket:
        carried = np.concatenate([carried, rows])
        if len(carried) >= SPARSE * total:
            kept.append((bucket, np.sort(carried)))
            carried = carried[:0]
    if len(carried):
        longest = max(bucket for bucket, rows in by_bucket if len(rows))
        kept.append((longest, np.sort(carried)))
    return kept


def choose_shapes(
    batches: Mapping[Lengths, int], *, sizes: Lengths, cost: ShapeCost
) -> dict[Lengths, Lengths]:
    """Returns what to pad each kind of batch to, so that padding and compiling cost least.

    ``choose_shapes({(16, 32): 90, (24, 32): 1}, sizes=(8, 8), cost=…)`` → ``{(16, 32): (24, 32),
    (24, 32): (24, 32)}`` where compiling costs more than padding 90 half batches by 8.

    From the shapes as they are, the change that saves most is made until none saves: two shapes
    become one, as long as the longer of each half; or both halves of one become equally long.
    Which rows are in a batch does not change. `batches` counts an epoch's batches of each kind;
    `sizes` are the rows of the two halves.
    """
    chosen = {lengths: lengths for lengths in batches}
    seconds = _seconds(chosen, batches, sizes, cost)
    while True:
        changed = min(
            _changes(chosen), key=lambda each: _seconds(each, batches, sizes, cost), default=chosen
        )
        found = _seconds(changed, batches, sizes, cost)
        if found >= seconds:
            return chosen
        chosen, seconds = changed, found


def _changes(chosen: Mapping[Lengths, Lengths]) -> Iterator[dict[Lengths, Lengths]]:
    targets = sorted(set(chosen.values()))
    for one, other in itertools.combinations_with_replacement(targets, 2):
        joined = max(one[0], other[0]), max(one[1], other[1])
        for target in {joined, (joined[1], joined[1])}:
            yield {k: target if now in (one, other) else now for k, now in chosen.items()}


def _seconds(
    chosen: Mapping[Lengths, Lengths],
    batches: Mapping[Lengths, int],
    sizes: Lengths,
    cost: ShapeCost,
) -> float:
    """Returns what compiling and computing with these shapes take."""
    programs = sum(1.0 if short == long else TWO_PARTS for short, long in set(chosen.values()))
    positions = sum(
        count * (chosen[kind][0] * sizes[0] + chosen[kind][1] * sizes[1])
        for kind, count in batches.items()
    )
    return programs * cost.program + positions * cost.passes * cost.position
