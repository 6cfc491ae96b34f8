"""What runs a list of jobs: this machine's processes, or an Apache Beam runner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Literal, Protocol, TypeAlias, TypeVar

from etils import epath

from bert_jax.pipelines.engines.beam import BeamEngine, BeamSection
from bert_jax.pipelines.engines.local import WorkerPool

Job = TypeVar("Job")
Result = TypeVar("Result")

EngineName: TypeAlias = Literal["local", "beam"]


class Engine(Protocol):
    """Calls a function with many jobs, in any order and anywhere.

    A function writes its output to storage that all workers share; only a small result comes back.
    So which engine does a job, and how often, changes no byte.
    """

    def run(
        self, function: Callable[[Job], Result], jobs: Sequence[Job]
    ) -> Iterator[tuple[Job, Result]]:
        """Yields every job with ``function(job)``, in the order in which they finish.

        A worker must be able to import the function; jobs and results must be picklable.

        Raises:
            UserError: of the first job that raises one.
        """
        ...


def open_engine(
    name: EngineName,
    *,
    workers: int | None,
    beam: BeamSection,
    directory: epath.PathLike,
) -> AbstractContextManager[Engine]:
    """Returns an engine, to be used in a ``with`` block.

    Without ``workers`` there is a process for each core of this machine; ``directory`` is for an
    engine's own files.

    Raises:
        UserError: settings that Beam does not take.
    """
    if name == "local":
        return WorkerPool(workers)
    return BeamEngine(beam, workers=workers, directory=directory)
