"""What a supervisor has done and is about to do, in the bucket: another one can go on from it."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self

import pydantic

from bert_jax.files.atomic import write_whole
from bert_jax.launch.job import Attempt, Job, JobFiles, JobPlacement
from bert_jax.launch.launcher import State
from bert_jax.section import Section, as_tuple
from bert_jax.validation import read_section

End = Literal["quota", "capacity", "taken", "broken", "over"]
Outcome = Literal["done", "failed", "limit", "stopped"]


class AttemptRecord(Section):
    """One attempt. Times are seconds since 1970."""

    number: int = pydantic.Field(ge=1)  # from 1
    placement: int = pydantic.Field(ge=0)  # index into the job's placements
    # Written before its machines are asked for, so that they are found whatever happens then
    intended: float
    created: float | None = None  # when the launcher had answered
    bills_from: float | None = None  # when it was last seen not to bill
    # When its machines were first seen to start, or to be there: patience with them begins then. A
    # supervisor that slept for hours has not seen for how long they have been there.
    up_from: float | None = None
    state: State = State.ABSENT  # as last seen
    message: str = ""  # of the provider
    # Why it ended: no `quota`, no `capacity` in time, `taken` back, `broken` (machines failed, or a
    # host was silent), or the job is `over`. Written before its deletion.
    end: End | None = None
    reason: str = ""  # the same in words
    deleted: float | None = None  # when its machines were gone, or it was refused any
    step: int | None = None  # the last one that its hosts have told

    def of(self, job: Job) -> Attempt:
        """Returns the attempt itself."""
        return Attempt(job, self.number, job.placements[self.placement])

    def hours(self, now: float) -> float:
        """Returns for how long it has billed until a time."""
        if self.bills_from is None:
            return 0.0
        until = now if self.deleted is None else self.deleted
        return max(until - self.bills_from, 0.0) / 3600


class SupervisorState(Section):
    """``supervisor.json``."""

    # All so far; only the last one may have machines
    attempts: Annotated[tuple[AttemptRecord, ...], pydantic.BeforeValidator(as_tuple)] = ()
    # How the job ended. `limit`: one of its limits. `stopped`: by a user.
    outcome: Outcome | None = None
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
        """Returns what all attempts have cost; one without a price counts as nothing."""
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
    """Returns what is known of a job; a job that nothing was done for has no attempts.

    Raises UserError if the file is damaged.
    """
    found = files.supervisor.exists()
    return read_section(SupervisorState, files.supervisor) if found else SupervisorState()


def write_state(files: JobFiles, state: SupervisorState) -> None:
    """Writes ``supervisor.json`` whole."""
    write_whole(files.supervisor, state.model_dump_json(indent=1))


def read_job(files: JobFiles) -> Job:
    """Returns a job. Raises UserError if there is none in that directory."""
    return read_section(Job, files.job)
