"""What one host is to do: read from its environment and its job's directory."""

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from etils import epath

from bert_jax.data.loader.section import LoaderSection
from bert_jax.errors import UserError
from bert_jax.files.yaml_file import read_yaml
from bert_jax.launch import machine
from bert_jax.launch.job import Attempt, JobFiles, JobPlacement
from bert_jax.launch.supervisor_state import read_job
from bert_jax.validation import read_section, validate
from bert_jax.version import __version__

COMPILED: Final = "JAX_COMPILATION_CACHE_DIR"
BEAT_SECONDS: Final = 60.0
PAUSE_SECONDS: Final = 5.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Told:
    """What `tpu_setup/startup.sh` tells the agent."""

    files: JobFiles  # of the job
    attempt: int  # its number
    worker: int  # which host of the attempt
    coordinator: str | None  # where the processes meet; None: JAX finds it
    home: Path | None  # of what this host keeps; None: each cache has its own place
    beat_seconds: float  # between heartbeats
    pause_seconds: float  # before the first restart


def read_told(environment: Mapping[str, str]) -> Told:
    """Returns what the environment says.

    Raises UserError if it lacks something, or what should be a number is none.
    """
    home = environment.get(machine.HOME)
    return Told(
        files=JobFiles(epath.Path(_value(environment, machine.JOB))),
        attempt=int(_number(environment, machine.ATTEMPT)),
        worker=int(_number(environment, machine.WORKER)),
        coordinator=environment.get(machine.COORDINATOR) or None,
        home=Path(home) if home else None,
        beat_seconds=_number(environment, machine.BEAT_SECONDS, default=BEAT_SECONDS),
        pause_seconds=_number(environment, machine.PAUSE_SECONDS, default=PAUSE_SECONDS),
    )


@dataclasses.dataclass(frozen=True)
class Assignment:
    """The run that this host has a part in."""

    told: Told  # by the startup script
    attempt: Attempt  # of the job
    config: Mapping[str, Any]  # of the run, as the job's ``config.yaml`` has it

    @property
    def loader(self) -> LoaderSection:
        """The loader's settings, as the run has them."""
        values = self.config.get("loader") or {}
        section = validate(LoaderSection, values, source=str(self.told.files.config), key="loader")
        if section.cache.directory is not None or self.told.home is None:
            return section
        directory = str(self.told.home / "datasets")
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
        verb, config = self.attempt.job.verb, str(self.told.files.config)
        return [sys.executable, "-m", "bert_jax.cli", verb, config, *self._overrides]

    @property
    def environment(self) -> dict[str, str]:
        """What is added to the run's environment.

        What one attempt has compiled, the next need not: the machines of a cloud are new each time,
        so JAX's cache of programs lies with the job. A failure to read or write it is a warning.
        """
        if self.attempt.placement.topology is None:
            return {}
        return {COMPILED: str(self.told.files.compiled)}

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
        if self.told.coordinator is not None:
            yield f"mesh.distributed.coordinator_address={self.told.coordinator}"
            yield f"mesh.distributed.process_count={self.attempt.hosts}"
            yield f"mesh.distributed.process_index={self.told.worker}"
        if (directory := self.loader.cache.directory) is not None:
            yield f"loader.cache.directory={json.dumps(directory)}"


def read_assignment(told: Told) -> Assignment:
    """Returns what this host is to do.

    Raises UserError if the job's directory is damaged, or this host is none of the attempt's;
    RunStopped if the bucket does not answer.
    """
    job = read_job(told.files)
    if job.version != __version__:
        raise UserError(
            f"this host has bert-jax {__version__}, the job was submitted with {job.version}; "
            "allowed: the same; make the container anew, or submit with its version"
        )
    placement = read_section(JobPlacement, told.files.attempt(told.attempt))
    attempt = Attempt(job, told.attempt, placement)
    if told.worker >= attempt.hosts:
        raise UserError(
            f"{machine.WORKER}: found {told.worker}, allowed: 0 to {attempt.hosts - 1} of "
            f"{attempt.hosts} hosts"
        )
    config = read_yaml(told.files.config)
    if not isinstance(config, dict):
        raise UserError(f"{told.files.config}: found no keys, allowed: a configuration")
    return Assignment(told, attempt, config)


def _value(environment: Mapping[str, str], name: str) -> str:
    if not (value := environment.get(name)):
        raise UserError(f"{name}: not set; allowed: what tpu_setup/startup.sh sets")
    return value


def _number(environment: Mapping[str, str], name: str, *, default: float | None = None) -> float:
    text = environment.get(name) or (None if default is None else str(default))
    try:
        return float(text or _value(environment, name))
    except ValueError:
        raise UserError(f'{name}: found "{text}", allowed: a number') from None
