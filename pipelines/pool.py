"""Lists of jobs on one machine's processes."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


class WorkerPool:
    """Worker processes that stay for several lists of jobs, since each takes a second to start.

    A context manager. Processes start when there is work for them, spawned, not forked, so a script
    that comes here needs the ``if __name__ == "__main__":`` guard.
    """

    def __init__(self, workers: int | None) -> None:
        """Prepares ``workers`` processes; ``None``: one per core that this process may use.

        With one worker the jobs are done in this process.
        """
        self._count = workers or available_cores()
        self._executor: concurrent.futures.ProcessPoolExecutor | None = None

    def __enter__(self) -> WorkerPool:
        if self._count > 1:
            self._executor = concurrent.futures.ProcessPoolExecutor(
                self._count,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_one_thread_per_worker,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def run(self, function: Callable[[Job], Result], jobs: Sequence[Job]) -> Iterator[Result]:
        """Yields ``function(job)`` for every job, in the order in which they finish.

        Args:
            function: a module's own function, so that a worker process can import it.
            jobs: what it is called with; each must be picklable, as must the results.

        Raises:
            Exception: of the first job that raises.
        """
        if self._executor is None or len(jobs) < 2:
            yield from map(function, jobs)
            return
        futures = [self._executor.submit(function, job) for job in jobs]
        for future in concurrent.futures.as_completed(futures):
            yield future.result()


def available_cores() -> int:
    """Returns the cores that this process may use, often fewer than the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _one_thread_per_worker() -> None:
    # The processes fill the cores already; the tokenizer library would start as many threads in
    # each of them.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
