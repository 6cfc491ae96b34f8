"""What every launcher can do: the protocol that the supervisor drives."""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Protocol

from bert_jax.errors import RunStopped, UserError
from bert_jax.launch.job import JOB_LABEL, Attempt


class State(enum.Enum):
    """Of the machines of one attempt."""

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

    state: State  # of the machines, not of the run on them, which its hosts' heartbeats tell
    message: str = ""  # why, in the provider's words; one line, empty if nothing is wrong


@dataclasses.dataclass(frozen=True)
class Owner:
    """The job that something was made for. Another bucket may have a job of the same name."""

    job: str  # its name
    directory: str  # of its files; empty where that cannot be seen

    @classmethod
    def of(cls, attempt: Attempt) -> "Owner":
        """Returns the job of an attempt."""
        return cls(attempt.job.name, str(attempt.job.directory))

    def has(self, labels: Mapping[str, str], directory: str) -> bool:
        """Whether something is this job's, by its labels and the directory that it was told.

        One that shows no directory is judged by its label: nothing of ours is made without both.
        """
        return labels.get(JOB_LABEL) == self.job and directory in ("", self.directory)


@dataclasses.dataclass(frozen=True)
class Existing:
    """Something that was made for a job and still exists."""

    job: str  # its label
    resource: str  # its name
    zone: str  # or cluster
    state: State  # of it
    bills: bool  # whether money is spent on it now
    directory: str = ""  # of the job, as the machines were told; empty where that cannot be seen

    @property
    def owner(self) -> Owner:
        """The job that it was made for."""
        return Owner(self.job, self.directory)


@dataclasses.dataclass(frozen=True)
class Request:
    """One request that a launcher would send, for eyes."""

    what: str  # it is for, in a few words
    body: str  # as it is sent, JSON or YAML
    command: str = ""  # the same for a shell, quoted; empty where there is none


class OutOfQuota(RunStopped):
    """The project may not have so many chips there; another placement may do."""


class Unavailable(RunStopped):
    """The service does not answer, after its launcher has tried for a while; later it may."""


class NotOurs(UserError):
    """What has the attempt's name was made for another job, or by somebody else."""


class Launcher(Protocol):
    """Makes, watches and deletes the machines of attempts.

    Every operation may be repeated: to make what exists under that name for the same job, or to
    delete what is gone, succeeds. What another job, or somebody else, has under that name is not
    the attempt's: it is seen as absent, and never deleted.

    Any method but `render` raises Unavailable: the service does not answer, or deletes for too
    long.
    """

    def render(self, attempt: Attempt) -> list[Request]:
        """Returns what `create` would send. Needs neither credentials nor a network."""
        ...

    def create(self, attempt: Attempt) -> None:
        """Asks for the machines, which run `tpu_setup/startup.sh` when they start.

        Raises UserError for what only the user can mend: no permission, no such zone; NotOurs: a
        name that another job has; NoCredentials, of which no request has got through; OutOfQuota:
        no quota there.
        """
        ...

    def observe(self, attempt: Attempt) -> Observation:
        """Returns how they are."""
        ...

    def delete(self, attempt: Attempt) -> None:
        """Has them deleted; returns when nothing bills any more."""
        ...

    def existing(self) -> list[Existing]:
        """Returns everything with our label, of any job."""
        ...

    def remove(self, existing: Existing) -> None:
        """Has something of `existing` deleted, as `delete` has: also what no job is known of.

        What has its name by now and is another job's stays.
        """
        ...
