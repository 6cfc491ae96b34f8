"""Callables that make the batch of a step; the loader sends them to worker processes."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from bert_jax.data import rng
from bert_jax.data.host_share import HostShare
from bert_jax.data.loader.data_position import BatchSizes
from bert_jax.data.loader.mixture import Mixture
from bert_jax.data.loader.row_order import RowOrder
from bert_jax.task import ChangingTransform, Row, RowTransform


class ExampleSequence(Protocol):
    """Random access to examples. It can be pickled; each worker process opens the files itself."""

    fingerprint: str  # hash of the content: equal if the examples at every index are equal
    lengths: np.ndarray  # number of tokens of each example, integers `[len(self)]`

    def __len__(self) -> int: ...

    def __getitems__(self, indices: Sequence[int], /) -> list[Any]:
        """Returns examples, in the order of ``indices``, as the row transform expects them."""
        ...


class Source(NamedTuple):
    """A dataset of a phase, with its own order of rows."""

    dataset: ExampleSequence
    order: RowOrder
    seed: int  # seed of the order and the masks

    def read(
        self, rows: Sequence[int], *, phase: int
    ) -> list[tuple[list[Any], list[np.random.Generator]]]:
        """Returns the examples of each row, and a random stream for each example."""
        lengths = np.asarray(self.dataset.lengths)  # faster to slice than a memmap
        indices = [self.order.examples(row, lengths) for row in rows]
        # One read for the whole batch is several times as fast as one read per row.
        examples = iter(self.dataset.__getitems__(list(itertools.chain.from_iterable(indices))))
        epochs = [row // self.order.rows for row in rows]
        return [
            (
                list(itertools.islice(examples, len(of_row))),
                [rng.stream(self.seed, "mask", phase, epoch, index) for index in of_row],
            )
            for epoch, of_row in zip(epochs, indices, strict=True)
        ]


@dataclasses.dataclass(frozen=True)
class TrainingBatch:
    """Makes this host's part of the batch of a training step."""

    sources: Sequence[Source]
    mixture: Mixture  # source of each row
    transform: RowTransform
    sizes: BatchSizes  # rows in each global batch
    share: HostShare
    phase: int  # index of the phase in the run
    ahead: int = 0  # step of the run minus index of the batch
    total: int = 0  # steps of the run; 0 outside a run

    def __call__(self, step: int) -> Row:
        """Returns the arrays of a batch, ``[rows / share.count, ...]``."""
        rows = self.sizes.rows(step)
        places = [self.mixture.at(row) for row in rows[self.share.part(len(rows))]]
        found = []
        for at, source in enumerate(self.sources):
            own = [place.row for place in places if place.source == at]
            found.append(iter(source.read(own, phase=self.phase)))
        records, streams = zip(*(next(found[place.source]) for place in places), strict=True)
        transform = self.transform
        if self.total and isinstance(transform, ChangingTransform):
            transform = transform.at((step + self.ahead) / self.total)
        return transform.batch(records, streams)


@dataclasses.dataclass(frozen=True)
class EvaluationBatch:
    """Makes this host's part of an evaluation batch, padded to full size."""

    dataset: ExampleSequence  # examples, read in their order
    transform: RowTransform  # transform to rows of one example each
    batch_size: int  # rows in the global batch
    share: HostShare
    seed: int  # seed of the masks
    total: int  # number of examples to read, from the first

    def __call__(self, step: int) -> Row:
        """Returns arrays ``[batch_size / share.count, ...]``. Rows past the end are zeros."""
        rows = BatchSizes(self.batch_size).rows(step)[self.share.part(self.batch_size)]
        # If this host has no example, make one row for the array shapes; it is zeroed below.
        indices = [row for row in rows if row < self.total] or [0]
        batch = self.transform.batch(
            [[example] for example in self.dataset.__getitems__(indices)],
            [[rng.stream(self.seed, "evaluate", index)] for index in indices],
        )
        kept = max(0, min(len(rows), self.total - rows.start))
        for name, values in batch.items():
            batch[name] = np.zeros((len(rows), *values.shape[1:]), values.dtype)
            batch[name][:kept] = values[:kept]
        return batch
