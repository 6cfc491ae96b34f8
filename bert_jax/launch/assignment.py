"""What one host is to do: read from its environment and its job's directory."""

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
from bert_jax.launch import machine
from bert_jax.launch.job import Attempt, JobFiles, JobPlacement
from bert_jax.launch.supervisor_state import read_job
from bert_jax.section import Section
from bert_jax.validation import read_section, validate
from bert_jax.version import __version__

COMPILED: Final = "JAX_COMPILATION_CACHE_DIR"


class HostEnvironment(Section):
    """The environment variables with which `tpu_setup/startup.sh` starts the agent."""

    model_config = pydantic.ConfigDict(extra="ignore", strict=False)  # texts, numbers among them

    job: str = pydantic.Field(min_length=1, validation_alias=machine.JOB)
    attempt: int = pydantic.Field(validation_alias=machine.ATTEMPT)
    worker: int = pydantic.Field(validation_alias=machine.WORKER)
    coordinator: str | None = pydantic.Field(None, validation_alias=machine.COORDINATOR)
    home: str | None = pydantic.Field(None, validation_alias=machine.HOME)
    beat_seconds: float = pydantic.Field(60.0, validation_alias=machine.BEAT_SECONDS)
    pause_seconds: float = pydantic.Field(5.0, validation_alias=machine.PAUSE_SECONDS)

    @property
    def files(self) -> JobFiles:
        """The files of the job."""
        return JobFiles(epath.Path(self.job))


def read_environment(environment: Mapping[str, str]) -> HostEnvironment:
    """Returns the settings in an environment; empty variables count as unset.

    Raises UserError if a variable is missing, or is not a number where one is needed.
    """
    values = {name: environment[name] for name in machine.ALL if environment.get(name)}
    return validate(HostEnvironment, values, source="")


@dataclasses.dataclass(frozen=True)
class Assignment:
    """The run that this host has a part in."""

    host: HostEnvironment  # of this host
    attempt: Attempt  # of the job
    config: Mapping[str, Any]  # of the run, as the job's ``config.yaml`` has it

    @property
    def loader(self) -> LoaderSection:
        """The loader's settings, as the run has them."""
        values = self.config.get("loader") or {}
        section = validate(LoaderSection, values, source=str(self.host.files.config), key="loader")
        if section.cache.directory is not None or self.host.home is None:
            return section
        directory = f"{self.host.home}/datasets"
        return section.model_copy(
            update={"cache": section.cache.model_copy(update={"directory": directory})}
        )

    @property
    def datasets(self) -> Iterator[str]:
        """What the phases of a pretraining run read."""
        for phase in (self.config.get("train") or {}).get("phases") or ():
            yield phase["dataset"]

    @property
    def command(self) -> list[str]:
        """The run's command line. Every argument is handed on as it is; no shell reads it."""
        verb, config = self.attempt.job.verb, str(self.host.files.config)
        return [sys.executable, "-m", "bert_jax.cli", verb, config, *self._overrides]

    @property
    def environment(self) -> dict[str, str]:
        """What is added to the run's environment.

        What one attempt has compiled, the next need not: the machines of a cloud are new each time,
        so JAX's cache of programs lies with the job. A failure to read or write it is a warning.
        """
        if self.attempt.placement.topology is None:
            return {}
        return {COMPILED: str(self.host.files.compiled)}

    @property
    def _overrides(self) -> Iterator[str]:
        """What only the host knows."""
        mesh, placement = self.config.get("mesh") or {}, self.attempt.placement
        if placement.topology is not None:
            if mesh.get("platform", "auto") == "auto":
                yield "mesh.platform=tpu"  # where there is none, JAX would take the CPU
            yield f"mesh.slices={placement.slices}"
        if self.attempt.hosts > 1:
            yield "mesh.distributed.enabled=true"
        if self.host.coordinator is not None:
            yield f"mesh.distributed.coordinator_address={self.host.coordinator}"
            yield f"mesh.distributed.process_count={self.attempt.hosts}"
            yield f"mesh.distributed.process_index={self.host.worker}"
        if (directory := self.loader.cache.directory) is not None:
            yield f"loader.cache.directory={json.dumps(directory)}"


def read_assignment(host: HostEnvironment) -> Assignment:
    """Returns what this host is to do.

    Raises UserError if the job's directory is damaged, or this host is none of the attempt's;
    RunStopped if the bucket does not answer.
    """
    files, job = host.files, read_job(host.files)
    if job.version != __version__:
        raise UserError(
            f"this host has bert-jax {__version__}, the job was submitted with {job.version}; "
            "allowed: the same; make the container anew, or submit with its version"
        )
    placement = read_section(JobPlacement, files.attempt(host.attempt))
    attempt = Attempt(job, host.attempt, placement)
    if host.worker >= attempt.hosts:
        raise UserError(
            f"{machine.WORKER}: found {host.worker}, allowed: 0 to {attempt.hosts - 1} of "
            f"{attempt.hosts} hosts"
        )
    config = read_yaml(files.config)
    if not isinstance(config, dict):
        raise UserError(f"{files.config}: found no keys, allowed: a configuration")
    return Assignment(host, attempt, config)
