"""The stream of batches of a dataset. The only file that imports Grain."""

import concurrent.futures
import contextlib
import dataclasses
import math
import multiprocessing
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.process import BaseProcess
from typing import Final, Self, TypeVar, cast

import grain
from absl import flags

from bert_jax.data import rng
from bert_jax.data.dataset.schema import check_row_length
from bert_jax.data.host_share import ONE_HOST, HostShare
from bert_jax.data.loader import row_order
from bert_jax.data.loader.batch_maker import EvaluationBatch, ExampleSequence, TrainingBatch
from bert_jax.data.loader.data_position import PositionedBatches
from bert_jax.data.loader.packing import PackingPlan
from bert_jax.data.loader.section import LoaderSection
from bert_jax.data.worker_process import prepare_worker
from bert_jax.errors import LoaderWorkerKilled, UserError
from bert_jax.task import Row, RowTransform

T = TypeVar("T")
R = TypeVar("R")

PREFETCH: Final = 4  # batches that each worker makes ahead

# The fields of the fingerprint that assign examples to rows.
_ORDER = ("dataset", "seed", "phase", "packing", "packing.max_examples")

_WORKER_DIED = "Worker process was terminated unexpectedly"  # Grain's message
# A worker that is killed while it sends a batch leaves half of the batch in the pipe. Grain then
# waits forever for the rest, in `next` and in `close`. The loader waits this long for each.
_DEAD_SECONDS = 3.0
_START_SECONDS = 10.0  # limit for Grain to start its processes
_STEPS = 2**40  # steps of an endless stream: out of reach, and Grain can still slice it


class _WorkerDied(Exception):
    """A worker process has ended with an exit code other than 0."""


class Batches(Iterator[T]):
    """Batches in order, made in the background.

    Iterate, then call ``close()`` or leave the ``with`` block, which ends the threads or worker
    processes. They start at construction, so that the first batches are ready when a train step has
    compiled.
    """

    def __init__(self, batches: grain.MapDataset, section: LoaderSection) -> None:
        if not flags.FLAGS.is_parsed():  # Grain reads absl flags, which absl.app would have parsed
            flags.FLAGS.mark_as_parsed()
        if section.workers:
            in_worker = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
            # Through a pipe, not shared memory: as fast for batches of a few megabytes, and
            # containers often have 64 MB of it, beyond which a write ends the process.
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
        # Reading the state makes Grain create the iterators of all workers now instead of at the
        # first `next`, so that `close` reaches every one.
        self._iterator.get_state()
        self._iterator.start_prefetch()
        self._workers: set[BaseProcess] = set()
        # Grain starts its processes in threads and does not return them.
        late = time.monotonic() + _START_SECONDS
        while len(self._workers) < section.workers and time.monotonic() < late:
            time.sleep(0.005)
            self._workers = set(multiprocessing.active_children()) - before

    def __next__(self) -> T:
        """Returns the next batch, or raises what making it raised in its thread or process.

        Raises LoaderWorkerKilled: the system has killed a worker process.
        """
        try:
            return self._unless_dead(lambda: next(self._iterator))
        except BaseException as error:
            self.close()
            died = isinstance(error, RuntimeError) and _WORKER_DIED in str(error)
            if died or isinstance(error, _WorkerDied):
                raise LoaderWorkerKilled(
                    "loader.worker_killed",
                    "the system killed a worker process of the loader, probably for lack of "
                    "memory. Run the same command again with fewer loader.workers to resume.",
                ) from error
            raise

    def close(self) -> None:
        """Ends the background work. Idempotent."""
        with contextlib.suppress(_WorkerDied):
            self._unless_dead(self._iterator.close)

    def _unless_dead(self, call: Callable[[], R]) -> R:
        """Returns the result of a call, or raises _WorkerDied if a killed worker makes it wait."""
        if not self._workers:
            return call()
        result: concurrent.futures.Future[R] = concurrent.futures.Future()
        # Not a pool: the interpreter would wait for a pool's thread at its end.
        threading.Thread(target=_resolve, args=(result, call), daemon=True).start()
        while not concurrent.futures.wait([result], timeout=_DEAD_SECONDS).done:
            if any(worker.exitcode for worker in self._workers):
                raise _WorkerDied
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


class Loader(PositionedBatches):
    """The batches of one phase: every example once per epoch, reshuffled and remasked each epoch.

    Row p of the phase (p = 0, 1, ... over all hosts and steps) is in epoch ``p // rows_per_epoch``;
    its examples and their masks are a function of the seed, the phase, the epoch and p. Batch s is
    the rows ``s * batch_size .. (s + 1) * batch_size - 1``; each host makes its `HostShare` of
    them. So the global batch depends neither on the number of hosts nor of workers, and seeking to
    any step is O(1).
    """

    def __init__(
        self,
        dataset: ExampleSequence,
        transform: RowTransform,
        *,
        batch_size: int,
        seed: int,
        phase: int = 0,
        share: HostShare = ONE_HOST,
        section: LoaderSection,
    ) -> None:
        """Checks that dataset, rows and hosts fit together and plans the rows; starts nothing.

        The transform makes rows of one example, or of several if it packs; ``batch_size`` is rows
        over all hosts. Each phase has its own order and masks over a dataset. Raises UserError: the
        batch does not divide among the hosts, the dataset is empty, or an example is longer than a
        row.
        """
        _check_fit(dataset, transform, batch_size=batch_size, share=share)
        order = _order(dataset, transform, seed=seed, phase=phase)
        self._make = TrainingBatch(dataset, transform, batch_size, share, seed, phase, order)
        self._section = section
        fingerprint = {"dataset": dataset.fingerprint, "seed": seed, "phase": phase}
        super().__init__(
            fingerprint | transform.fingerprint(),
            batch_size=batch_size,
            order=[*_ORDER, "seq_length"] if transform.max_examples > 1 else _ORDER,
        )

    @property
    def rows_per_epoch(self) -> int:
        """Rows of an epoch, over all hosts."""
        return self._make.order.rows

    def batches(self, *, first_step: int, with_examples: bool = False) -> Batches[Row]:
        """Returns this host's part of batch ``first_step``, ``first_step + 1``, ... without end.

        Each batch is a dict of arrays ``[batch_size / share.count, ...]``; ``with_examples`` adds
        which examples it is made of, see `bert_jax.data.loader.batch_maker.detach`.
        """
        make = dataclasses.replace(self._make, with_examples=with_examples)
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
    """Returns this host's part of every example once, in the dataset's order, masked reproducibly.

    Ten examples in batches of four (rows over all hosts) are three batches on every host. The last
    two rows of the last batch have weight 0, so that sums over all batches count each example once.
    Batches are arrays ``[batch_size / share.count, ...]`` with rows of one example. Masks are a
    function of the seed and the example's index alone. ``limit`` is a number of examples, from the
    front, None for all. Raises UserError as `Loader` does.
    """
    _check_fit(dataset, transform, batch_size=batch_size, share=share)
    total = len(dataset) if limit is None else min(limit, len(dataset))
    steps = grain.MapDataset.range(math.ceil(total / batch_size))
    make = EvaluationBatch(dataset, transform, batch_size, share, seed, total)
    return Batches(steps.map(make), LoaderSection())


def background_batches(make: Callable[[int], T], *, first_step: int) -> Batches[T]:
    """Returns ``make(first_step)``, ``make(first_step + 1)``, … without end, made in a thread.

    One thread at a time calls ``make``, in order.
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
    """Returns Grain's global shuffle of ``0 .. length - 1`` for every epoch, one after the other.

    Grain seeds epoch e with ``seed + e``; hashing ours first keeps runs with neighbouring seeds
    from sharing orders.
    """
    shuffle_seed = int(rng.stream(seed, *key).integers(2**32))
    order = grain.MapDataset.range(length).shuffle(seed=shuffle_seed).repeat()
    return cast(Sequence[int], order)  # Grain's type admits None, which only a filter would yield


def _check_fit(
    dataset: ExampleSequence, transform: RowTransform, *, batch_size: int, share: HostShare
) -> None:
    if batch_size < 1 or batch_size % share.count:
        raise UserError(
            "loader.batch_size",
            "found {found}, allowed: a multiple of {hosts}, the number of hosts",
            place="batch_size",
            found=batch_size,
            hosts=share.count,
        )
    if not len(dataset):
        raise UserError(
            "dataset.empty",
            "found no examples in this split, allowed: at least one",
            place="dataset",
        )
    check_row_length(transform.seq_length, dataset.lengths)
