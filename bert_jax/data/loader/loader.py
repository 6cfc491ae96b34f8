"""The stream of batches of a dataset. This is the only file that imports Grain."""

import concurrent.futures
import dataclasses
import math
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Final, NamedTuple, Self, TypeVar, cast

import grain
from absl import flags

from bert_jax.data import rng
from bert_jax.data.dataset.schema import check_row_length
from bert_jax.data.host_share import ONE_HOST, HostShare
from bert_jax.data.loader import row_order
from bert_jax.data.loader.batch_maker import (
    EvaluationBatch,
    ExampleSequence,
    Source,
    TrainingBatch,
)
from bert_jax.data.loader.data_position import BatchSizes, PositionedBatches
from bert_jax.data.loader.mixture import ONE_SOURCE, Mixture
from bert_jax.data.loader.packing import PackingPlan
from bert_jax.data.loader.section import LoaderSection
from bert_jax.data.worker_process import prepare_worker, start_resource_tracker
from bert_jax.errors import LoaderWorkerKilled, UserError
from bert_jax.task import Row, RowTransform

T = TypeVar("T")
R = TypeVar("R")

PREFETCH: Final = 4  # number of batches that each worker makes in advance

# Names of the fingerprint values that assign examples to rows.
_ORDER = (
    *("dataset", "weights", "stages"),
    *("seed", "phase", "packing", "packing.max_examples"),
)

_WORKER_DIED = "Worker process was terminated unexpectedly"  # Grain's message
# A worker that is killed while it sends a batch leaves half of the batch in the pipe. Grain then
# waits forever for the rest, in `next` and in `close`. So the loader checks its workers at this
# interval.
_CHECK_SECONDS = 3.0
_CLOSE_SECONDS = 40.0  # time limit for Grain to end one process; Grain kills it after 25 seconds
_START_SECONDS = 10.0  # time limit for Grain to start its processes
_STEPS = 2**40  # steps of an "endless" stream: no run reaches the end


STUCK: Final = threading.Event()
"""Set after a loader did not close, because Grain waits for a dead worker: exit handlers would
wait too, so exit with `os._exit`."""


class _WorkerDied(Exception):
    """A worker process ended with an exit code other than 0."""


class Batches(Iterator[T]):
    """Batches in order, made in the background.

    The threads or worker processes start in the constructor, so that the first batches are ready
    when the train step has compiled. ``close()``, or the end of a ``with`` block, ends them.
    """

    def __init__(self, batches: grain.MapDataset, section: LoaderSection) -> None:
        if not flags.FLAGS.is_parsed():  # Grain needs parsed absl flags, and absl.app is not used
            flags.FLAGS.mark_as_parsed()
        if section.workers:
            start_resource_tracker()
            in_worker = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
            # Batches go through a pipe instead of shared memory. For batches of a few megabytes a
            # pipe is as fast. Containers often have only 64 MB of shared memory; writing more would
            # kill the process.
            options = grain.experimental.DatasetOptions(min_shm_size=sys.maxsize)
            stream = grain.experimental.WithOptionsIterDataset(
                batches.to_iter_dataset(in_worker), options
            )
            stream = stream.mp_prefetch(
                grain.MultiprocessingOptions(
                    num_workers=section.workers, per_worker_buffer_size=PREFETCH
                ),
                worker_init_fn=prepare_worker,
            )
        else:
            stream = batches.to_iter_dataset(
                grain.ReadOptions(num_threads=1, prefetch_buffer_size=PREFETCH)
            )
        self._iterator = iter(stream)
        before = set(multiprocessing.active_children())
        # Reading the state makes Grain create the iterators of all workers now. Otherwise the first
        # `next` would create them, and an earlier `close` would miss some.
        self._iterator.get_state()
        self._iterator.start_prefetch()
        self._workers: set[BaseProcess] = set()
        # Grain does not return its processes, so they are found as new child processes.
        late = time.monotonic() + _START_SECONDS
        while len(self._workers) < section.workers and time.monotonic() < late:
            time.sleep(0.005)
            self._workers = set(multiprocessing.active_children()) - before

    def __next__(self) -> T:
        """Returns the next batch.

        Raises errors of the background thread or worker process. Raises LoaderWorkerKilled if the
        system killed a worker process.
        """
        try:
            return self._unless_dead(lambda: next(self._iterator))
        except BaseException as error:
            self.close()
            died = isinstance(error, RuntimeError) and _WORKER_DIED in str(error)
            if died or isinstance(error, _WorkerDied):
                raise LoaderWorkerKilled(
                    "loader.worker_killed",
                    "the system killed a worker: too little memory? Use fewer loader.workers.",
                ) from error
            raise

    def close(self) -> None:
        """Ends the background work. Further calls do nothing."""
        try:
            seconds = _CLOSE_SECONDS * len(self._workers)
            self._unless_dead(self._iterator.close, seconds=seconds)
        except _WorkerDied:
            STUCK.set()

    def _unless_dead(self, call: Callable[[], R], *, seconds: float = math.inf) -> R:
        """Returns the result of a call. Raises _WorkerDied if a worker dies meanwhile.

        After `seconds`, kills the workers.
        """
        if not self._workers:
            return call()
        result: concurrent.futures.Future[R] = concurrent.futures.Future()
        # A daemon thread instead of a pool: at exit the interpreter would wait for a pool's thread.
        threading.Thread(target=_resolve, args=(result, call), daemon=True).start()
        late = time.monotonic() + seconds
        while not concurrent.futures.wait([result], timeout=_CHECK_SECONDS).done:
            if any(worker.exitcode for worker in self._workers):
                raise _WorkerDied
            if time.monotonic() > late:
                for worker in self._workers:
                    worker.kill()
        return result.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _resolve(result: concurrent.futures.Future[R], call: Callable[[], R]) -> None:
    try:
        result.set_result(call())
    except BaseException as error:
        result.set_exception(error)


class MixedDatasets(NamedTuple):
    """Datasets whose rows a phase mixes. Their sequence is part of a run's data position."""

    datasets: Sequence[ExampleSequence]
    mixture: Mixture

    @property
    def fingerprint(self) -> str:
        """Hash of the content of all datasets."""
        return f"{rng.digest128(0, *(each.fingerprint for each in self.datasets)):032x}"


class Loader(PositionedBatches):
    """The batches of one phase: every example once per epoch, with a new order and new masks.

    Row p of the phase (p = 0, 1, ... over all hosts and steps) belongs to epoch
    ``p // rows_per_epoch``. Its examples and masks are a function of the seed, the phase, the epoch
    and p. If the masking rate changes during the run, the masks also depend on the step. Batch s
    has the rows ``s * batch_size .. (s + 1) * batch_size - 1``, and each host makes its `HostShare`
    of these rows. So the global batch does not depend on the number of hosts or workers, and
    seeking to any step takes constant time.

    With several datasets, row p belongs to one of them (see `Mixture`), and each dataset has its
    own rows, epochs and seed.
    """

    def __init__(
        self,
        dataset: ExampleSequence | MixedDatasets,
        transform: RowTransform,
        *,
        batch_size: int,
        ramp: tuple[tuple[int, int], ...] = (),
        seed: int,
        phase: int = 0,
        share: HostShare = ONE_HOST,
        section: LoaderSection,
    ) -> None:
        """Checks that dataset, rows and hosts fit together, and plans the rows. Starts no worker.

        Args:
            dataset: examples of the phase, from one dataset or several.
            transform: transform to rows of one example or, with packing, several.
            batch_size: rows of a batch, over all hosts.
            ramp: smaller batches before, see `BatchSizes`. They do not change the order of rows.
            seed: seed of the order and the masks.
            phase: index of the phase in the run. Each phase has its own order and masks.
            share: part of every batch that this host makes.
            section: settings of worker processes.

        Raises UserError if the hosts do not divide the batch size, the dataset is empty, or an
        example is longer than a row.
        """
        fingerprint = {"dataset": dataset.fingerprint, "seed": seed, "phase": phase}
        if isinstance(dataset, MixedDatasets):
            mixture, fingerprint = dataset.mixture, fingerprint | dataset.mixture.fingerprint()
            # Seeds of their own keep the orders and masks of the datasets independent.
            seeded = [(each, rng.digest128(seed, each.fingerprint)) for each in dataset.datasets]
        else:
            mixture, seeded = ONE_SOURCE, [(dataset, seed)]
        sources: list[Source] = []
        for each, own in seeded:
            for size in (batch_size, *(rows for _, rows in ramp)):
                _check_fit(each, transform, batch_size=size, share=share)
            sources.append(Source(each, _order(each, transform, seed=own, phase=phase), own))
        self._make = TrainingBatch(
            sources, mixture, transform, BatchSizes(batch_size, ramp), share, phase
        )
        self._section = section
        super().__init__(
            fingerprint | transform.fingerprint(),
            batch_size=batch_size,
            ramp=ramp,
            order=[*_ORDER, "seq_length"] if transform.max_examples > 1 else _ORDER,
        )

    @property
    def rows_per_epoch(self) -> int:
        """Number of rows in an epoch, over all hosts and datasets."""
        return sum(self.rows_by_dataset)

    @property
    def rows_by_dataset(self) -> tuple[int, ...]:
        """Number of rows in an epoch of each dataset, over all hosts."""
        return tuple(source.order.rows for source in self._make.sources)

    def batches(self, *, first_step: int, run: range | None = None) -> Batches[Row]:
        """Returns an endless stream: this host's part of the batches from ``first_step``.

        Each batch is a dict of arrays ``[batch_size / share.count, ...]``. ``run`` has the steps of
        the run at which the batches are trained. It changes the batches of a
        `bert_jax.task.ChangingTransform`.
        """
        make = self._make
        if run is not None:
            make = dataclasses.replace(make, ahead=run.start - first_step, total=run.stop)
        return _endless(make, self._section, first_step=first_step)


def evaluation_batches(
    dataset: ExampleSequence,
    transform: RowTransform,
    *,
    batch_size: int,
    seed: int,
    limit: int | None,
    share: HostShare = ONE_HOST,
) -> Batches[Row]:
    """Returns this host's part of every example once, in the dataset's order, one example per row.

    Batches are arrays ``[batch_size / share.count, ...]``. Masks depend only on the seed and the
    example's index. The last batch is filled up with rows of weight 0, so sums over all batches
    include each example once.

    Args:
        dataset: examples to evaluate.
        transform: transform to rows of one example each.
        batch_size: rows of a batch, over all hosts.
        seed: seed of the masks.
        limit: number of examples, from the first. If None, all examples are used.
        share: part of every batch that this host makes.

    Raises UserError as `Loader` does.
    """
    _check_fit(dataset, transform, batch_size=batch_size, share=share)
    total = len(dataset) if limit is None else min(limit, len(dataset))
    steps = grain.MapDataset.range(math.ceil(total / batch_size))
    make = EvaluationBatch(dataset, transform, batch_size, share, seed, total)
    return Batches(steps.map(make), LoaderSection())


def background_batches(make: Callable[[int], T], *, first_step: int) -> Batches[T]:
    """Returns an endless stream of ``make(step)`` for the steps from ``first_step``.

    Background threads call ``make`` in order, one call at a time.
    """
    return _endless(make, LoaderSection(), first_step=first_step)


def _endless(make: Callable[[int], T], section: LoaderSection, *, first_step: int) -> Batches[T]:
    steps = grain.MapDataset.range(first_step, first_step + _STEPS)
    return Batches(steps.map(make), section)


def _order(
    dataset: ExampleSequence, transform: RowTransform, *, seed: int, phase: int
) -> row_order.RowOrder:
    if transform.max_examples == 1:
        return row_order.ShuffledOrder(
            len(dataset), _shuffled(len(dataset), seed, "shuffle", phase)
        )
    index = row_order.LengthIndex(dataset.lengths)
    plan = PackingPlan(
        index.counts, capacity=transform.seq_length, max_examples=transform.max_examples
    )
    return row_order.PackedOrder(
        plan=plan,
        index=index,
        shuffled=_shuffled(plan.rows, seed, "shuffle", phase),
        permutations={
            length: row_order.AffinePermutation(count, seed, "exchange", phase, length)
            for length, count in enumerate(index.counts.tolist())
            if count
        },
    )


def _shuffled(length: int, seed: int, *key: int | str) -> Sequence[int]:
    """Returns Grain's shuffle of ``0 .. length - 1`` for every epoch, one epoch after the other.

    Grain seeds epoch e with ``seed + e``. The run's seed is hashed first: otherwise epochs of runs
    with neighbouring seeds would have equal orders.
    """
    shuffle_seed = int(rng.stream(seed, *key).integers(2**32))
    order = grain.MapDataset.range(length).shuffle(seed=shuffle_seed).repeat()
    return cast(Sequence[int], order)  # Grain's type allows None, which only a filter yields


def _check_fit(
    dataset: ExampleSequence, transform: RowTransform, *, batch_size: int, share: HostShare
) -> None:
    if batch_size < 1 or batch_size % share.count:
        raise UserError(
            "loader.batch_size",
            f"found {batch_size}, allowed: a multiple of {share.count}, the number of hosts",
            place="batch_size",
        )
    check_row_length(transform.seq_length, dataset.lengths)
