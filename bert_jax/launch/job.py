"""A job, its attempts, its files in the bucket, and how a job is found."""

import dataclasses
import itertools
import os
from collections.abc import Mapping
from typing import Annotated, Final, Literal

import pydantic
from etils import epath

from bert_jax.errors import UserError, did_you_mean
from bert_jax.launch.gcloud import require_credentials
from bert_jax.launch.section import RESOURCE_NAME, SubmitSection
from bert_jax.parallel.topology import TpuTopology, parse_topology
from bert_jax.section import Section, as_tuple
from bert_jax.validation import read_section

Verb = Literal["pretrain", "finetune"]

RUN_JOB: Final = "job.txt"  # in a run's directory: the directory of the run's job
JOBS: Final = "jobs"  # in a bucket: the directory of all jobs
JOB_LABEL: Final = "bert-jax-job"  # label of all our resources; its value is the job's name
BUCKET: Final = "BERT_JAX_BUCKET"  # the environment variable that stands in for --bucket
# How long one of several placements may wait for capacity, if the limits do not say.
_SOON_HOURS: Final = 0.25


class JobPlacement(Section):
    """Where one attempt runs."""

    on: str  # a topology as the documentation spells it (``v5e:4x4``), or ``local``
    slices: int = 1  # of it
    zone: str | None = None  # None for ``local``
    dollars_per_hour: float | None = None  # of all its chips; None if it has no price
    estimated_hours: float | None = None  # of the whole run, by `bert-jax plan`; None: not planned

    @property
    def topology(self) -> TpuTopology | None:
        """One slice; None for ``local``."""
        return None if self.on == "local" else parse_topology(self.on)

    @property
    def place(self) -> str:
        """The placement in words: ``4 × v5e:4x4 in us-west4-a``."""
        slices = f"{self.slices} × " if self.slices > 1 else ""
        return f"{slices}{self.on}{f' in {self.zone}' if self.zone else ''}"


class Job(Section):
    """Everything that is decided when a job is submitted; ``job.json`` in its directory."""

    # Resources are named after the job and the attempt.
    name: Annotated[str, pydantic.Field(pattern=RESOURCE_NAME)]
    verb: Verb = "pretrain"  # that hosts run
    run_dir: str  # where hosts write the run
    working_directory: str | None = None  # base of the configuration's relative paths; `local` only
    submit: SubmitSection  # the settings, resolved: project, zone and bucket are known
    # In the order in which they are tried.
    placements: Annotated[
        tuple[JobPlacement, ...], pydantic.BeforeValidator(as_tuple), pydantic.Field(min_length=1)
    ]
    version: str  # of bert-jax, whose wheel is staged
    submitted: float  # seconds since 1970

    @property
    def directory(self) -> epath.Path:
        """The directory of the job's files: ``gs://bucket/jobs/NAME``."""
        return job_directory(self.submit.bucket or "", self.name)

    @property
    def wait_hours(self) -> float | None:
        """How long one request may wait for capacity; None: for ever."""
        if self.submit.limits.wait_hours is not None:
            return self.submit.limits.wait_hours
        return _SOON_HOURS if len(self.placements) > 1 else None

    def hosts(self, placement: JobPlacement) -> int:
        """Returns the machines of all slices of a placement; processes of ``local``."""
        topology = placement.topology
        if topology is None:
            return self.submit.hosts
        return topology.hosts(gke=self.submit.launcher == "gke") * placement.slices

    @property
    def labels(self) -> dict[str, str]:
        """Labels of every resource, by which `bert-jax jobs` finds them."""
        return {**self.submit.labels, JOB_LABEL: self.name}


def job_directory(bucket: str, name: str) -> epath.Path:
    """Returns the directory of a job's files."""
    return epath.Path(bucket) / JOBS / name


class JobFiles:
    """Names in a job's directory. Each file has one writer: submitter, supervisor or one host."""

    def __init__(self, directory: epath.Path) -> None:
        self.directory = directory
        # The submitter writes `Job` as JSON, the resolved `RunConfig`, and a directory with the
        # wheel, ``constraints.txt`` and ``startup.sh``.
        self.job = directory / "job.json"
        self.config = directory / "config.yaml"
        self.software = directory / "software"
        self.startup = self.software / "startup.sh"
        # The supervisor writes `SupervisorState` as JSON, and holds the lock.
        self.supervisor = directory / "supervisor.json"
        self.lease = directory / ".supervisor.lock"
        self.stop = directory / "stop.json"  # exists after `bert-jax stop`
        self.compiled = directory / "compiled"  # JAX's cache of compiled programs

    def host(self, attempt: int, worker: int) -> epath.Path:
        """Returns the heartbeat of one host: `HostStatus` as JSON, written every minute."""
        return self.directory / "attempts" / str(attempt) / f"worker-{worker}.json"

    def log(self, attempt: int, worker: int, part: int = 0) -> epath.Path:
        """Returns the output of one host, in parts of about a megabyte."""
        number = f".{part}" if part else ""
        return self.directory / "attempts" / str(attempt) / f"worker-{worker}{number}.log"


def read_job(files: JobFiles) -> Job:
    """Returns a job. Raises UserError if there is none in that directory."""
    return read_section(Job, files.job)


class Ending(Section):
    """How one process of the run ended on a host."""

    at: float  # seconds since 1970
    exit_code: int  # of the process; 128 + the signal's number if a signal killed it
    step: int | None = None  # the last one that the process reported
    message: str = ""  # the reason


class HostStatus(Section):
    """The last report of one host."""

    # `failed`: no restart would help (a mistake in the configuration, numbers that went bad, the
    # same step twice). `stopped`: by SIGTERM; the run has saved.
    state: Literal["installing", "staging", "running", "restarting", "stopped", "done", "failed"]
    exit_code: int | None = None  # of the run's last process; None while the first runs
    restarts: int = 0  # of the run's process on this host in this attempt
    message: str = ""  # the reason
    at: float  # seconds since 1970
    step: int | None = None
    loss: float | None = None
    goodput: dict[str, float] = pydantic.Field(default_factory=dict)  # shares of wall time by kind
    # The last 20 endings of the run's processes on this host in this attempt.
    endings: Annotated[tuple[Ending, ...], pydantic.BeforeValidator(as_tuple)] = ()


@dataclasses.dataclass(frozen=True)
class Attempt:
    """One set of machines for a job."""

    job: Job
    number: int  # from 1
    placement: JobPlacement

    @property
    def resource(self) -> str:
        """The name of the attempt's machines: `NAME-1`. A successor finds them by it."""
        return f"{self.job.name}-{self.number}"

    @property
    def hosts(self) -> int:
        """Number of hosts of all slices."""
        return self.job.hosts(self.placement)


def find_job(job: str, *, bucket: str | None = None, what: str = "job") -> JobFiles:
    """Returns the files of a job: ``find_job("gs://b/jobs/base")``, ``find_job("base", bucket=b)``.

    `bucket` is for a name, None for ``$BERT_JAX_BUCKET``; `what` names the job in messages. Raises
    UserError if there is no such job, or its bucket is not known.
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
    """Returns the names in a directory of jobs; none in another directory."""
    try:
        found = jobs.iterdir() if jobs.name == JOBS and jobs.exists() else ()
        return sorted(path.name for path in found)
    except OSError:
        return []


def placements(section: SubmitSection, *, rates: Mapping[str, float]) -> tuple[JobPlacement, ...]:
    """Returns every combination of `on`, `zone` and `slices`, the last one's values first.

    `rates` are US dollars of a chip and an hour, by generation, where there is a price. Raises
    UserError if no place is given, `local` is one of several, or a limit on the cost has no price.
    """
    if not section.on:
        raise UserError("--on: missing; such as v5litepod-16, or local for this machine")
    if "local" in section.on:
        if len(section.on) > 1 or section.slices != (1,):
            raise UserError(
                f"submit.on: found {', '.join(section.on)} with {max(section.slices)} slices, "
                "allowed: local alone, and --hosts"
            )
        return (JobPlacement(on="local", dollars_per_hour=0.0),)
    if not section.zone and section.launcher != "gke":
        raise UserError("--zone: missing; such as us-central1-a")
    found = []
    zones = section.zone or (None,)  # of a cluster
    for name, zone, slices in itertools.product(section.on, zones, section.slices):
        topology = parse_topology(name)
        rate = rates.get(topology.accelerator.name)
        dollars = None if rate is None else rate * topology.chips * slices
        found.append(
            JobPlacement(on=topology.name, slices=slices, zone=zone, dollars_per_hour=dollars)
        )
    without = [each.on for each in found if each.dollars_per_hour is None]
    if section.limits.cost is not None and without:
        raise UserError(
            f"submit.limits.cost: {without[0]} has no price by which it could be kept; allowed: a "
            "price list of your own, --prices FILE, or --no-limit"
        )
    return tuple(found)
