"""Everything there is to know of a job, or of a run that was started by hand."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pydantic
from etils import epath

from bert_jax.errors import RunStopped, UserError, first_line
from bert_jax.launch.heartbeats import Hosts, read_hosts
from bert_jax.launch.job import Attempt, Job, JobFiles, JobPlacement
from bert_jax.launch.launcher import Launcher, Observation, State
from bert_jax.launch.run_progress import total_steps
from bert_jax.launch.supervisor_state import AttemptRecord, SupervisorState, read_job, read_state
from bert_jax.parallel.channel import PEER_LOST
from bert_jax.section import Section
from bert_jax.train.time_account import GOODPUT, KINDS
from bert_jax.train.writer import read_metrics

_RECENT_ATTEMPTS: Final = 3  # whose hosts are asked
_RECENT_SECONDS: Final = 3600.0  # whose speed tells when the run will end


class RunFigures(Section):
    """A run as it last wrote."""

    step: int = 0  # done so far; 0 before the first report
    total_steps: int | None = None  # None where the configuration does not say it
    loss: float | None = None  # of the last report
    tokens_per_second: float | None = None  # that are no padding
    mfu: float | None = None  # model FLOPs over the devices' peak; None where the peak is not known
    # Of the last hour since its process started, with all that it stood still for; None before two
    # reports
    seconds_per_step: float | None = None
    at: float | None = None  # of the last figures, in seconds since 1970; None: there are none
    # Of its wall time by kind, since the time that was asked for
    seconds: dict[str, float] = pydantic.Field(default_factory=dict)
    starts: int = 0  # of processes
    finished: bool = False  # whether it has come to its end

    @property
    def seconds_left(self) -> float | None:
        """Until its last step, at the speed of the last hour; None: not known."""
        if self.finished:
            return 0.0
        if self.seconds_per_step is None or self.total_steps is None:
            return None
        return max(self.total_steps - self.step, 0) * self.seconds_per_step


def read_figures(
    run_dir: epath.PathLike, config: epath.PathLike, *, since: float = 0.0
) -> RunFigures:
    """Reads the metrics of a run, which may not have begun. Loads no JAX.

    `config` says how many steps it has; the account of time begins at `since`, in seconds since
    1970. Raises RunStopped if its bucket does not answer.
    """
    lines = _metrics(run_dir)
    accounts = [line for line in lines if line["kind"] == GOODPUT and {*KINDS, "at"} <= line.keys()]
    found: dict[str, Any] = {"total_steps": total_steps(config)}
    if trained := [line for line in lines if line["kind"] == "train"]:
        found |= {"step": trained[-1]["step"], "loss": trained[-1].get("loss")}
    if speeds := [line for line in lines if line["kind"] == "speed"]:
        found |= {name: speeds[-1].get(name) for name in ("tokens_per_second", "mfu")}
    if accounts:
        last = accounts[-1]
        found |= {
            "step": last["step"],
            "at": last["at"],
            "starts": last["starts"],
            "finished": bool(last["finished"]),
            "seconds_per_step": _seconds_per_step(accounts),
            "seconds": _seconds(accounts, since),
        }
    return RunFigures(**found)


def _metrics(run_dir: epath.PathLike) -> Sequence[Mapping[str, Any]]:
    try:
        return read_metrics(run_dir)
    except UserError:  # there are none yet
        return []


def _seconds_per_step(accounts: Sequence[Mapping[str, Any]]) -> float | None:
    last = accounts[-1]
    recent = [
        line
        for line in accounts
        if line["starts"] == last["starts"] and line["at"] >= last["at"] - _RECENT_SECONDS
    ]
    steps = last["step"] - recent[0]["step"]
    return (last["at"] - recent[0]["at"]) / steps if steps > 0 else None


def _seconds(accounts: Sequence[Mapping[str, Any]], since: float) -> dict[str, float]:
    before = [line for line in accounts if line["at"] < since][-1:]
    counted = before[0] if before else dict.fromkeys(KINDS, 0.0)
    return {kind: max(accounts[-1][kind] - counted[kind], 0.0) for kind in KINDS}


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

    Raises UserError if a file of the job is damaged, RunStopped if its bucket does not answer.
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
    """Returns how a run started by hand is; raises RunStopped if its bucket does not answer."""
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
    attempt, hosts = last.of(job), told[last.number]
    silent = {"silent": len(hosts.missing)} if hosts.missing else {}
    seen, at = _observe(attempt, last, state, launcher, now=now)
    restarts = [each for one in state.attempts for each in _restarts(one, told.get(one.number))]
    return found.model_copy(
        update={
            "attempt": last.number,
            "placement": attempt.placement,
            "machines": seen.state,
            "machines_message": seen.message,
            "machines_seen": at,
            "hosts": dict(Counter(host.state for host in hosts.told.values())) | silent,
            "restarts": tuple(sorted(restarts, key=lambda restart: restart.at)),
        }
    )


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
