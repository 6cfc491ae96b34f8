"""The batch of a step, made from the dataset: the callable that is sent to worker processes."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np

from bert_jax.data import rng
from bert_jax.data.host_share import HostShare
from bert_jax.data.loader.row_order import RowOrder
from bert_jax.task import HostBatch, Row, RowTransform

_KEY: Final = "example_indices"
_NONE: Final = -1


def attach(batch: Row, indices: Sequence[Sequence[int]], *, epochs: Sequence[int]) -> Row:
    """Adds the dataset's indices of each row's examples, and its epoch, for use on the host."""
    table = np.full((len(indices), 1 + max(map(len, indices), default=0)), _NONE, np.int64)
    for row, (epoch, examples) in enumerate(zip(epochs, indices, strict=True)):
        table[row, : 1 + len(examples)] = epoch, *examples
    return {**batch, _KEY: table}


def detach(batch: HostBatch) -> tuple[HostBatch, dict[int, list[int]] | None]:
    """Returns a batch without what `attach` added, and the indices by epoch, if it added any."""
    if _KEY not in batch:
        return batch, None
    found: dict[int, list[int]] = {}
    for epoch, *examples in batch[_KEY].tolist():
        found.setdefault(epoch, []).extend(index for index in examples if index != _NONE)
    return {name: batch[name] for name in batch if name != _KEY}, found


class ExampleSequence(Protocol):
    """Random access to examples. Picklable: a worker process opens the files itself."""

    fingerprint: str  # identity of the content: equal if every index has the same example
    lengths: np.ndarray  # tokens of each example, an integer type `[len(self)]`

    def __len__(self) -> int: ...

    def __getitems__(self, indices: Sequence[int], /) -> list[Any]:
        """Returns examples in the order of ``indices``, as the row transform takes them."""
        ...


@dataclasses.dataclass(frozen=True)
class TrainingBatch:
    """Makes this host's part of the batch of one step of a phase."""

    dataset: ExampleSequence
    transform: RowTransform
    batch_size: int  # rows in the global batch
    share: HostShare
    seed: int  # of masks
    phase: int  # its index in the run
    order: RowOrder
    with_examples: bool = False  # whether to `attach` the examples of each row

    def __call__(self, step: int) -> Row:
        """Returns the arrays of a batch, ``[batch_size / share.count, ...]``."""
        rows = _rows(step, self.batch_size, self.share)
        lengths = np.asarray(self.dataset.lengths)  # each slice of a memmap costs microseconds
        indices = [self.order.examples(row, lengths) for row in rows]
        # One read for the whole batch is several times as fast as one for each row.
        examples = iter(self.dataset.__getitems__(list(itertools.chain.from_iterable(indices))))
        records = [list(itertools.islice(examples, len(of_row))) for of_row in indices]
        epochs = [row // self.order.rows for row in rows]
        streams = [
            [rng.stream(self.seed, "mask", self.phase, epoch, index) for index in of_row]
            for epoch, of_row in zip(epochs, indices, strict=True)
        ]
        batch = self.transform.batch(records, streams)
        return attach(batch, indices, epochs=epochs) if self.with_examples else batch


@dataclasses.dataclass(frozen=True)
class EvaluationBatch:
    """Makes this host's part of a batch of an evaluation, padded to full size."""

    dataset: ExampleSequence  # read in its order
    transform: RowTransform  # to rows of one example each
    batch_size: int  # rows in the global batch
    share: HostShare
    seed: int  # of masks
    total: int  # examples to read, from the front

    def __call__(self, step: int) -> Row:
        """Returns arrays ``[batch_size / share.count, ...]``; rows beyond the end are zeros."""
        rows = _rows(step, self.batch_size, self.share)
        # A host whose part lies beyond the end makes one row all the same, for its shapes.
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


def _rows(step: int, batch_size: int, share: HostShare) -> range:
    """Returns this host's rows of batch ``step``, counted from the start of the phase."""
    return range(step * batch_size, (step + 1) * batch_size)[share.part(batch_size)]
