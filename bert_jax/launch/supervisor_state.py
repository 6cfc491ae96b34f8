"""What a supervisor has done and will do, in the bucket, so that another one can take over."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

import pydantic

from bert_jax.files.atomic import write_whole
from bert_jax.launch.job import Attempt, Job, JobFiles, JobPlacement
from bert_jax.launch.launcher import State
from bert_jax.section import Section, as_tuple
from bert_jax.validation import read_section

# `quota`: none there. `capacity`: none in time. `taken`: machines were taken back. `broken`: they
# failed, or a host was silent. `over`: the job is.
End = Literal["quota", "capacity", "taken", "broken", "over"]
# `limit`: a limit of the job was reached. `stopped`: by a user.
Outcome = Literal["done", "failed", "limit", "stopped"]


class AttemptRecord(Section):
    """One attempt. Times are seconds since 1970."""

    number: int = pydantic.Field(ge=1)
    placement: int = pydantic.Field(ge=0)  # index into the job's placements
    # Written before machines are asked for, so that a successor finds them.
    intended: float
    created: float | None = None  # when the launcher had answered
    bills_from: float | None = None  # the last observation without billing
    # When the machines were first seen to start or to be there. A supervisor that slept for hours
    # does not know how long they have been there, so patience with them begins then.
    up_from: float | None = None
    state: State = State.ABSENT  # as last seen
    message: str = ""  # of the provider
    end: End | None = None  # why it ended; written before machines are deleted
    reason: str = ""  # the same in words
    deleted: float | None = None  # when its machines were gone, or refused
    step: int | None = None  # the last one that its hosts have reported

    def of(self, job: Job) -> Attempt:
        """Returns the attempt itself."""
        return Attempt(job, self.number, job.placements[self.placement])

    def hours(self, now: float) -> float:
        """Returns the hours that were billed until a time."""
        if self.bills_from is None:
            return 0.0
        until = now if self.deleted is None else self.deleted
        return max(until - self.bills_from, 0.0) / 3600


class SupervisorState(Section):
    """``supervisor.json``."""

    # All so far; only the last one may have machines.
    attempts: Annotated[tuple[AttemptRecord, ...], pydantic.BeforeValidator(as_tuple)] = ()
    outcome: Outcome | None = None  # of the job
    message: str = ""  # why, in words
    seen: float = 0.0  # when this was written

    @property
    def current(self) -> AttemptRecord | None:
        """The attempt whose machines may exist."""
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and last.deleted is None else None

    @property
    def restarts(self) -> Sequence[AttemptRecord]:
        """Attempts after which another one was needed."""
        return [record for record in self.attempts if record.end in ("taken", "broken")]

    def dollars(self, placements: Sequence[JobPlacement], now: float) -> float:
        """Returns the cost of all attempts; one without a price counts as nothing."""
        return sum(
            record.hours(now) * (placements[record.placement].dollars_per_hour or 0.0)
            for record in self.attempts
        )

    def hours(self, now: float) -> float:
        """Returns the wall time since the first request."""
        return (now - self.attempts[0].intended) / 3600 if self.attempts else 0.0

    def with_last(self, **changes: object) -> Self:
        """Returns the state with the last attempt changed."""
        last = self.attempts[-1].model_copy(update=changes)
        return self.model_copy(update={"attempts": (*self.attempts[:-1], last)})


def read_state(files: JobFiles) -> SupervisorState:
    """Returns the state of a job, without attempts before its first supervisor.

    Raises UserError if the file is damaged.
    """
    found = files.supervisor.exists()
    return read_section(SupervisorState, files.supervisor) if found else SupervisorState()


def write_state(files: JobFiles, state: SupervisorState) -> None:
    """Writes ``supervisor.json`` whole."""
    write_whole(files.supervisor, state.model_dump_json(indent=1))
