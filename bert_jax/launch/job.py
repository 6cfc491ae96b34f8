"""A job, its attempts, its files in the bucket, and the search for a job."""

import dataclasses
import itertools
import os
from collections.abc import Mapping
from typing import Annotated, Final, Literal

import pydantic
from etils import epath

from bert_jax.errors import UserError, commas, did_you_mean
from bert_jax.launch.gcloud import require_credentials
from bert_jax.launch.section import RESOURCE_NAME, SubmitSection
from bert_jax.parallel.topology import TpuTopology, parse_topology
from bert_jax.section import Section, as_tuple
from bert_jax.validation import read_section

Verb = Literal["pretrain", "finetune", "score"]

RUN_JOB: Final = "job.txt"  # file in a run directory; contains the path of the job's directory
JOBS: Final = "jobs"  # directory of all jobs in a bucket
JOB_LABEL: Final = "bert-jax-job"  # label of all our resources; its value is the job's name
BUCKET: Final = "BERT_JAX_BUCKET"  # environment variable: default of --bucket
# Default of `limits.wait_hours` for a job with several placements.
_SHARED_WAIT_HOURS: Final = 0.25


class JobPlacement(Section):
    """Machines of an attempt: topology, slices and zone."""

    on: str  # topology in the documentation's spelling (``v5e:4x4``), or ``local``
    slices: int = 1  # number of slices
    zone: str | None = None  # unset for ``local``
    dollars_per_hour: float | None = None  # price of all chips; unset without a list price
    estimated_hours: float | None = None  # duration of the whole run; unset without a plan

    @property
    def topology(self) -> TpuTopology | None:
        """The topology of one slice, or None for ``local``."""
        return None if self.on == "local" else parse_topology(self.on)

    @property
    def place(self) -> str:
        """The placement as text: ``4 × v5e:4x4 in us-west4-a``."""
        slices = f"{self.slices} × " if self.slices > 1 else ""
        return f"{slices}{self.on}{f' in {self.zone}' if self.zone else ''}"


class Job(Section):
    """A job as submitted, saved as ``job.json`` in the job's directory."""

    # Part of the names of cloud resources, which allow only these characters.
    name: Annotated[str, pydantic.Field(pattern=RESOURCE_NAME)]
    verb: Verb = "pretrain"  # verb that hosts run
    run_dir: str  # run directory, which hosts write
    working_directory: str | None = None  # base of the configuration's relative paths; `local` only
    submit: SubmitSection  # resolved settings: project, zone and bucket are set
    # Placements in the order of attempts.
    placements: Annotated[
        tuple[JobPlacement, ...], pydantic.BeforeValidator(as_tuple), pydantic.Field(min_length=1)
    ]
    version: str  # version of bert-jax in the staged wheel
    submitted: float  # time of submission in seconds since 1970

    @property
    def directory(self) -> epath.Path:
        """The directory of the job's files: ``gs://bucket/jobs/NAME``."""
        return job_directory(self.submit.bucket or "", self.name)

    @property
    def wait_hours(self) -> float | None:
        """Maximum wait of one request for capacity, or None without a limit."""
        if self.submit.limits.wait_hours is not None:
            return self.submit.limits.wait_hours
        return _SHARED_WAIT_HOURS if len(self.placements) > 1 else None

    def hosts(self, placement: JobPlacement) -> int:
        """Returns the number of hosts of a placement; for ``local``, the number of processes."""
        topology = placement.topology
        if topology is None:
            return self.submit.hosts
        return topology.hosts(gke=self.submit.launcher == "gke") * placement.slices

    @property
    def labels(self) -> dict[str, str]:
        """Labels of every resource. `bert-jax jobs` searches for them."""
        return {**self.submit.labels, JOB_LABEL: self.name}


def job_directory(bucket: str, name: str) -> epath.Path:
    """Returns the directory of a job's files."""
    return epath.Path(bucket) / JOBS / name


class JobFiles:
    """Paths in a job's directory. Each file has one writer: submitter, supervisor or a host."""

    def __init__(self, directory: epath.Path) -> None:
        self.directory = directory
        # Written by the submitter: `Job` as JSON, the resolved `RunConfig`, and a directory with
        # the wheel, the lock, uv and ``startup.sh``.
        self.job = directory / "job.json"
        self.config = directory / "config.yaml"
        self.software = directory / "software"
        self.startup = self.software / "startup.sh"
        # Written by the supervisor: `SupervisorState` as JSON, and its lock.
        self.supervisor = directory / "supervisor.json"
        self.lease = directory / ".supervisor.lock"
        self.stop = directory / "stop.json"  # exists after `bert-jax stop`
        self.compiled = directory / "compiled"  # JAX's compilation cache

    def host(self, attempt: int, worker: int) -> epath.Path:
        """Returns the path of a host's heartbeat: `HostStatus` as JSON, written every minute."""
        return self.directory / "attempts" / str(attempt) / f"worker-{worker}.json"

    def log(self, attempt: int, worker: int, part: int = 0) -> epath.Path:
        """Returns the path of one part of a host's log; see `heartbeat_writer.PART_BYTES`."""
        number = f".{part}" if part else ""
        return self.directory / "attempts" / str(attempt) / f"worker-{worker}{number}.log"


def read_job(files: JobFiles) -> Job:
    """Reads a job. Raises UserError if the directory has no job."""
    return read_section(Job, files.job)


class Ending(Section):
    """The end of one process of the run on a host."""

    at: float  # seconds since 1970
    exit_code: int  # exit code of the process; 128 + the signal's number if a signal killed it
    step: int | None = None  # last step that the process reported
    message: str = ""  # error of the process, or its last line of output


class HostStatus(Section):
    """The last report of one host."""

    # `failed`: a restart would fail too (a wrong configuration, a loss that is not finite, two
    # crashes at one step). `stopped`: stopped by SIGTERM after a save.
    state: Literal["installing", "staging", "running", "restarting", "stopped", "done", "failed"]
    exit_code: int | None = None  # exit code of the last ended process of the run
    restarts: int = 0  # number of restarts of the run's process on this host in this attempt
    message: str = ""  # reason for the state
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
        """The name of the attempt's machines: `NAME-1`. A new supervisor finds them by name."""
        return f"{self.job.name}-{self.number}"

    @property
    def hosts(self) -> int:
        """The number of hosts of all slices."""
        return self.job.hosts(self.placement)


def find_job(job: str, *, bucket: str | None = None, what: str = "job") -> JobFiles:
    """Returns the files of a job: ``find_job("gs://b/jobs/base")``, ``find_job("base", bucket=b)``.

    `bucket`: bucket of a job given by name. Default: ``$BERT_JAX_BUCKET``. `what`: noun for the
    job in the error message. Raises UserError if there is no such job, or its bucket is not known.
    """
    bucket = bucket or os.environ.get(BUCKET)
    if "/" in job:
        directory = epath.Path(job)
    elif bucket:
        directory = job_directory(bucket, job)
    else:
        remedy = f"found no bucket. Use --bucket gs://…, set {BUCKET}, or give gs://…/jobs/{job}."
        raise UserError("job.bucket_missing", remedy, place=job)
    require_credentials(str(directory))
    files = JobFiles(directory)
    if not files.job.exists():
        others = _names(directory.parent)
        only = f"{commas(others[:20])}{did_you_mean(directory.name, others)}"
        raise UserError("job.unknown", f"no such {what}, only {only}", place=directory)
    return files


def _names(jobs: epath.Path) -> list[str]:
    """Returns the names of jobs, or [] if the directory does not contain jobs."""
    try:
        found = jobs.iterdir() if jobs.name == JOBS and jobs.exists() else ()
        return sorted(path.name for path in found)
    except OSError:
        return []


def placements(section: SubmitSection, *, rates: Mapping[str, float]) -> tuple[JobPlacement, ...]:
    """Returns every combination of `on`, `zone` and `slices`; `slices` varies fastest.

    `rates`: US dollars per chip-hour by TPU generation. Raises UserError if `on` or `zone` is
    missing, `local` is not alone, or a cost limit is set and a topology has no price.
    """
    if not section.on:
        remedy = "missing. Use a topology such as v5litepod-16, or local for this machine."
        raise UserError("submit.on_missing", remedy, place="--on")
    if "local" in section.on:
        if len(section.on) > 1 or section.slices != (1,):
            found, allowed = commas(section.on), "local alone, with --hosts"
            raise UserError.wrong("submit.local_alone", found, allowed, place="submit.on")
        return (JobPlacement(on="local", dollars_per_hour=0.0),)
    if section.lock is not None:
        found = f"{section.lock} with {commas(section.on)}"
        raise UserError.wrong("submit.lock_local", found, "only with local", place="submit.lock")
    if not section.zone and section.launcher != "gke":
        raise UserError(
            "submit.zone_missing", "missing. Use a zone such as us-central1-a.", place="--zone"
        )
    found = []
    zones = section.zone or (None,)  # without zones, GKE uses the zones of the cluster
    for name, zone, slices in itertools.product(section.on, zones, section.slices):
        topology = parse_topology(name)
        rate = rates.get(topology.accelerator.name)
        dollars = None if rate is None else rate * topology.chips * slices
        found.append(
            JobPlacement(on=topology.name, slices=slices, zone=zone, dollars_per_hour=dollars)
        )
    unpriced = [placement.on for placement in found if placement.dollars_per_hour is None]
    if section.limits.cost is not None and unpriced:
        remedy = f"{unpriced[0]} has no price. Use --prices FILE, or --no-limit."
        raise UserError("submit.cost_unpriced", remedy, place="submit.limits.cost")
    return tuple(found)
