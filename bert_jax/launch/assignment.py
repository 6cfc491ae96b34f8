"""The environment variables of a host, and the host's part of a run.

On Cloud TPU, the launcher sets them as attributes of the instance's metadata, in lower case with
hyphens (``bert-jax-job``). `tpu_setup/startup.sh` exports the attributes as environment variables
and starts `python -m bert_jax.launch.host`.
"""

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pydantic
from etils import epath

from bert_jax.data.loader.section import LoaderSection
from bert_jax.errors import UserError
from bert_jax.files.yaml_file import read_yaml
from bert_jax.launch.job import Attempt, JobFiles, read_job
from bert_jax.launch.retry_policy import read_state
from bert_jax.parallel.section import CLOUD_TPU_PORT
from bert_jax.section import Section
from bert_jax.validation import validate
from bert_jax.version import __version__

JOB_ATTRIBUTE: Final = "bert-jax-job"
JAX_CACHE: Final = "JAX_COMPILATION_CACHE_DIR"


def variables(**values: object) -> dict[str, str]:
    """Returns environment variables: ``variables(worker=3) -> {"BERT_JAX_WORKER": "3"}``."""
    return {f"BERT_JAX_{name}".upper(): str(value) for name, value in values.items()}


def host_variables(attempt: Attempt) -> dict[str, str]:
    """Returns the environment variables that every host of an attempt gets."""
    return variables(job=attempt.job.directory, attempt=attempt.number)


def metadata(attempt: Attempt) -> dict[str, str]:
    """Returns the host variables as attributes of a Cloud TPU VM's metadata."""
    return {key.lower().replace("_", "-"): value for key, value in host_variables(attempt).items()}


class HostEnvironment(Section):
    """The environment variables that `tpu_setup/startup.sh` passes to the agent."""

    model_config = pydantic.ConfigDict(
        extra="ignore",
        strict=False,  # environment variables are strings
        alias_generator=lambda name: f"BERT_JAX_{name}".upper(),
    )

    job: str  # the job's directory: ``gs://bucket/jobs/NAME``
    attempt: int  # the attempt's number
    worker: int  # the host's index over all slices, from 0
    coordinator: str | None = None  # ``127.0.0.1:PORT``, for processes of `on: local`
    home: str | None = None  # local directory for the Python environment, caches and datasets
    beat_seconds: float = 60.0  # time between heartbeats
    pause_seconds: float = 5.0  # pause before the first restart; later pauses are longer

    @property
    def files(self) -> JobFiles:
        """The files of the job."""
        return JobFiles(epath.Path(self.job))


def read_environment(environment: Mapping[str, str]) -> HostEnvironment:
    """Returns the settings in an environment; empty variables count as unset.

    Raises UserError if a variable is missing or has the wrong type.
    """
    values = {name: value for name, value in environment.items() if value}
    return validate(HostEnvironment, values, source="")


@dataclasses.dataclass(frozen=True)
class Assignment:
    """One host's part of a run."""

    host: HostEnvironment
    attempt: Attempt
    config: Mapping[str, Any]  # the run's configuration, from ``config.yaml`` of the job

    @property
    def loader(self) -> LoaderSection:
        """The run's loader settings; the dataset cache defaults to this host's `home`."""
        values = self.config.get("loader") or {}
        section = validate(LoaderSection, values, source=str(self.host.files.config), key="loader")
        if section.cache.directory is not None or self.host.home is None:
            return section
        cache = section.cache.model_copy(update={"directory": f"{self.host.home}/datasets"})
        return section.model_copy(update={"cache": cache})

    @property
    def command(self) -> list[str]:
        """The arguments of the run's process, which starts without a shell."""
        verb, config = self.attempt.job.verb, str(self.host.files.config)
        return [sys.executable, "-m", "bert_jax.cli", verb, config, *self._overrides]

    @property
    def environment(self) -> dict[str, str]:
        """Additional environment variables of the run: JAX's compilation cache in the bucket."""
        on_cloud = self.attempt.placement.topology is not None
        return {JAX_CACHE: str(self.host.files.compiled)} if on_cloud else {}

    @property
    def _overrides(self) -> Iterator[str]:
        """Yields overrides for this host: platform, slices, processes, port, dataset cache."""
        mesh, placement = self.config.get("mesh") or {}, self.attempt.placement
        if placement.topology is not None:
            if mesh.get("platform", "auto") == "auto":
                yield "mesh.platform=tpu"  # fail without a TPU; "auto" would use the CPU
            yield f"mesh.slices={placement.slices}"
        if self.attempt.hosts > 1:
            yield "mesh.distributed.enabled=true"
            on_tpu_vms = placement.topology and self.attempt.job.submit.launcher != "gke"
            if on_tpu_vms and (mesh.get("distributed") or {}).get("coordinator_port") is None:
                yield f"mesh.distributed.coordinator_port={CLOUD_TPU_PORT}"
        if self.host.coordinator is not None:
            yield f"mesh.distributed.coordinator_address={self.host.coordinator}"
            yield f"mesh.distributed.process_count={self.attempt.hosts}"
            yield f"mesh.distributed.process_index={self.host.worker}"
        if (directory := self.loader.cache.directory) is not None:
            yield f"loader.cache.directory={json.dumps(directory)}"


def read_assignment(host: HostEnvironment) -> Assignment:
    """Returns the assignment of a host.

    Raises UserError if the job's files are damaged, another version of bert-jax submitted the job,
    or the job has no such attempt or host. Raises RunStopped if the bucket does not answer.
    """
    files, job = host.files, read_job(host.files)
    if job.version != __version__:
        allowed = f"{__version__}, as on this host"
        raise UserError.wrong("job.version", f"bert-jax {job.version}", allowed, place=files.job)
    records = [record for record in read_state(files).attempts if record.number == host.attempt]
    if not records:
        allowed = f"an attempt of job {job.name}"
        raise UserError.wrong("host.attempt", host.attempt, allowed, place="BERT_JAX_ATTEMPT")
    attempt = records[0].of(job)
    if host.worker >= attempt.hosts:
        allowed = f"a number below {attempt.hosts}, the number of hosts"
        raise UserError.wrong("host.worker", host.worker, allowed, place="BERT_JAX_WORKER")
    config = read_yaml(files.config)
    if not isinstance(config, dict):
        raise UserError.wrong("job.config", "no keys", "a configuration", place=files.config)
    return Assignment(host, attempt, config)
