"""Rows of different lengths as batches of few shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from bert_jax.data import rng
from bert_jax.data.host_share import ONE_HOST, HostShare
from bert_jax.data.loader.data_position import DataPosition
from bert_jax.data.loader.loader import Batches, background_batches
from bert_jax.data.rows.length_buckets import buckets_of, buckets_up_to
from bert_jax.task import Row
from bert_jax.tasks.family import NO_LABEL, Encoded, Split

# Where a row stands in its split; filler has none.
ROW: Final = "row"
WEIGHTS: Final = "row_weights"

# What the model reads of a batch; where there are choices, a row of each for every choice.
INPUTS: Final = ("input_ids", "token_type_ids", "segment_ids")

# A bucket with a smaller share of the rows is none of its own.
SPARSE: Final = 0.1

# Positions that a second part of a batch costs, whatever is in it: the gradient of the embedding
# table is written once more. Halves that as much padding makes alike are one part.
SECOND_PART: Final = 128


class Part(NamedTuple):
    """Rows of one batch that are padded to one length."""

    length: int  # positions of each row
    size: int  # rows that it has room for; what is left is filled up
    rows: np.ndarray  # int64 [<= size]


Planned: TypeAlias = tuple[Part, ...]  # one batch, not made yet


class EpochPlan:
    """Which rows make up which batch of an epoch.

    Rows are put in the order of their buckets, shuffled within each, and cut into half batches.
    The shortest half joins the one right above the median, and so on up to the median and the
    longest: texts of one length are often of one source, and batches of them alone noisier samples
    than random ones, which costs a dev figure a point or more. A half is padded to its own bucket;
    halves of nearly one length are one part.

    So every row comes once, every batch but one is full, and an epoch has
    ``ceil(rows / batch_size)`` batches. Lengths and order of the batches depend on the epoch alone,
    only which rows are in them on the seed: runs that differ in their seed can then be computed
    side by side in one program.
    """

    def __init__(self, lengths: np.ndarray, *, batch_size: int, max_length: int, seed: int) -> None:
        """Sorts the rows into buckets.

        Args:
            lengths: pieces of each row, int [rows].
            batch_size: rows of a batch.
            max_length: no row is longer.
            seed: of the run.
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
        self._batches: list[Planned] = []

    def batch(self, step: int) -> Planned:
        """Returns the batch of a step of the run."""
        epoch, at = divmod(step, self.steps)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._plan(epoch)
        return self._batches[at]

    @property
    def shapes(self) -> int:
        """How many different shapes the batches have."""
        return len({tuple(part[:2] for part in planned) for planned in self._plan(0)})

    @property
    def mean_length(self) -> float:
        """Positions of a row, padding included, on average over an epoch."""
        parts = [part for planned in self._plan(0) for part in planned]
        return sum(part.length * part.size for part in parts) / sum(part.size for part in parts)

    def _plan(self, epoch: int) -> list[Planned]:
        generator = rng.stream(self._seed, "finetune rows", epoch)
        rows = np.concatenate([generator.permutation(members) for _, members in self._by_bucket])
        padded = np.concatenate([np.full(len(rows), length) for length, rows in self._by_bucket])

        def part(at: Stretch) -> Part:
            # Without rows it has the length of those that follow: no shape of its own.
            return Part(int(padded[max(at.first, at.end - 1)]), at.size, rows[at.first : at.end])

        batches = [
            _joined(part(shorter), part(longer))
            for shorter, longer in _halves(len(rows), self.batch_size)
        ]
        order = rng.stream(0, "finetune batches", epoch).permutation(len(batches))
        return [batches[at] for at in order]


class TrainBatches:
    """The batches of a fine-tuning run, epoch after epoch, as the train loop takes them."""

    def __init__(
        self,
        split: Split,
        *,
        batch_size: int,
        max_length: int,
        seed: int,
        pad_id: int,
        unit: int = 1,
        share: HostShare = ONE_HOST,
    ) -> None:
        """Plans the first epoch.

        Args:
            split: the training split.
            batch_size: rows of a batch on all hosts.
            max_length: no row is longer.
            seed: of the run.
            pad_id: of the tokenizer.
            unit: each part of a batch is filled up to a multiple of so many rows.
            share: this host's part of a batch.
        """
        self.plan = EpochPlan(
            split.lengths, batch_size=batch_size, max_length=max_length, seed=seed
        )
        self._split, self._pad_id, self._unit = split, pad_id, unit
        self._share = share
        self._fingerprint: dict[str, str | int | float] = {
            "seed": seed,
            "rows": len(split.lengths),
            "pieces": int(split.lengths.sum()),
            "max_length": max_length,
        }

    def position(self, step: int) -> DataPosition:
        """Returns where the data stands after so many steps."""
        rows = step * self.plan.batch_size
        return DataPosition(example_index=rows, fingerprint=self._fingerprint)

    def check(self, position: DataPosition) -> int:
        """Returns the steps that lie before a position.

        Raises:
            UserError: it was made with other data or settings.
        """
        return position.step(batch_size=self.plan.batch_size, fingerprint=self._fingerprint)

    def make(self, step: int) -> tuple[Row, ...]:
        """Returns this host's rows of each part of a step's batch."""
        return tuple(self._collate(part) for part in self.plan.batch(step))

    def _collate(self, part: Part) -> Row:
        size = -(-part.size // self._unit) * self._unit
        return collate(
            self._split,
            part.rows[self._share.part(size)],
            count=size // self._share.count,
            length=part.length,
            pad_id=self._pad_id,
        )

    def batches(self, *, first_step: int) -> Batches[tuple[Row, ...]]:
        """Returns the endless stream of batches, made ahead in the background."""
        return background_batches(self.make, first_step=first_step)


def evaluation_batches(
    split: Split, *, batch_size: int, max_length: int, pad_id: int
) -> Iterator[dict[str, np.ndarray]]:
    """Yields every row once, each padded to its own bucket, so that its logits depend on it alone.

    Args:
        split: what to predict.
        batch_size: rows of a batch; the last of a bucket is filled up.
        max_length: no row is longer.
        pad_id: of the tokenizer.
    """
    buckets = buckets_up_to(max_length)
    found = buckets_of(split.lengths, buckets)
    for bucket in buckets:
        for rows in _cut(np.flatnonzero(found == bucket), batch_size):
            yield collate(split, rows, count=batch_size, length=bucket, pad_id=pad_id)


def collate(
    split: Split, rows: np.ndarray, *, count: int, length: int, pad_id: int
) -> dict[str, np.ndarray]:
    """Returns rows as a batch, filled up with rows that weigh nothing.

    ``input_ids``, ``token_type_ids``, ``segment_ids`` int32 [count, length], or [count, choices,
    length]; ``row_weights`` float32 [count]; ``row`` int32 [count]; and the targets by name.

    Args:
        split: where the rows come from.
        rows: at most `count` of them; without any, all of it is filler.
        count: rows of the batch.
        length: positions of a row.
        pad_id: of the tokenizer.
    """
    encoded = [split.row(int(row)) for row in rows]
    like = encoded[0] if encoded else split.row(0)  # for the targets' names and shapes
    choices = len(like.sequences)
    batch: dict[str, Any] = {
        "input_ids": np.full((count, choices, length), pad_id, np.int32),
        "token_type_ids": np.zeros((count, choices, length), np.int32),
        "segment_ids": np.zeros((count, choices, length), np.int32),
        ROW: np.full(count, -1, np.int32),
        WEIGHTS: np.zeros(count, np.float32),
    }
    batch[ROW][: len(rows)] = rows
    batch[WEIGHTS][: len(rows)] = 1.0
    for at, row in enumerate(encoded):
        for choice, (ids, second) in enumerate(zip(row.sequences, row.seconds, strict=True)):
            size = len(ids)
            batch["input_ids"][at, choice, :size] = ids
            batch["token_type_ids"][at, choice, second:size] = 1
            batch["segment_ids"][at, choice, :size] = 1
    if choices == 1:
        for name in INPUTS:
            batch[name] = batch[name][:, 0]
    return batch | _targets(encoded, like, count=count, length=length)


class Stretch(NamedTuple):
    """Some of the rows, counted from the shortest."""

    first: int
    end: int
    size: int  # rows there is room for


def _halves(rows: int, batch_size: int) -> Iterator[tuple[Stretch, Stretch]]:
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
            Stretch(shorter - int(counts[at]), shorter, small),
            Stretch(longer - int(counts[batches + at]), longer, large),
        )


def _joined(shorter: Part, longer: Part) -> Planned:
    """Returns two halves as parts of a batch: as one, where that costs little padding."""
    if not shorter.size:
        return (longer,)
    if (longer.length - shorter.length) * shorter.size > SECOND_PART:
        return (shorter, longer)
    rows = np.concatenate([shorter.rows, longer.rows])
    return (Part(longer.length, shorter.size + longer.size, rows),)


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


def _targets(
    encoded: Sequence[Encoded], like: Encoded, *, count: int, length: int
) -> dict[str, np.ndarray]:
    targets = {}
    for name, first in like.targets.items():
        first = np.asarray(first)
        kind = np.int32 if first.dtype.kind in "iub" else np.float32
        per_piece = first.ndim == 1 and kind is np.int32
        shape = (count, length) if per_piece else (count, *first.shape)
        values = np.full(shape, NO_LABEL if per_piece else 0, kind)
        for at, row in enumerate(encoded):
            value = np.asarray(row.targets[name])
            if per_piece:
                values[at, : len(value)] = value
            else:
                values[at] = value
        targets[name] = values
    return targets


def _cut(rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
