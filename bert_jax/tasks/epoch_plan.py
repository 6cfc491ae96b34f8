"""Which rows make up which batch of a fine-tuning epoch, and how long they are padded."""

from typing import Final, NamedTuple

import numpy as np

from bert_jax.data import rng
from bert_jax.inference.lengths import choose_lengths, fitting
from bert_jax.model.shape_cost import ShapeCost

# Consecutive multiples of it, less their whole parts, are spread evenly.
_GOLDEN: Final = 0.6180339887


class PlannedBatch(NamedTuple):
    """Rows that are padded to one length."""

    length: int  # positions of each row
    rows: np.ndarray  # int64 [<= batch_size]


class EpochPlan:
    """Which rows make up which batch of an epoch.

    Rows are sorted by length and cut into as many groups as there are lengths to pad to; the rows
    of a group are shuffled in each epoch. Batches of one length are noisier samples than random
    ones, since texts of one length often share a source. So consecutive batches have lengths from
    all over the range.

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
        cost: ShapeCost,
    ) -> None:
        """Chooses the lengths; `lengths` are pieces of each row, none above `max_length`."""
        self.batch_size = batch_size
        self.steps = -(-len(lengths) // batch_size)
        self._seed, self._lengths = seed, lengths
        chosen = choose_lengths(lengths, max_length=max_length, program=cost.program / cost.passes)
        # Only the first batch, of the shortest rows, has less than its size.
        self._ends = len(lengths) - batch_size * np.arange(self.steps)[::-1]
        self._padded = fitting(np.sort(lengths)[self._ends - 1], chosen)
        self._epoch: int | None = None
        self._batches: list[PlannedBatch] = []

    def batch(self, step: int) -> PlannedBatch:
        """Returns the batch of a step of the run."""
        epoch, at = divmod(step, self.steps)
        if epoch != self._epoch:
            self._epoch, self._batches = epoch, self._plan(epoch)
        return self._batches[at]

    @property
    def shapes(self) -> frozenset[int]:
        """The lengths of the batches, of any seed."""
        return frozenset(self._padded.tolist())

    @property
    def mean_length(self) -> float:
        """Positions of a row, padding included, on average over an epoch."""
        return float(self._padded.mean())

    def _plan(self, epoch: int) -> list[PlannedBatch]:
        generator = rng.stream(self._seed, "finetune rows", epoch)
        rows = generator.permutation(len(self._lengths))
        rows = rows[np.argsort(self._lengths[rows], kind="stable")]
        groups = np.split(rows, self._ends[np.flatnonzero(np.diff(self._padded))])
        rows = np.concatenate([generator.permutation(group) for group in groups])
        batches = np.split(rows, self._ends[:-1])
        start = rng.stream(0, "finetune batches", epoch).random()
        order = np.argsort(np.argsort((start + _GOLDEN * np.arange(self.steps)) % 1))
        return [PlannedBatch(int(self._padded[at]), batches[at]) for at in order]
