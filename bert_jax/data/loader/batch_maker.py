"""The batch of a step, made from the dataset: what travels to the loader's workers."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import numpy as np

from bert_jax.data import rng
from bert_jax.data.loader.order import Order
from bert_jax.data.rows.collate import stack_rows
from bert_jax.data.rows.packing import PackedRow
from bert_jax.task import Features, Row

if TYPE_CHECKING:
    from bert_jax.data.loader.example_sequence import ExampleSequence


@dataclasses.dataclass(frozen=True)
class HostShare:
    """The rows of each global batch that one host makes."""

    batch_size: int
    process_index: int
    process_count: int

    @property
    def size(self) -> int:
        """Rows of this host in a batch."""
        return self.batch_size // self.process_count

    def rows(self, step: int) -> range:
        """Returns the rows of batch ``step``, counted from the start of the phase."""
        first = step * self.batch_size + self.process_index * self.size
        return range(first, first + self.size)


@dataclasses.dataclass(frozen=True)
class TrainingBatch:
    """Makes the batch of one step of a phase.

    Attributes:
        dataset: the examples.
        features: makes a row of an example, or of several.
        seed: of masks.
        phase: which of the run's phases this is.
        share: this host's rows.
        order: which examples make which row.
        static_copies: epochs after which masks come again; None: never.
    """

    dataset: ExampleSequence
    features: Features | PackedRow
    seed: int
    phase: int
    share: HostShare
    order: Order
    static_copies: int | None

    def __call__(self, step: int) -> Row:
        """Returns the arrays of a batch, [share.size, ...]."""
        places = self.share.rows(step)
        lengths = np.asarray(self.dataset.lengths)  # each slice of a memmap costs microseconds
        indices = [self.order.examples(place, lengths) for place in places]
        # One read for all of the batch is several times as fast as one for each row.
        examples = iter(self.dataset.__getitems__(list(itertools.chain.from_iterable(indices))))
        records = [list(itertools.islice(examples, len(of_row))) for of_row in indices]
        streams = [
            [self._stream(place, index) for index in of_row]
            for place, of_row in zip(places, indices, strict=True)
        ]
        if isinstance(self.features, PackedRow):
            return self.features.batch(records, streams)
        rows = [
            self.features(record, stream)
            for (record,), (stream,) in zip(records, streams, strict=True)
        ]
        return stack_rows(rows, batch_size=self.share.size)

    def _stream(self, place: int, index: int) -> np.random.Generator:
        epoch = place // self.order.rows
        if self.static_copies is not None:
            epoch %= self.static_copies
        return rng.stream(self.seed, "mask", self.phase, epoch, index)


@dataclasses.dataclass(frozen=True)
class EvaluationBatch:
    """Makes one batch of an evaluation, padded to its full size.

    Attributes:
        dataset: the examples, read in their order.
        features: makes a row of an example.
        seed: of masks.
        share: this host's rows.
        total: examples to read, from the front.
    """

    dataset: ExampleSequence
    features: Features
    seed: int
    share: HostShare
    total: int

    def __call__(self, step: int) -> Row:
        """Returns the arrays of a batch, [share.size, ...]."""
        indices = [row for row in self.share.rows(step) if row < self.total]
        # A host whose share lies beyond the end makes one row all the same, for its shapes.
        examples = self.dataset.__getitems__(indices or [0])
        rows = [
            self.features(example, rng.stream(self.seed, "evaluate", index))
            for index, example in zip(indices or [0], examples, strict=True)
        ]
        return stack_rows(rows[: len(indices)], batch_size=self.share.size, like=rows[0])
