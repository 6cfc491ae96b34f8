"""Everything there is to know of a job, or of a run that was started by hand."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pydantic
from etils import epath

from bert_jax.errors import RunStopped, UserError, first_line
from bert_jax.launch.heartbeats import Hosts, read_hosts
from bert_jax.launch.job import Attempt, Job, JobFiles, JobPlacement
from bert_jax.launch.launcher import Launcher, Observation, State
from bert_jax.launch.run_figures import RunFigures, read_figures
from bert_jax.launch.supervisor_state import AttemptRecord, SupervisorState, read_job, read_state
from bert_jax.parallel.channel import PEER_LOST
from bert_jax.section import Section

_RECENT_ATTEMPTS: Final = 3  # whose hosts are asked


class Restart(Section):
    """Why something was started again."""

    at: float  # seconds since 1970
    what: str  # ``machines`` or ``host 3``
    step: int | None = None  # the last one that was told
    reason: str = ""  # in words


class JobStatus(Section):
    """A job at one moment."""

    name: str  # of it
    directory: str  # of its files
    outcome: str | None = None  # how it ended; None: it has not
    message: str = ""  # why
    attempt: int = 0  # the number of the last one; 0: nothing was asked for yet
    placement: JobPlacement | None = None  # of it
    # Their state, as their launcher sees them now, or as the supervisor last saw them
    machines: State = State.ABSENT
    machines_seen: float | None = None  # when, in seconds since 1970
    machines_message: str = ""  # in the provider's words
    # How many there are of each state; ``silent`` ones have said nothing yet
    hosts: dict[str, int] = pydantic.Field(default_factory=dict)
    # Of machines and of the run's processes, in the order of time
    restarts: tuple[Restart, ...] = ()
    paid_hours: float = 0.0  # of all attempts
    dollars: float | None = None  # for them; None: there is no price
    watched: float | None = None  # when a supervisor last wrote; None: there was none


class Status(Section):
    """A run, and the job that it belongs to."""

    run_dir: str  # of the run
    job: JobStatus | None  # None of a run that was not submitted
    run: RunFigures  # its figures
    at: float  # when this was read, in seconds since 1970

    @property
    def shares(self) -> dict[str, float]:
        """Where paid time went, by kind, adding up to 1; of a run that nobody pays for, its time.

        ``train`` is progress. ``no run``: machines were there, and no process of the run.
        """
        seconds = dict(self.run.seconds)
        paid = 3600 * self.job.paid_hours if self.job is not None else 0.0
        if paid:
            seconds.pop("down", None)  # machines that were gone cost nothing
            seconds["no run"] = max(paid - sum(seconds.values()), 0.0)
        total = sum(seconds.values())
        return {kind: part / total for kind, part in seconds.items() if part} if total else {}

    @property
    def dollars_in_all(self) -> float | None:
        """What it will have cost at the end, at this speed and price; None: not known."""
        left = self.run.seconds_left
        if self.job is None or self.job.dollars is None or left is None:
            return None
        placement = self.job.placement
        price = (placement and placement.dollars_per_hour) or 0.0
        return self.job.dollars + (0.0 if self.job.outcome else left / 3600 * price)


def read_status(files: JobFiles, launcher: Launcher | None, *, now: float) -> Status:
    """Returns how a job is at a time; without a launcher to ask, by the supervisor's word.

    Raises:
        UserError: a file of the job is damaged.
        RunStopped: its bucket does not answer.
    """
    job, state = read_job(files), read_state(files)
    since = state.attempts[0].intended if state.attempts else job.submitted
    return Status(
        run_dir=job.run_dir,
        job=_job_status(files, job, state, launcher, now=now),
        run=read_figures(job.run_dir, files.config, since=since),
        at=now,
    )


def read_run_status(run_dir: epath.PathLike, *, now: float) -> Status:
    """Returns how a run is that was started by hand.

    Raises:
        RunStopped: its bucket does not answer.
    """
    figures = read_figures(run_dir, epath.Path(run_dir) / "config.yaml")
    return Status(run_dir=str(run_dir), job=None, run=figures, at=now)


def _job_status(
    files: JobFiles, job: Job, state: SupervisorState, launcher: Launcher | None, *, now: float
) -> JobStatus:
    priced = any(placement.dollars_per_hour is not None for placement in job.placements)
    found = JobStatus(
        name=job.name,
        directory=str(files.directory),
        outcome=state.outcome,
        message=state.message,
        paid_hours=sum(record.hours(now) for record in state.attempts),
        dollars=state.dollars(job.placements, now) if priced else None,
        watched=state.seen or None,
    )
    if not state.attempts:
        return found
    recent = state.attempts[-_RECENT_ATTEMPTS:]
    told = {record.number: read_hosts(files, record.of(job)) for record in recent}
    last = state.attempts[-1]
    attempt = last.of(job)
    seen, at = _observe(attempt, last, state, launcher, now=now)
    restarts = [each for one in state.attempts for each in _restarts(one, told.get(one.number))]
    return found.model_copy(
        update={
            "attempt": last.number,
            "placement": attempt.placement,
            "machines": seen.state,
            "machines_message": seen.message,
            "machines_seen": at,
            "hosts": _count(told[last.number]),
            "restarts": tuple(sorted(restarts, key=lambda restart: restart.at)),
        }
    )


def _count(hosts: Hosts) -> dict[str, int]:
    silent = {"silent": len(hosts.missing)} if hosts.missing else {}
    return dict(Counter(host.state for host in hosts.told.values())) | silent


def _observe(
    attempt: Attempt,
    record: AttemptRecord,
    state: SupervisorState,
    launcher: Launcher | None,
    *,
    now: float,
) -> tuple[Observation, float | None]:
    """Returns the machines' state, and when it was seen."""
    if record.deleted is not None:
        return Observation(State.ABSENT, record.reason), record.deleted
    last_seen = Observation(record.state, record.message)
    if launcher is None:
        return last_seen, state.seen or None
    try:
        return launcher.observe(attempt), now
    except (UserError, RunStopped) as error:  # no credentials here: others have seen it
        message = f"last seen so; it cannot be asked from here: {first_line(error)}"
        return dataclasses.replace(last_seen, message=message), state.seen or None


def _restarts(record: AttemptRecord, hosts: Hosts | None) -> Iterator[Restart]:
    """Yields what was started again within an attempt, and after it."""
    for worker, host in () if hosts is None else hosts.told.items():
        for ending in host.endings:
            # A host that lost another one tells nothing that the other does not.
            if ending.exit_code not in (0, PEER_LOST):
                reason = f"exit code {ending.exit_code}: {ending.message}".rstrip(": ")
                yield Restart(at=ending.at, what=f"host {worker}", step=ending.step, reason=reason)
    if record.end in ("taken", "broken"):
        at = record.deleted or record.intended
        reason = f"attempt {record.number}: {record.reason}"
        yield Restart(at=at, what="machines", step=record.step, reason=reason)
