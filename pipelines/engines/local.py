"""Runs lists of jobs in processes on one machine."""

import concurrent.futures
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import BaseContext
from typing import Final, Self, TypeVar

from bert_jax.data.worker_process import available_cores, end_with_parent, without_main
from bert_jax.errors import RunStopped

Job = TypeVar("Job")
Result = TypeVar("Result")

# Modules that the fork server imports once. Otherwise, each worker would need 0.5 s to import them.
_LOADED_ONCE: Final = [
    "bert_jax.pipelines.tokenised.corpus",
    "bert_jax.pipelines.shards.write_shard",
]


class WorkerPool:
    """Context manager of worker processes that run several lists of jobs.

    Processes start on demand. They do not import the main script, so it needs no
    ``if __name__ == "__main__":`` guard.
    """

    def __init__(self, workers: int | None) -> None:
        """Sets the number of processes.

        If it is 1, jobs run in this process. If it is None, each available core gets a process.
        """
        self._count = workers or available_cores()
        self._executor: concurrent.futures.ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        if self._count > 1:
            self._executor = concurrent.futures.ProcessPoolExecutor(
                self._count,
                mp_context=_context(),
                initializer=_prepare_worker,
                initargs=(dict(os.environ),),
            )
        return self

    def __exit__(self, *raised: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def run(
        self, function: Callable[[Job], Result], jobs: Sequence[Job]
    ) -> Iterator[tuple[Job, Result]]:
        """Yields ``(job, function(job))`` in the order in which jobs finish.

        Workers import the function; jobs and results are pickled. Raises RunStopped if the system
        kills a worker. If a job raises an exception, raises it too.
        """
        if self._executor is None or len(jobs) < 2:
            for job in jobs:
                yield job, function(job)
            return
        with without_main():
            futures = {self._executor.submit(function, job): job for job in jobs}
        try:
            for future in concurrent.futures.as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool as error:
            raise RunStopped(
                "examples.worker_killed",
                "the system killed a worker process, probably because memory ran out. Run the "
                f"same command again with fewer than {self._count} workers to resume.",
            ) from error


def use_one_thread() -> None:
    """Stops the tokenizer library from starting a thread per core in each worker."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _context() -> BaseContext:
    """Returns the workers' start method. Forking is unsafe, because this process has threads."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_LOADED_ONCE)
    return context


def _prepare_worker(environment: dict[str, str]) -> None:
    os.environ.clear()  # a worker starts with the environment of the fork server
    os.environ.update(environment)
    use_one_thread()
    end_with_parent()
