"""A job, its attempts and where their files lie in the bucket."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Final, Literal

import pydantic
from etils import epath

from bert_jax.launch.section import RESOURCE_NAME, SubmitSection
from bert_jax.parallel.topology import TpuTopology, parse_topology
from bert_jax.section import Section, as_tuple

Verb = Literal["pretrain", "finetune"]

RUN_JOB: Final = "job.txt"
"""In a run's directory: the directory of the job that runs it."""

JOBS: Final = "jobs"
"""In a bucket: the directory of all jobs."""

JOB_LABEL: Final = "bert-jax-job"
"""The label that all of our resources have; its value is the job's name."""


class JobPlacement(Section):
    """Where one attempt runs.

    Attributes:
        on: a topology as the documentation spells it (``v5e:4x4``), or ``local``.
        slices: of it.
        zone: None for ``local``.
        dollars_per_hour: of all its chips, by the price list; None if it has no price.
        estimated_hours: that the whole run takes there, by `bert-jax plan`; None if not planned.
    """

    on: str
    slices: int = 1
    zone: str | None = None
    dollars_per_hour: float | None = None
    estimated_hours: float | None = None

    @property
    def topology(self) -> TpuTopology | None:
        """One slice; None for ``local``."""
        return None if self.on == "local" else parse_topology(self.on)

    @property
    def place(self) -> str:
        """For eyes: ``4 × v5e:4x4 in us-west4-a``."""
        slices = f"{self.slices} × " if self.slices > 1 else ""
        return f"{slices}{self.on}{f' in {self.zone}' if self.zone else ''}"


class Job(Section):
    """All that is decided when a job is submitted, kept as ``job.json`` in its directory.

    Attributes:
        name: of the job; its resources are named after it and the attempt.
        verb: that hosts run.
        run_dir: where the run is written, which hosts can reach.
        working_directory: from which relative paths of the configuration count; `local` only.
        submit: the settings, resolved: project, zone and bucket are known.
        placements: in the order in which they are tried; never empty.
        version: of bert-jax, whose wheel is staged.
        submitted: seconds since 1970.
    """

    name: Annotated[str, pydantic.Field(pattern=RESOURCE_NAME)]
    verb: Verb = "pretrain"
    run_dir: str
    working_directory: str | None = None
    submit: SubmitSection
    placements: Annotated[
        tuple[JobPlacement, ...], pydantic.BeforeValidator(as_tuple), pydantic.Field(min_length=1)
    ]
    version: str
    submitted: float

    @property
    def directory(self) -> epath.Path:
        """Where everything of the job lies: ``gs://bucket/jobs/NAME``."""
        return job_directory(self.submit.bucket or "", self.name)

    @property
    def labels(self) -> dict[str, str]:
        """Of every resource: how `bert-jax jobs` finds what exists, whoever made it."""
        return {**self.submit.labels, JOB_LABEL: self.name}


def job_directory(bucket: str, name: str) -> epath.Path:
    """Returns where a job's files lie."""
    return epath.Path(bucket) / JOBS / name


class JobFiles:
    """Names in a job's directory. One writer each: the submitter, the supervisor, or one host."""

    def __init__(self, directory: epath.Path) -> None:
        self.directory = directory
        # The submitter's: `Job` as JSON, the resolved `RunConfig`; a directory with the wheel,
        # ``constraints.txt`` and ``startup.sh`` as they were then.
        self.job = directory / "job.json"
        self.config = directory / "config.yaml"
        self.software = directory / "software"
        self.startup = self.software / "startup.sh"
        # The supervisor's: what it has done and is about to do, and the lock of the one that is.
        self.supervisor = directory / "supervisor.json"
        self.lease = directory / ".supervisor.lock"
        # There once a user has asked for the job's end. `bert-jax stop` writes it.
        self.stop = directory / "stop.json"
        # A directory: JAX's cache of compiled programs. The first host's, by JAX's own rule.
        self.compiled = directory / "compiled"

    def attempt(self, number: int) -> epath.Path:
        """The `JobPlacement` of an attempt as JSON, there before its machines. The supervisor's."""
        return self.directory / "attempts" / str(number) / "placement.json"

    def host(self, attempt: int, worker: int) -> epath.Path:
        """The heartbeat of one host: `HostStatus` as JSON, every minute. The host's."""
        return self.directory / "attempts" / str(attempt) / f"worker-{worker}.json"

    def log(self, attempt: int, worker: int, part: int = 0) -> epath.Path:
        """What one host has printed, in parts of a megabyte. The host's."""
        number = f".{part}" if part else ""
        return self.directory / "attempts" / str(attempt) / f"worker-{worker}{number}.log"


class Ending(Section):
    """How one process of the run ended on a host.

    Attributes:
        at: seconds since 1970.
        exit_code: of the process; 128 and the signal's number of one that was killed.
        step: the last one that it reported; None: it died before.
        message: why, in its own words.
    """

    at: float
    exit_code: int
    step: int | None = None
    message: str = ""


class HostStatus(Section):
    """What one host last said of itself.

    Attributes:
        state: `failed`: the run ended in a way that the same command will not mend (a mistake in
            the configuration, numbers that went bad, the same step twice). `stopped`: by SIGTERM,
            as the machine is taken back; the run has saved.
        exit_code: of the run's last process; None while the first runs.
        restarts: of the run's process on this host in this attempt.
        message: the last line that says why.
        at: seconds since 1970.
        goodput: shares of wall time by kind.
        endings: of the run's processes on this host in this attempt, the last 20.
    """

    state: Literal["installing", "staging", "running", "restarting", "stopped", "done", "failed"]
    exit_code: int | None = None
    restarts: int = 0
    message: str = ""
    at: float
    step: int | None = None
    loss: float | None = None
    goodput: dict[str, float] = pydantic.Field(default_factory=dict)
    endings: Annotated[tuple[Ending, ...], pydantic.BeforeValidator(as_tuple)] = ()


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One set of machines for a job.

    Attributes:
        job: whose.
        number: from 1.
        placement: where.
    """

    job: Job
    number: int
    placement: JobPlacement

    @property
    def resource(self) -> str:
        """The name of what is made, which the same attempt always has: `NAME-1`.

        A supervisor that dies between making it and noting it finds it again by name.
        """
        return f"{self.job.name}-{self.number}"

    @property
    def hosts(self) -> int:
        """Of all its slices."""
        topology = self.placement.topology
        return self.job.submit.hosts if topology is None else topology.hosts * self.placement.slices
