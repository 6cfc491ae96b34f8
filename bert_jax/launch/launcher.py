"""The interface of all launchers."""

import dataclasses
import enum
from typing import NamedTuple, Protocol

from bert_jax.errors import RunStopped, UserError
from bert_jax.launch.job import Attempt
from bert_jax.launch.section import SubmitSection


class State(enum.Enum):
    """State of an attempt's machines."""

    ABSENT = "absent"  # not created yet, or deleted
    WAITING = "waiting"  # waiting for capacity; costs nothing, may hold quota
    STARTING = "starting"
    ACTIVE = "active"
    SUSPENDED = "suspended"  # preempted; does not restart by itself, holds quota
    FAILED = "failed"
    DELETING = "deleting"


@dataclasses.dataclass(frozen=True)
class Observation:
    """The state of an attempt's machines as the provider reports it."""

    state: State  # state of the machines; heartbeats report the state of the run
    message: str = ""  # the provider's reason, in one line
    waits_since: float | None = None  # start of the wait in seconds since 1970; GKE only


class Owner(NamedTuple):
    """The job that owns machines. Another bucket may have a job of the same name."""

    job: str  # the job's name, from the machines' label
    directory: str  # the job's directory; empty if the machines' metadata lack it

    @classmethod
    def of(cls, attempt: Attempt) -> "Owner":
        """Returns the owner of an attempt's machines."""
        return cls(attempt.job.name, str(attempt.job.directory))

    def is_job(self, wanted: "Owner") -> bool:
        """Returns whether the jobs are equal. If `directory` is empty, compares only names."""
        return self.job == wanted.job and self.directory in ("", wanted.directory)


@dataclasses.dataclass(frozen=True)
class Existing:
    """Machines that exist."""

    owner: Owner
    resource: str  # name of the machines
    zone: str  # zone; for GKE, CLUSTER/NAMESPACE
    state: State
    bills: bool  # whether the machines cost money now


@dataclasses.dataclass(frozen=True)
class Request:
    """A request of a launcher, as text to print."""

    what: str  # purpose of the request in a few words
    body: str  # content of the request, JSON or YAML
    command: str = ""  # equivalent shell command, quoted; may be empty


class OutOfQuota(RunStopped):
    """The project's quota is too small for a placement. Another placement may work."""


class Unavailable(RunStopped):
    """The service has not answered for a while. A later request may work."""


class NotOurs(UserError):
    """The attempt's name belongs to another job or another user."""


class Launcher(Protocol):
    """Creates, observes and deletes the machines of attempts.

    Every operation is idempotent. If another job owns machines of the same name, they count as
    absent, and are never deleted. Methods other than `render` raise Unavailable if the service does
    not answer, or a deletion takes too long.
    """

    def render(self, attempt: Attempt) -> list[Request]:
        """Returns the requests that `create` would send. Needs no credentials or network."""
        ...

    def create(self, attempt: Attempt) -> None:
        """Requests the machines, which run `tpu_setup/startup.sh` when they start.

        Raises OutOfQuota if the quota is too small, NotOurs if another job has the name, and
        NoCredentials if the first try had no valid credentials. Raises UserError for other errors
        that only the user can fix, such as a missing permission.
        """
        ...

    def observe(self, attempt: Attempt) -> Observation:
        """Returns the state of the machines."""
        ...

    def delete(self, attempt: Attempt) -> None:
        """Deletes the machines; returns when they no longer cost money."""
        ...

    def existing(self) -> list[Existing]:
        """Returns all machines with our label, for any job."""
        ...

    def remove(self, existing: Existing) -> None:
        """Deletes machines that `existing()` returned, unless another job has their name now."""
        ...


def require_ours(attempt: Attempt, owner: Owner | None, what: str, *, where: str) -> None:
    """Raises NotOurs if another job has the attempt's name, Unavailable if the name is free again.

    `what` and `where` are for messages: ``queued resource base-1``, ``us-west4-a``.
    """
    if owner is None:
        raise Unavailable("cloud.just_deleted", "deleted a moment ago", place=what)
    if not owner.is_job(Owner.of(attempt)):
        taken = f"{attempt.resource} in {where} belongs to {owner.directory or owner.job}"
        raise NotOurs("submit.name_taken", taken, place="submit.name")


def no_permission(place: str, reason: str, *, needed: str) -> UserError:
    """Returns the error for a missing permission. `needed`: a role that has it."""
    return UserError(
        "cloud.permission", f"no permission ({reason}). Needed: {needed}.", place=place
    )


def reservation_of(section: SubmitSection) -> str:
    """Returns the name of the reservation. Raises UserError if it is missing."""
    if section.reservation is None:
        missing = "missing, but provisioning: reservation needs its name"
        raise UserError("submit.reservation_missing", missing, place="submit.reservation")
    return section.reservation
