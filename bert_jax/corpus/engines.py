"""Runs the parts of a job on workers of this machine, or on Apache Beam."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from etils import epath

from bert_jax.corpus.job import Job, ScoredModel
from bert_jax.corpus.parts import InputPart
from bert_jax.corpus.program import IdleClock, Program
from bert_jax.corpus.score_part import PARTS, PartRecord, Progress, score_part
from bert_jax.corpus.section import ScoreSection
from bert_jax.corpus.settings import PartSettings
from bert_jax.corpus.workers import open_program, score_with_workers
from bert_jax.data.worker_process import available_cores
from bert_jax.errors import UserError
from bert_jax.pipelines.engines.beam import BeamEngine


class LocalWorkers(NamedTuple):
    """The processes of this machine."""

    processes: int
    own_model: bool  # whether each runs the model itself, on one core

    @classmethod
    def of(cls, job: Job, model: ScoredModel) -> "LocalWorkers":
        """Returns as many workers as set, by default one per core."""
        own_model = model.mesh.devices.flat[0].platform == "cpu" and model.mesh.size == 1
        cores = available_cores()
        default = cores if own_model else max(cores - 1, 1)
        return cls(job.settings.section.workers or default, own_model)


def run_parts(
    job: Job,
    parts: Sequence[InputPart],
    model: ScoredModel,
    workers: LocalWorkers,
    *,
    clock: IdleClock,
    report: Callable[[Progress], None],
) -> Iterator[PartRecord]:
    """Yields the records of parts as they finish. See `score_with_workers` for errors.

    `clock` measures how long the devices of this process wait.
    """
    settings = job.settings
    section = settings.section
    if section.engine == "beam":
        directory = epath.Path(section.output) / PARTS
        with (
            _placed(),
            BeamEngine(section.beam, workers=section.workers, directory=directory) as engine,
        ):
            for _, record in engine.run(score_on_beam, [BeamJob(part, settings) for part in parts]):
                yield record
        return
    program = None if workers.own_model else functools.partial(model.program, clock)
    yield from score_with_workers(
        parts, settings, workers=workers.processes, program=program, report=report
    )


@contextlib.contextmanager
def _placed() -> Iterator[None]:
    """Corrects the place of an error about Beam's settings: ``score.beam.runner``."""
    try:
        yield
    except UserError as error:
        _, found, setting = error.place.partition("examples.")
        if not found:
            raise
        raise error.with_place(f"score.{setting}") from error


class BeamJob(NamedTuple):
    """A part and its settings."""

    part: InputPart
    settings: PartSettings


def score_on_beam(job: BeamJob) -> PartRecord:
    """Scores a part in a worker of Apache Beam, with the devices of this worker."""
    return score_part(job.part, job.settings, _program(job.settings.section.model_dump_json()))


@functools.lru_cache(maxsize=1)
def _program(section: str) -> Program:
    """Opens the program of a section, in JSON, once in a process."""
    return open_program(ScoreSection.model_validate_json(section))
