"""Rows of different lengths as batches of few shapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from bert_jax.data import rng
from bert_jax.data.buckets import buckets_of, buckets_up_to
from bert_jax.data.loader import Batches, made_ahead
from bert_jax.data.position import Position
from bert_jax.finetune.family import NO_LABEL, Encoded, Split

# Where a row stands in its split; filler has none.
ROW: Final = "row"
WEIGHTS: Final = "row_weights"

# What the model reads of a batch; where there are choices, a row of each for every choice.
INPUTS: Final = ("input_ids", "token_type_ids", "segment_ids")

# A bucket with a smaller share of the rows is none of its own.
SPARSE: Final = 0.05


class Planned(NamedTuple):
    """One batch, not made yet."""

    length: int  # positions of each row
    rows: np.ndarray  # int64 [<= batch size]


class EpochPlan:
    """Which rows make up which batch of an epoch.

    Rows of one bucket are shuffled and cut into batches; what is left of a bucket, less than a
    batch, joins the next longer one. So every row comes once, every batch but the epoch's last
    is full, and an epoch has ``ceil(rows / batch_size)`` batches. Lengths and order of the batches
    depend on the epoch alone, only which rows are in them on the seed: runs that differ in their
    seed can then be computed side by side in one program.
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
        """How many different lengths the batches have."""
        return len(self._by_bucket)

    @property
    def mean_length(self) -> float:
        """Positions of a row, padding included, on average over an epoch."""
        return sum(planned.length for planned in self._plan(0)) / self.steps

    def _plan(self, epoch: int) -> list[Planned]:
        generator = rng.stream(self._seed, "finetune rows", epoch)
        batches, carried = [], np.empty(0, np.int64)
        for bucket, members in self._by_bucket:
            # What was carried goes first, so that no row is carried twice.
            rows = np.concatenate([carried, generator.permutation(members)])
            full = len(rows) // self.batch_size * self.batch_size
            batches += [Planned(bucket, part) for part in _cut(rows[:full], self.batch_size)]
            carried = rows[full:]
        if len(carried):
            batches.append(Planned(self._by_bucket[-1][0], carried))
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
        process: tuple[int, int] = (0, 1),
    ) -> None:
        """Plans the first epoch.

        Args:
            split: the training split.
            batch_size: rows of a batch on all hosts.
            max_length: no row is longer.
            seed: of the run.
            pad_id: of the tokenizer.
            process: this host's share of a batch, and the number of shares.
        """
        self.plan = EpochPlan(
            split.lengths, batch_size=batch_size, max_length=max_length, seed=seed
        )
        self._split, self._pad_id = split, pad_id
        self._index, self._count = process
        self._fingerprint: dict[str, str | int | float] = {
            "seed": seed,
            "rows": len(split.lengths),
            "pieces": int(split.lengths.sum()),
            "max_length": max_length,
        }

    def position(self, step: int) -> Position:
        """Returns where the data stands after so many steps."""
        rows = step * self.plan.batch_size
        return Position(example_index=rows, fingerprint=self._fingerprint)

    def check(self, position: Position) -> int:
        """Returns the steps that lie before a position.

        Raises:
            UserError: it was made with other data or settings.
        """
        return position.step(batch_size=self.plan.batch_size, fingerprint=self._fingerprint)

    def make(self, step: int) -> dict[str, np.ndarray]:
        """Returns this host's rows of a step's batch."""
        planned = self.plan.batch(step)
        share = self.plan.batch_size // self._count
        mine = planned.rows[self._index * share : (self._index + 1) * share]
        return collate(self._split, mine, count=share, length=planned.length, pad_id=self._pad_id)

    def batches(self, *, first_step: int) -> Batches:
        """Returns the endless stream of batches, made ahead in the background."""
        return made_ahead(self.make, first_step=first_step)


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
        rows: at most `count` of them, and at least one.
        count: rows of the batch.
        length: positions of a row.
        pad_id: of the tokenizer.
    """
    encoded = [split.row(int(row)) for row in rows]
    choices = len(encoded[0].sequences) if encoded else 1
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
    return batch | _targets(encoded, count=count, length=length)


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


def _targets(encoded: Sequence[Encoded], *, count: int, length: int) -> dict[str, np.ndarray]:
    targets = {}
    for name, first in (encoded[0].targets if encoded else {}).items():
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
