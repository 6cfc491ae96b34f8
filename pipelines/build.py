"""One dataset in the making: settings, place, engine, and the progress of its stages."""

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import NamedTuple, TypeVar

from bert_jax.pipelines.engines.beam import BeamEngine
from bert_jax.pipelines.engines.local import WorkerPool
from bert_jax.pipelines.section import ExamplesSection
from bert_jax.pipelines.workspace import Workspace

Job = TypeVar("Job")
Result = TypeVar("Result")


class DatasetBuild(NamedTuple):
    """One call of `make_examples` at work: all that its stages share."""

    section: ExamplesSection
    workspace: Workspace
    engine: WorkerPool | BeamEngine
    say: Callable[[str], None]  # gets a line of text when a part or a shard is finished

    def run(
        self,
        function: Callable[[Job], Result],
        jobs: Sequence[Job],
        *,
        name: str,
        total: int,
        unit: str,
        work: Callable[[Job], float],
        told: Callable[[Job, Result], tuple[str, float]],
    ) -> Iterator[Result]:
        """Yields ``function`` of each job of a stage as it finishes, and says a line of progress.

        ``name`` is the noun for a job: ``tokenised part``. ``total`` includes the jobs that an
        earlier run has finished. The remaining time is estimated from the jobs' sizes, ``work``.
        ``told`` gives a job's result for the line, and its amount in ``unit``.
        """
        finished, left, done, amount = total - len(jobs), sum(map(work, jobs)), 0.0, 0.0
        started = time.monotonic()
        for job, result in self.engine.run(function, jobs):
            made, more = told(job, result)
            finished, done, amount = finished + 1, done + work(job), amount + more
            seconds = max(time.monotonic() - started, 1e-6)
            rate = amount / seconds
            line = f"{name} {finished} of {total}: {made}, "
            line += f"{rate:,.1f} {unit}/s" if rate < 100 else f"{rate:,.0f} {unit}/s"
            if finished < total and done:
                line += f", {timedelta(seconds=round(seconds * (left - done) / done))} left"
            self.say(line)
            yield result
