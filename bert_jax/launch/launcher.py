"""What every launcher can do, and which one makes a job's machines."""

import dataclasses
import enum
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from bert_jax.errors import RunStopped, UserError
from bert_jax.launch.job import JOB_LABEL, Attempt
from bert_jax.launch.section import SubmitSection


class State(enum.Enum):
    """State of the machines of one attempt."""

    ABSENT = "absent"  # never made, or deleted
    WAITING = "waiting"  # for capacity; costs nothing, may hold quota
    STARTING = "starting"
    ACTIVE = "active"
    SUSPENDED = "suspended"  # taken back; never comes back by itself, holds quota
    FAILED = "failed"
    DELETING = "deleting"


@dataclasses.dataclass(frozen=True)
class Observation:
    """What a launcher sees of an attempt."""

    state: State  # of the machines; heartbeats tell the state of the run
    message: str = ""  # why, in the provider's words; one line, empty if nothing is wrong


class Owner(NamedTuple):
    """The job that machines were made for. Another bucket may have a job of the same name."""

    job: str  # its name
    directory: str  # of its files; empty if the machines do not show it

    @classmethod
    def of(cls, attempt: Attempt) -> "Owner":
        """Returns the owner of an attempt's machines."""
        return cls(attempt.job.name, str(attempt.job.directory))

    def has(self, labels: Mapping[str, str], directory: str) -> bool:
        """Whether machines with these labels, told this directory, are the job's.

        Machines that show no directory are judged by their label.
        """
        return labels.get(JOB_LABEL) == self.job and directory in ("", self.directory)


@dataclasses.dataclass(frozen=True)
class Existing:
    """Machines that exist."""

    owner: Owner
    resource: str  # their name
    zone: str  # or cluster and namespace
    state: State
    bills: bool  # whether they cost money now


@dataclasses.dataclass(frozen=True)
class Request:
    """One request that a launcher would send, to be printed."""

    what: str  # its purpose in a few words
    body: str  # as it is sent, JSON or YAML
    command: str = ""  # the same for a shell, quoted; empty if there is none


class OutOfQuota(RunStopped):
    """The project may not have so many chips there; another placement may work."""


class Unavailable(RunStopped):
    """The service has not answered for a while; later it may."""


class NotOurs(UserError):
    """The attempt's name belongs to another job, or to somebody else."""


class Launcher(Protocol):
    """Makes, watches and deletes the machines of attempts.

    Every operation may be repeated: creating what exists for the same job succeeds, and so does
    deleting what is gone. Machines of that name that belong to another job count as absent, and are
    never deleted.

    Any method but `render` raises Unavailable if the service does not answer, or deletes for too
    long.
    """

    def render(self, attempt: Attempt) -> list[Request]:
        """Returns what `create` would send. Needs neither credentials nor a network."""
        ...

    def create(self, attempt: Attempt) -> None:
        """Asks for the machines, which run `tpu_setup/startup.sh` when they start.

        Raises:
            UserError: only the user can mend it: no permission, no such zone.
            NotOurs: another job has the name.
            NoCredentials: no request has got through.
            OutOfQuota: no quota there.
        """
        ...

    def observe(self, attempt: Attempt) -> Observation:
        """Returns the state of the machines."""
        ...

    def delete(self, attempt: Attempt) -> None:
        """Deletes the machines; returns when nothing bills any more."""
        ...

    def existing(self) -> list[Existing]:
        """Returns all machines with our label, of any job."""
        ...

    def remove(self, existing: Existing) -> None:
        """Deletes an entry of `existing` as `delete` does, unless another job has the name now."""
        ...


def launcher_for(section: SubmitSection) -> Launcher:
    """Returns the launcher of a job whose section is resolved.

    Raises UserError if its client is not installed, or the project is not known.
    """
    # Imported here: Google's clients take a second to load, and launchers import this module.
    if section.on == ("local",):
        from bert_jax.launch.local_launcher import LocalLauncher

        return LocalLauncher()
    if section.launcher == "gke":
        from bert_jax.launch.gke_launcher import GkeJobSets

        return GkeJobSets(cluster=section.cluster, namespace=section.namespace)
    from bert_jax.launch.tpu_launcher import QueuedResources

    if section.project is None:
        raise UserError("--project: missing; Google Cloud's, in which machines are made")
    return QueuedResources(section.project)


def has_cluster() -> bool:
    """Whether kubectl has a configuration here; its client is not loaded."""
    named = os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config"
    return any(Path(path).is_file() for path in str(named).split(os.pathsep))


def known_launchers(section: SubmitSection, *, say: Callable[[str], None]) -> Iterator[Launcher]:
    """Yields the launchers whose machines can be listed from here; `say` gets a line for others."""
    yield launcher_for(SubmitSection(on=("local",)))
    for name, known, missing in (
        ("queued-resources", section.project is not None, "--project is not known"),
        ("gke", has_cluster(), "kubectl's configuration names no cluster"),
    ):
        if not known:
            say(f"{name}: not listed: {missing}")
            continue
        try:
            yield launcher_for(section.model_copy(update={"on": None, "launcher": name}))
        except UserError as error:
            say(f"{name}: not listed: {error}")
