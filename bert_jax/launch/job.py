"""A job, its attempts, where their files lie in the bucket, and how a job is found."""

import dataclasses
import itertools
import os
from collections.abc import Mapping
from typing import Annotated, Final, Literal

import pydantic
from etils import epath

from bert_jax.errors import UserError, did_you_mean
from bert_jax.launch.credentials import require_credentials
from bert_jax.launch.section import RESOURCE_NAME, SubmitSection
from bert_jax.parallel.topology import TpuTopology, parse_topology
from bert_jax.section import Section, as_tuple

Verb = Literal["pretrain", "finetune"]

RUN_JOB: Final = "job.txt"  # in a run's directory: the directory of the job that runs it
JOBS: Final = "jobs"  # in a bucket: the directory of all jobs
# For how long one of several placements is waited for, where the limits say nothing.
_SOON_HOURS: Final = 0.25
JOB_LABEL: Final = "bert-jax-job"  # of all our resources; its value is the job's name


class JobPlacement(Section):
    """Where one attempt runs."""

    on: str  # a topology as the documentation spells it (``v5e:4x4``), or ``local``
    slices: int = 1  # of it
    zone: str | None = None  # None for ``local``
    # Of all its chips, by the price list; None if it has no price
    dollars_per_hour: float | None = None
    # That the whole run takes there, by `bert-jax plan`; None if not planned
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
    """All that is decided when a job is submitted, kept as ``job.json`` in its directory."""

    # Of the job; its resources are named after it and the attempt
    name: Annotated[str, pydantic.Field(pattern=RESOURCE_NAME)]
    verb: Verb = "pretrain"  # that hosts run
    run_dir: str  # where the run is written, which hosts can reach
    # From which relative paths of the configuration count; `local` only
    working_directory: str | None = None
    submit: SubmitSection  # the settings, resolved: project, zone and bucket are known
    # In the order in which they are tried; never empty
    placements: Annotated[
        tuple[JobPlacement, ...], pydantic.BeforeValidator(as_tuple), pydantic.Field(min_length=1)
    ]
    version: str  # of bert-jax, whose wheel is staged
    submitted: float  # seconds since 1970

    @property
    def directory(self) -> epath.Path:
        """Where everything of the job lies: ``gs://bucket/jobs/NAME``."""
        return job_directory(self.submit.bucket or "", self.name)

    @property
    def wait_hours(self) -> float | None:
        """How long one request may wait for capacity; None: for ever."""
        if self.submit.limits.wait_hours is not None:
            return self.submit.limits.wait_hours
        return _SOON_HOURS if len(self.placements) > 1 else None

    def hosts(self, placement: JobPlacement) -> int:
        """Machines of a placement, of all its slices; processes of ``local``."""
        topology = placement.topology
        if topology is None:
            return self.submit.hosts
        return topology.hosts(gke=self.submit.launcher == "gke") * placement.slices

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
    """How one process of the run ended on a host."""

    at: float  # seconds since 1970
    exit_code: int  # of the process; 128 and the signal's number of one that was killed
    step: int | None = None  # the last one that it reported; None: it died before
    message: str = ""  # why, in its own words


class HostStatus(Section):
    """What one host last said of itself."""

    # `failed`: the run ended in a way that the same command will not mend (a mistake in the
    # configuration, numbers that went bad, the same step twice). `stopped`: by SIGTERM, as the
    # machine is taken back; the run has saved.
    state: Literal["installing", "staging", "running", "restarting", "stopped", "done", "failed"]
    exit_code: int | None = None  # of the run's last process; None while the first runs
    restarts: int = 0  # of the run's process on this host in this attempt
    message: str = ""  # the last line that says why
    at: float  # seconds since 1970
    step: int | None = None
    loss: float | None = None
    goodput: dict[str, float] = pydantic.Field(default_factory=dict)  # shares of wall time by kind
    # Of the run's processes on this host in this attempt, the last 20
    endings: Annotated[tuple[Ending, ...], pydantic.BeforeValidator(as_tuple)] = ()


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One set of machines for a job."""

    job: Job  # whose
    number: int  # from 1
    placement: JobPlacement  # where

    @property
    def resource(self) -> str:
        """The name of what is made, which the same attempt always has: `NAME-1`.

        A supervisor that dies between making it and noting it finds it again by name.
        """
        return f"{self.job.name}-{self.number}"

    @property
    def hosts(self) -> int:
        """Of all its slices."""
        return self.job.hosts(self.placement)


BUCKET: Final = "BERT_JAX_BUCKET"  # the environment variable that stands in for --bucket


def find_job(job: str, *, bucket: str | None = None, what: str = "job") -> JobFiles:
    """Returns where a job's files lie.

    ``find_job("gs://b/jobs/base")``, ``find_job("base", bucket="gs://b")``

    `bucket` is for a name, None for ``$BERT_JAX_BUCKET``; `what` was looked for, for the message.
    Raises UserError if there is no such job, or its bucket is not known.
    """
    bucket = bucket or os.environ.get(BUCKET)
    if "/" in job:
        directory = epath.Path(job)
    elif bucket:
        directory = job_directory(bucket, job)
    else:
        raise UserError(
            f"{job}: the job's bucket is not known; allowed: --bucket gs://…, the environment's "
            f"{BUCKET}, or the job's directory in place of its name: gs://…/jobs/{job}"
        )
    require_credentials(str(directory))
    files = JobFiles(directory)
    if not files.job.exists():
        others = _names(directory.parent)
        known = f"; there are: {', '.join(others[:20])}" if others else ""
        raise UserError(f"{directory}: no such {what}{did_you_mean(directory.name, others)}{known}")
    return files


def _names(jobs: epath.Path) -> list[str]:
    if jobs.name != JOBS:
        return []  # what lies there are no jobs
    try:
        return sorted(path.name for path in jobs.iterdir()) if jobs.exists() else []
    except OSError:
        return []


def placements(section: SubmitSection, *, rates: Mapping[str, float]) -> tuple[JobPlacement, ...]:
    """Returns every combination of `on`, `zone` and `slices`, the last one's values first.

    `zone` is resolved; `rates` are US dollars of a chip and an hour, by generation, where there is
    a price. Raises UserError if nothing says where to run, `local` is one of several, or there is a
    limit on the cost and no price.
    """
    on = section.on
    if not on:
        raise UserError("--on: missing; such as v5litepod-16, or local for this machine")
    if "local" in on:
        if len(on) > 1 or section.slices != (1,):
            raise UserError(
                f"submit.on: found {', '.join(on)} with {max(section.slices)} slices, allowed: "
                "local alone, and --hosts"
            )
        return (JobPlacement(on="local", dollars_per_hour=0.0),)
    if not section.zone and section.launcher != "gke":
        raise UserError("--zone: missing; such as us-central1-a")
    found = []
    zones = section.zone or (None,)  # the cluster's
    for name, zone, slices in itertools.product(on, zones, section.slices):
        topology = parse_topology(name)
        rate = rates.get(topology.accelerator.name)
        found.append(
            JobPlacement(
                on=topology.name,
                slices=slices,
                zone=zone,
                dollars_per_hour=None if rate is None else rate * topology.chips * slices,
            )
        )
    without = [each.on for each in found if each.dollars_per_hour is None]
    if section.limits.cost is not None and without:
        raise UserError(
            f"submit.limits.cost: {without[0]} has no price by which it could be kept; allowed: a "
            "price list of your own, --prices FILE, or --no-limit"
        )
    return tuple(found)
