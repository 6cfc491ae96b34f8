"""From a dataset on disk to an endless stream of batches. The only file that imports Grain."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Self, TypeVar, cast

import grain
import numpy as np
from absl import flags

from bert_jax.data import rng
from bert_jax.data.loader.affine_permutation import Exchange
from bert_jax.data.loader.batch_maker import EvaluationBatch, HostShare, TrainingBatch
from bert_jax.data.loader.length_index import LengthIndex
from bert_jax.data.loader.order import Order, PackedOrder, SingleOrder
from bert_jax.data.loader.position import Position
from bert_jax.data.loader.section import LoaderSection
from bert_jax.data.rows.packing import PackedRow
from bert_jax.data.rows.packing_plan import PackingPlan
from bert_jax.data.worker_process import prepare_worker
from bert_jax.errors import UserError
from bert_jax.task import Features, Row

if TYPE_CHECKING:
    from bert_jax.data.loader.example_sequence import ExampleSequence

Made = TypeVar("Made")

_STEPS = 2**40  # steps of an endless run: more than can be walked, and Grain still slices it


class Batches(Iterator[Made]):
    """Batches in order, made in the background.

    Iterate, then call ``close()`` or leave the ``with`` block. Making them starts at construction,
    so that the first batches are ready when a train step has compiled. Closing ends the threads or
    worker processes behind it.
    """

    def __init__(self, batches: grain.MapDataset, section: LoaderSection) -> None:
        """Starts making ``batches``, one element of it per batch, as ``section`` says."""
        if (
            not flags.FLAGS.is_parsed()
        ):  # Grain reads absl flags; nothing here is run through absl.app
            flags.FLAGS.mark_as_parsed()
        here = grain.ReadOptions(num_threads=1, prefetch_buffer_size=section.prefetch)
        in_worker = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        if section.workers:
            # Through a pipe, not shared memory: no slower for batches of a few megabytes, and
            # containers often have 64 MB of it, beyond which a write ends the process.
            options = grain.experimental.DatasetOptions(min_shm_size=sys.maxsize)
            stream = grain.experimental.WithOptionsIterDataset(
                batches.to_iter_dataset(in_worker), options
            )
            stream = stream.mp_prefetch(
                grain.MultiprocessingOptions(
                    num_workers=section.workers, per_worker_buffer_size=section.prefetch
                ),
                worker_init_fn=prepare_worker,
            )
        else:
            stream = batches.to_iter_dataset(here)
        self._iterator = iter(stream)
        # Asked for its state, Grain's interleaving makes the iterators of all workers, which
        # otherwise waits for the first `next`, and holds them, so that `close` reaches every one.
        self._iterator.get_state()
        self._iterator.start_prefetch()

    def __next__(self) -> Made:
        """Returns the next batch.

        Raises:
            StopIteration: after the last batch.
            Exception: what making the batch raised, in whichever thread or process that was.
        """
        try:
            return next(self._iterator)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends what works in the background. Idempotent."""
        self._iterator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class Loader:
    """The batches of one phase: every example once an epoch, each epoch shuffled and masked anew.

    Row p of the phase (p = 0, 1, ... over all hosts and steps) is in epoch ``p // rows_per_epoch``;
    which examples it holds, and what their masks are, follows from the seed, the phase, the epoch
    and p. Without packing there is a row for each example; with it, as many in every epoch.
    Batch s is the rows ``s * batch_size .. (s + 1) * batch_size - 1``, of which host h gets the
    h-th contiguous share. So the global batch depends neither on the number of hosts nor on that
    of workers, and seeking to any step takes no time.
    """

    def __init__(
        self,
        *,
        dataset: ExampleSequence,
        features: Features | PackedRow,
        batch_size: int,
        seed: int,
        phase: int = 0,
        process_index: int = 0,
        process_count: int = 1,
        static_copies: int | None = None,
        section: LoaderSection,
    ) -> None:
        """Checks that dataset, rows and hosts fit together and plans the rows; starts nothing.

        Args:
            dataset: the examples.
            features: makes a row of an example, or of several.
            batch_size: rows in the global batch, over all hosts.
            seed: of order and masks.
            phase: which of the run's phases this is: a second phase over the same dataset must not
                walk it in the order, and with the masks, of the first.
            process_index: which host this is, from 0.
            process_count: number of hosts.
            static_copies: epochs after which masks come again; None: never.
            section: workers and prefetch.

        Raises:
            UserError: if the batch does not divide among the hosts, the dataset is empty, or an
                example is longer than a row.
        """
        _check_fit(dataset, features, batch_size=batch_size, process_count=process_count)
        self._dataset = dataset
        self._features = features
        self._batch_size = batch_size
        self._seed = seed
        self._phase = phase
        self._share = HostShare(batch_size, process_index, process_count)
        self._static_copies = static_copies
        self._section = section
        self._order = _order(dataset, features, seed=seed, phase=phase)

    @property
    def rows_per_epoch(self) -> int:
        """Rows after which every example has been seen once more, over all hosts."""
        return self._order.rows

    def batches(self, *, first_step: int) -> Batches[Row]:
        """Returns this host's rows of batch ``first_step``, ``first_step + 1``, ... without end.

        Each batch is a dict of arrays ``[batch_size / process_count, ...]``.
        """
        make = TrainingBatch(
            self._dataset,
            self._features,
            self._seed,
            self._phase,
            self._share,
            self._order,
            self._static_copies,
        )
        steps = grain.MapDataset.range(first_step, first_step + _STEPS)
        return Batches(steps.map(make), self._section)

    def position(self, step: int) -> Position:
        """Returns where the data stands after ``step`` batches of this phase."""
        return Position(example_index=step * self._batch_size, fingerprint=self._fingerprint())

    def check(self, position: Position) -> int:
        """Returns the step that a data position stands at: where ``batches`` has to start.

        The batch size may have changed, if the new one divides the rows read so far.

        Raises:
            UserError: naming the field in which this loader differs from the one of the checkpoint.
        """
        return position.step(batch_size=self._batch_size, fingerprint=self._fingerprint())

    def _fingerprint(self) -> dict[str, str | int | float]:
        return {
            "dataset": self._dataset.fingerprint,
            "seed": self._seed,
            "phase": self._phase,
            **self._features.fingerprint(),
        }


def evaluation_batches(
    dataset: ExampleSequence,
    features: Features,
    *,
    batch_size: int,
    seed: int,
    limit: int | None,
    process_index: int = 0,
    process_count: int = 1,
) -> Batches[Row]:
    """Returns this host's rows of every example once, in the dataset's order, always masked alike.

    Ten examples in batches of four are three batches on every host, and the last two rows of the
    last one weigh nothing: sums over all of the batches count each example exactly once.

    Args:
        dataset: the examples of a validation split.
        features: makes a row of an example.
        batch_size: rows in the global batch, over all hosts.
        seed: of the masks, which are a function of it and of the example's index alone.
        limit: how many examples from the front, or None for all.
        process_index: which host this is, from 0.
        process_count: number of hosts.

    Returns:
        Batches of arrays ``[batch_size / process_count, ...]``, as many on each host.

    Raises:
        UserError: as the loader's.
    """
    _check_fit(dataset, features, batch_size=batch_size, process_count=process_count)
    total = len(dataset) if limit is None else min(limit, len(dataset))
    share = HostShare(batch_size, process_index, process_count)
    steps = grain.MapDataset.range(math.ceil(total / batch_size))
    make = EvaluationBatch(dataset, features, seed, share, total)
    return Batches(steps.map(make), LoaderSection())


def made_ahead(make: Callable[[int], Made], *, first_step: int) -> Batches[Made]:
    """Returns ``make(first_step)``, ``make(first_step + 1)``, … without end, made in a thread.

    Args:
        make: called by one thread at a time, in order.
        first_step: where to begin.
    """
    steps = grain.MapDataset.range(first_step, first_step + _STEPS)
    return Batches(steps.map(make), LoaderSection())


def _order(
    dataset: ExampleSequence, features: Features | PackedRow, *, seed: int, phase: int
) -> Order:
    if not isinstance(features, PackedRow):
        return SingleOrder(len(dataset), _shuffled(len(dataset), seed, "shuffle", phase))
    index = LengthIndex(dataset.lengths)
    plan = PackingPlan(
        index.counts, capacity=features.seq_length, max_examples=features.max_examples
    )
    return PackedOrder(
        plan=plan,
        index=index,
        shuffled=_shuffled(plan.rows, seed, "shuffle", phase),
        exchanges={
            length: Exchange(count, seed, "exchange", phase, length)
            for length, count in enumerate(index.counts.tolist())
            if count
        },
    )


def _shuffled(length: int, seed: int, *key: int | str) -> Sequence[int]:
    """Returns Grain's global shuffle of ``0 .. length - 1``, another one each epoch, without end.

    Grain seeds epoch e with ``seed + e``; hashing ours first keeps the runs of neighbouring seeds
    from walking through the same orders.
    """
    shuffle_seed = int(rng.stream(seed, *key).integers(2**32))
    order = grain.MapDataset.range(length).shuffle(seed=shuffle_seed).repeat()
    return cast(Sequence[int], order)  # Grain's type says None may be in it; not without a filter


def _check_fit(
    dataset: ExampleSequence, features: Features | PackedRow, *, batch_size: int, process_count: int
) -> None:
    if batch_size < 1 or batch_size % process_count:
        raise UserError(
            f"batch_size: found {batch_size}, allowed: a multiple of the number of hosts, which is "
            f"{process_count}"
        )
    if not len(dataset):
        raise UserError("dataset: found no examples in this split, allowed: at least one")
    longest = int(np.max(dataset.lengths))
    if longest > features.seq_length:
        raise UserError(
            f"seq_length: found {features.seq_length}, but the dataset's longest example has "
            f"{longest} tokens; allowed: {longest} or more, or a dataset made for "
            f"{features.seq_length}"
        )
