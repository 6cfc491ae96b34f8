"""What runs a list of jobs: this machine's processes, or an Apache Beam runner.

An engine calls a function with many jobs, in any order and anywhere. A function writes its output
to storage that all workers share; only a small result comes back. So which engine does a job, and
how often, changes no byte.
"""

from typing import Literal, TypeAlias

from etils import epath

from bert_jax.pipelines.engines.beam import BeamEngine, BeamSection
from bert_jax.pipelines.engines.local import WorkerPool

EngineName: TypeAlias = Literal["local", "beam"]
Engine: TypeAlias = WorkerPool | BeamEngine


def open_engine(
    name: EngineName, *, workers: int | None, beam: BeamSection, directory: epath.PathLike
) -> Engine:
    """Returns an engine, to be used in a ``with`` block.

    Without ``workers`` there is a process for each core of this machine; ``directory`` is for an
    engine's own files. Raises UserError: settings that Beam does not take.
    """
    if name == "local":
        return WorkerPool(workers)
    return BeamEngine(beam, workers=workers, directory=directory)
