"""Records of a job's attempts in the bucket, and rules that act on the records.

The rules decide when an attempt has ended, when to give up the job, and which placement to try
next. A new supervisor continues from the records.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Annotated, Final, Literal, Self

import pydantic

from bert_jax.files.atomic import write_whole
from bert_jax.launch.heartbeat_reader import HeartbeatAges, Hosts
from bert_jax.launch.job import Attempt, Job, JobFiles, JobPlacement
from bert_jax.launch.launcher import Observation, State
from bert_jax.section import Section, as_tuple
from bert_jax.validation import read_section

_EXPIRY_FRACTION: Final = 0.95
_MAX_EMPTY_ROUNDS: Final = 3

# Why an attempt ended. `quota`: no quota for the placement. `capacity`: no machines in time.
# `taken`: machines were preempted. `broken`: machines failed, or a host was silent. `over`: the job
# has ended.
End = Literal["quota", "capacity", "taken", "broken", "over"]
# How a job ended. `limit`: it reached a limit. `stopped`: a user stopped it.
Outcome = Literal["done", "failed", "limit", "stopped"]


class AttemptRecord(Section):
    """One attempt. Times are seconds since 1970."""

    number: int = pydantic.Field(ge=1)
    placement: int = pydantic.Field(ge=0)  # index into the job's placements
    # Time before the request for machines. It is saved before the request, so that a new
    # supervisor can find the machines.
    intended: float
    created: float | None = None  # time of the launcher's answer
    bills_from: float | None = None  # start of billing: the last poll without billing
    # Time when a supervisor saw the machines start. The start-up limit counts from this time,
    # because a supervisor that was suspended for hours does not know when machines really started.
    up_from: float | None = None
    state: State = State.ABSENT  # last observed state
    message: str = ""  # the provider's message
    end: End | None = None  # why the attempt ended; saved before its machines are deleted
    reason: str = ""  # explanation of `end`
    deleted: float | None = None  # time of the machines' deletion, or of the refused request
    step: int | None = None  # last step that the hosts have reported

    def of(self, job: Job) -> Attempt:
        """Returns the attempt of this record."""
        return Attempt(job, self.number, job.placements[self.placement])

    def hours(self, now: float) -> float:
        """Returns the hours billed until `now`."""
        if self.bills_from is None:
            return 0.0
        until = now if self.deleted is None else self.deleted
        return max(until - self.bills_from, 0.0) / 3600


class SupervisorState(Section):
    """The content of ``supervisor.json``."""

    # All attempts so far. Only the last attempt may have machines.
    attempts: Annotated[tuple[AttemptRecord, ...], pydantic.BeforeValidator(as_tuple)] = ()
    outcome: Outcome | None = None  # unset until the job ends
    message: str = ""  # reason for the outcome
    seen: float = 0.0  # time of the last supervisor's last poll

    @property
    def current(self) -> AttemptRecord | None:
        """The last attempt if its machines may exist, otherwise None."""
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and last.deleted is None else None

    @property
    def restarts(self) -> Sequence[AttemptRecord]:
        """Attempts that ended with a preemption or a failure."""
        return [record for record in self.attempts if record.end in ("taken", "broken")]

    def dollars(self, placements: Sequence[JobPlacement], now: float) -> float:
        """Returns the cost of all attempts in US dollars. Attempts without a price cost 0."""
        return sum(
            record.hours(now) * (placements[record.placement].dollars_per_hour or 0.0)
            for record in self.attempts
        )

    def hours(self, now: float) -> float:
        """Returns the hours of wall time since the first request."""
        return (now - self.attempts[0].intended) / 3600 if self.attempts else 0.0

    def with_last(self, **changes: object) -> Self:
        """Returns a copy with changes to the last attempt."""
        last = self.attempts[-1].model_copy(update=changes)
        return self.model_copy(update={"attempts": (*self.attempts[:-1], last)})


def read_state(files: JobFiles) -> SupervisorState:
    """Returns the state of a job, empty before its first supervisor.

    Raises UserError if the file is damaged.
    """
    found = files.supervisor.exists()
    return read_section(SupervisorState, files.supervisor) if found else SupervisorState()


def write_state(files: JobFiles, state: SupervisorState) -> None:
    """Writes ``supervisor.json`` atomically."""
    write_whole(files.supervisor, state.model_dump_json(indent=1))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SupervisorLimits:
    """A supervisor's intervals and time limits in seconds."""

    poll: float = 60.0  # interval between polls
    start: float = 2700.0  # limit from `up_from` to each host's first report
    silence: float = 900.0  # limit between two reports; limit for other hosts once one is done
    settle: float = 180.0  # limit from a request until the service lists its machines
    status: float = 50.0  # minimum interval between status lines, checked every minute


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The end of an attempt."""

    end: End
    reason: str  # explanation for the user
    outcome: Outcome | None = None  # the job's outcome; unset if another attempt follows


def run_verdict(hosts: Hosts) -> Verdict | None:
    """Returns the verdict if the run has ended or failed, otherwise None."""
    if hosts.done:
        return Verdict("over", _at_step(hosts), "done")
    if hosts.failed is None:
        return None
    worker, host = hosts.failed
    reason = f"worker {worker}: {host.message or f'exit code {host.exit_code}'}"
    if host.exit_code is None:  # the agent failed, not the run: other machines may work
        return Verdict("broken", reason)
    return Verdict("over", reason, "failed")


def is_start(record: AttemptRecord, seen: Observation) -> bool:
    """Returns whether this poll is the first to see the machines start, or pods restart."""
    if seen.state is State.STARTING:
        return record.up_from is None or record.state is not State.STARTING
    if seen.state is State.ACTIVE:
        return record.up_from is None or record.state not in (State.STARTING, State.ACTIVE)
    return False


def machines_verdict(
    job: Job, record: AttemptRecord, seen: Observation, *, now: float, pace: SupervisorLimits
) -> Verdict | None:
    """Returns the verdict on the machines, or None if they may still be used."""
    detail = f": {seen.message}" if seen.message else ""
    waited_seconds = now - (record.created or now)
    patience = job.wait_hours
    waited = patience is not None and waited_seconds >= patience * 3600
    # The service measures the wait by its own clock: allow a difference of 5%.
    expired = patience is not None and waited_seconds >= _EXPIRY_FRACTION * patience * 3600
    if seen.state is State.SUSPENDED:
        return Verdict("taken", f"suspended{detail}")
    if seen.state is State.ABSENT and waited_seconds > pace.settle:
        return Verdict("taken", "deleted from outside")
    if seen.state is State.WAITING and waited and record.bills_from is None:
        return Verdict("capacity", f"no capacity within {patience:g} h{detail}")
    if seen.state is State.FAILED:
        never = expired and record.bills_from is None
        return Verdict("capacity" if never else "broken", f"failed{detail}")
    up = now - (record.up_from or now)
    if seen.state is State.STARTING and up > pace.start:
        return Verdict("broken", f"not started within {up / 60:.0f} min{detail}")
    return None


def silence_verdict(
    record: AttemptRecord, hosts: Hosts, ages: HeartbeatAges, *, now: float, pace: SupervisorLimits
) -> Verdict | None:
    """Returns the verdict on the hosts' heartbeats, or None if all hosts report.

    If a host has finished the run, returns `done` after `pace.silence` even if other hosts run.
    """
    finished = ages.since_finished(now)
    if finished is not None:
        return Verdict("over", _at_step(hosts), "done") if finished > pace.silence else None
    up = now - (record.up_from or now)
    if hosts.missing and up > pace.start:
        which = ", ".join(map(str, hosts.missing[:8]))
        return Verdict("broken", f"worker {which} has not started within {up / 60:.0f} min")
    worker, silent = ages.longest(hosts, now)
    if silent > pace.silence:
        return Verdict("broken", f"worker {worker} has been silent for {silent / 60:.0f} min")
    return None


def _at_step(hosts: Hosts) -> str:
    return "" if hosts.step is None else f"at step {hosts.step}"


def reason_to_give_up(job: Job, state: SupervisorState) -> str | None:
    """Returns why another attempt would fail too, or None if it may succeed."""
    last = state.attempts[-1]
    if last.end != "broken":
        return None
    kinds = [(item.end, item.bills_from is None, item.step) for item in reversed(state.attempts)]
    alike = len(list(itertools.takewhile(lambda kind: kind == kinds[0], kinds)))
    if last.bills_from is None:
        most = _MAX_EMPTY_ROUNDS * len(job.placements)
        return f"{most} requests in a row failed" if alike >= most else None
    if alike < 2:
        return None
    where = "before its first step" if last.step is None else f"at step {last.step}"
    return f"failed {where} twice"


def limit_hit(job: Job, state: SupervisorState, *, now: float, margin_seconds: float) -> str | None:
    """Returns a message on the limit that the job has reached, or None below all limits.

    `margin_seconds` is the time until the next check: the cost must stay below its limit until
    then. `now` is in seconds since 1970.
    """
    limits = job.submit.limits
    if (restarts := len(state.restarts)) > limits.retries:
        last = state.restarts[-1]
        return f"limits.retries: {restarts} attempts have ended, the last: {last.reason}"
    if limits.hours is not None and state.hours(now) >= limits.hours:
        return f"limits.hours: {limits.hours:g} h have passed since the first request"
    soon = now + margin_seconds if state.current is not None else now
    if limits.cost is not None and state.dollars(job.placements, soon) >= limits.cost:
        spent = state.dollars(job.placements, now)
        return f"limits.cost: ${spent:,.2f} of ${limits.cost:,.2f} are spent"
    return None


def next_placement(job: Job, state: SupervisorState) -> int | str:
    """Returns the index of the placement to try next, or the reason to give up.

    After a preemption, try the first placement. If a placement has no machines, try the next one.
    Give up after a whole round without quota, or without capacity if `limits.wait_hours` is set.
    """
    if not state.attempts or state.attempts[-1].end == "taken":
        return 0
    count = len(job.placements)
    ends = {record.end for record in state.attempts[-count:]}
    whole_round = len(state.attempts) >= count and ends <= {"quota", "capacity"}
    if whole_round and (ends == {"quota"} or job.submit.limits.wait_hours is not None):
        tried = [(job.placements[item.placement], item.reason) for item in state.attempts[-count:]]
        places = [
            f"{place.on}{f' in {place.zone}' if place.zone else ''}: {reason}"
            for place, reason in tried
        ]
        return f"no machines are available ({'; '.join(places)})"
    return (state.attempts[-1].placement + 1) % count
