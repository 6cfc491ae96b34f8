"""Runs a job: this host's parts, then the manifest."""

import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from etils import epath

from bert_jax.corpus.job import Job, ScoredModel
from bert_jax.corpus.parts import InputPart
from bert_jax.corpus.program import IdleClock, Program
from bert_jax.corpus.results import PartSettings
from bert_jax.corpus.score_part import PARTS, PartRecord, Progress, score_part
from bert_jax.corpus.section import ScoreSection
from bert_jax.corpus.workers import open_program, score_with_workers
from bert_jax.data.host_share import HostShare
from bert_jax.data.worker_process import available_cores
from bert_jax.errors import UserError, counted
from bert_jax.files.atomic import remove_unfinished, write_whole
from bert_jax.files.remote import is_remote
from bert_jax.narration import doing
from bert_jax.pipelines.engines.beam import BeamEngine
from bert_jax.train.metrics_writer import GOODPUT, Writer
from bert_jax.train.progress_display import warn_aloud

MANIFEST: Final = "_manifest.json"
_TOTALS: Final = ("read", "written", "dropped", "skipped", "cut", "tokens")


class ScoreResult(NamedTuple):
    """The work of a command, and the state of the whole job."""

    records: Sequence[PartRecord]  # all finished parts of the job
    computed: int  # parts that this command finished
    missing: int  # parts of the job without results
    rows: int  # rows that this command read
    tokens: int
    positions: int  # tokens and padding
    seconds: float
    waited: float  # share of the time in which the devices waited


class Meter:
    """Counts the work of a job, for the progress line."""

    def __init__(self, parts: int, *, computing: int, dollars_per_hour: float | None) -> None:
        """`computing` is the number of processes that run the model."""
        self.done, self._parts, self._price = 0, parts, dollars_per_hour
        self.rows = self.tokens = self.positions = 0
        self.clock = IdleClock()  # of the devices of this process
        self._computing, self._waited = max(computing, 1), 0.0
        self._began = time.monotonic()

    def add(self, progress: Progress) -> None:
        """Adds a report of a worker."""
        self.rows += progress.rows
        self.tokens += progress.tokens
        self.positions += progress.positions
        self._waited += progress.waited

    @property
    def waited(self) -> float:
        """Share of the time in which the devices waited."""
        found = (self._waited + self.clock.waited) / (self._computing * max(self.seconds, 1e-9))
        return min(found, 1.0)

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def line(self) -> str:
        """Returns the progress line."""
        seconds = max(self.seconds, 1e-9)
        found = [f"{self.done:,} of {counted(self._parts, 'part')}", *self.rates(seconds)]
        return f"scoring: {', '.join(found)}"

    def rates(self, seconds: float) -> list[str]:
        """Returns rows, rates, the share of time in which the devices waited, and the price."""
        found = [
            counted(self.rows, "document"),
            f"{self.rows / seconds:,.0f} documents/s",
            f"{self.tokens / seconds:,.0f} tokens/s",
            f"devices waited {self.waited:.0%}",
        ]
        if self._price is not None:
            found.append(f"${self._price * seconds / 3600:,.2f}")
        return found


def run_job(
    job: Job, model: ScoredModel, *, host: HostShare, dollars_per_hour: float | None = None
) -> ScoreResult:
    """Scores this host's missing parts. Writes the manifest if no part of the job is missing.

    Needs no other host. Raises the errors of `score_part`; finished parts stay.
    """
    finished = job.finished()
    mine = [part for part in job.parts[host.index :: host.count] if part.stem not in finished]
    if job.settings.section.engine == "local":
        _remove_unfinished(job, mine)
    workers = LocalWorkers.of(job, model)
    meter = Meter(
        len(mine),
        computing=min(workers.processes, len(mine)) if workers.own_model else 1,
        dollars_per_hour=dollars_per_hour,
    )
    heartbeat, computed = Writer(say=warn_aloud), list[PartRecord]()
    with doing(meter.line):
        for record in run_parts(job, mine, model, workers, clock=meter.clock, report=meter.add):
            computed.append(record)
            meter.done += 1
            waited = meter.waited * meter.seconds
            shares = {"compute": meter.seconds - waited, "wait": waited}
            heartbeat.write(GOODPUT, meter.done, shares)
    finished |= {record.output.rpartition(".")[0]: record for record in computed}
    finished = job.finished(known=finished)  # other hosts may have finished more
    records = [finished[part.stem] for part in job.parts if part.stem in finished]
    missing = len(job.parts) - len(records)
    if not missing:
        write_whole(job.output / MANIFEST, json.dumps(manifest(job, records), indent=1) + "\n")
    return ScoreResult(
        records=records,
        computed=len(mine),
        missing=missing,
        rows=meter.rows,
        tokens=meter.tokens,
        positions=meter.positions,
        seconds=meter.seconds,
        waited=meter.waited,
    )


def manifest(job: Job, records: Sequence[PartRecord]) -> dict[str, Any]:
    """Returns the settings, the files with their hashes and counts, and the sums of all counts."""
    parts = [
        {
            name: value
            for name, value in record._asdict().items()
            if name not in ("seconds", "summary")
        }
        for record in records
    ]
    for part in parts:  # copies of a corpus have the same manifest
        part["input"] = {k: value for k, value in part["input"].items() if k != "modified"}
    total = {name: sum(getattr(record, name) for record in records) for name in _TOTALS}
    return {"settings": job.fingerprint, "total": total, "parts": parts}


def _remove_unfinished(job: Job, parts: Sequence[InputPart]) -> None:
    """Removes the unfinished files of killed processes for parts of this host."""
    if is_remote(job.output):  # a bucket has none
        return
    paths = [Path(job.output, f"{part.stem}.{job.settings.section.format}") for part in parts]
    with_unfinished = {
        directory for directory in {path.parent for path in paths} if any(directory.glob("*.tmp"))
    }
    for path in paths:
        if path.parent in with_unfinished:
            remove_unfinished(path.parent, of=path.name)


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
