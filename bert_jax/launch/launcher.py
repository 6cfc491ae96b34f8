"""The operations of every launcher, and the choice of a job's launcher."""

import contextlib
import dataclasses
import enum
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from bert_jax.errors import RunStopped, UserError, not_installed
from bert_jax.launch.job import Attempt
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
    """The state of an attempt's machines, as a launcher sees them."""

    state: State  # of the machines; heartbeats tell the state of the run
    message: str = ""  # why, in the provider's words; one line
    waits_since: float | None = None  # in seconds since 1970; GKE only


class Owner(NamedTuple):
    """The job that machines were made for. Another bucket may have a job of the same name."""

    job: str  # its name, their label
    directory: str  # of its files; empty if the machines do not show it

    @classmethod
    def of(cls, attempt: Attempt) -> "Owner":
        """Returns the owner of an attempt's machines."""
        return cls(attempt.job.name, str(attempt.job.directory))

    def is_job(self, wanted: "Owner") -> bool:
        """Whether this is the wanted job. The name decides if the machines show no directory."""
        return self.job == wanted.job and self.directory in ("", wanted.directory)


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

    Every operation may be repeated. Machines of that name that belong to another job count as
    absent, and are never deleted. Any method but `render` raises Unavailable if the service does
    not answer, or deletes for too long.
    """

    def render(self, attempt: Attempt) -> list[Request]:
        """Returns what `create` would send. Needs neither credentials nor a network."""
        ...

    def create(self, attempt: Attempt) -> None:
        """Asks for the machines, which run `tpu_setup/startup.sh` when they start.

        Raises UserError if only the user can mend it (no permission, no such zone), NotOurs if
        another job has the name, NoCredentials if no request has got through, or OutOfQuota.
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


def require_ours(attempt: Attempt, owner: Owner | None, what: str, *, where: str) -> None:
    """Raises NotOurs if another job owns the attempt's name, Unavailable if nobody does any more.

    `what` and `where` are for messages: ``queued resource base-1``, ``us-west4-a``.
    """
    if owner is None:
        raise Unavailable(f"{what}: one of that name has just been deleted")
    if not owner.is_job(Owner.of(attempt)):
        raise NotOurs(
            f"submit.name: {attempt.resource} exists in {where} and is not of job "
            f"{attempt.job.directory}; give the job another name"
        )


@contextlib.contextmanager
def cloud_clients() -> Iterator[None]:
    """Raises UserError if a module imported in the block needs a client that is not installed."""
    try:
        yield
    except ImportError as error:
        clients = "clients of Google Cloud and Kubernetes"
        raise UserError(not_installed(clients, "submit", extra="launch,gcp")) from error


def launcher_for(section: SubmitSection) -> Launcher:
    """Returns the launcher of a job whose section is resolved.

    Raises UserError if its client is not installed, or the project is not known.
    """
    # Imported here: Google's clients take a second to load, and launchers import this module.
    if section.on == ("local",):
        from bert_jax.launch.local_launcher import LocalLauncher

        return LocalLauncher()
    with cloud_clients():
        if section.launcher == "gke":
            from bert_jax.launch.gke_launcher import GkeJobSets

            return GkeJobSets(cluster=section.cluster, namespace=section.namespace)
        from bert_jax.launch.tpu_launcher import QueuedResources
    if section.project is None:
        raise UserError("--project: missing; Google Cloud's, in which machines are made")
    return QueuedResources(section.project)


def known_launchers(section: SubmitSection, *, say: Callable[[str], None]) -> Iterator[Launcher]:
    """Yields the launchers whose machines can be listed from here; `say` gets a line for others."""
    yield launcher_for(SubmitSection(on=("local",)))
    configs = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    has_cluster = any(Path(path).is_file() for path in configs.split(os.pathsep))
    for name, known, missing in (
        ("queued-resources", section.project is not None, "--project is not known"),
        ("gke", has_cluster, "kubectl's configuration names no cluster"),
    ):
        if not known:
            say(f"{name}: not listed: {missing}")
            continue
        try:
            yield launcher_for(section.model_copy(update={"on": None, "launcher": name}))
        except UserError as error:
            say(f"{name}: not listed: {error}")
