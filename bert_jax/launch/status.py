"""The status of a job, or of a run started by hand."""

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pydantic
from etils import epath

from bert_jax.errors import RunStopped, UserError, first_line
from bert_jax.launch.heartbeat_reader import Hosts, read_hosts, total_steps
from bert_jax.launch.job import Attempt, Job, JobFiles, JobPlacement, read_job
from bert_jax.launch.launcher import Launcher, Observation, State
from bert_jax.launch.retry_policy import AttemptRecord, SupervisorState, read_state
from bert_jax.parallel.channel import PEER_LOST
from bert_jax.runs.settings import REPORT
from bert_jax.section import Section
from bert_jax.train.metrics_writer import read_metrics
from bert_jax.train.time_account import GOODPUT, KINDS

_RECENT_ATTEMPTS: Final = 3  # number of last attempts whose heartbeats are read
_RECENT_SECONDS: Final = 3600.0  # window of the speed for the ETA


class RunFigures(Section):
    """The latest metrics of a run."""

    step: int = 0  # 0 before the first report
    total_steps: int | None = None  # unset if the configuration has no number of steps
    loss: float | None = None
    tokens_per_second: float | None = None  # tokens without padding
    mfu: float | None = None  # model FLOPs divided by the devices' peak; unset without a peak
    # Mean of the last hour of the current process, including evaluations and saves. Unset before
    # the second report.
    seconds_per_step: float | None = None
    at: float | None = None  # time of these metrics in seconds since 1970; unset before the first
    seconds: dict[str, float] = pydantic.Field(default_factory=dict)  # wall time by kind
    starts: int = 0  # number of process starts
    finished: bool = False

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the last step at the speed of the last hour, or None if unknown."""
        if self.finished:
            return 0.0
        if self.seconds_per_step is None or self.total_steps is None:
            return None
        return max(self.total_steps - self.step, 0) * self.seconds_per_step


def read_figures(
    run_dir: epath.PathLike, config: epath.PathLike, *, since: float = 0.0
) -> RunFigures:
    """Reads the latest metrics of a run, empty before its start. Does not import JAX.

    `config`: file with the number of steps. `since`: start of the time account in seconds since
    1970. Raises RunStopped if the bucket does not answer.
    """
    try:
        lines = read_metrics(run_dir)
    except UserError:  # no metrics yet
        lines = []
    accounts = [line for line in lines if line["kind"] == GOODPUT and {*KINDS, "at"} <= line.keys()]
    found: dict[str, Any] = {"total_steps": total_steps(config)}
    if trained := [line for line in lines if line["kind"] == "train"]:
        found |= {"step": trained[-1]["step"], "loss": trained[-1].get("loss")}
    if speeds := [line for line in lines if line["kind"] == "speed"]:
        found |= {name: speeds[-1].get(name) for name in ("tokens_per_second", "mfu")}
    if accounts:
        last = accounts[-1]
        before = [line for line in accounts if line["at"] < since]
        start = before[-1] if before else dict.fromkeys(KINDS, 0.0)
        found |= {name: last[name] for name in ("step", "at", "starts")}
        found |= {
            "finished": bool(last["finished"]),
            "seconds_per_step": _seconds_per_step(accounts),
            "seconds": {kind: max(last[kind] - start[kind], 0.0) for kind in KINDS},
        }
    return RunFigures(**found)


def _seconds_per_step(accounts: Sequence[Mapping[str, Any]]) -> float | None:
    last = accounts[-1]
    first = next(
        line
        for line in accounts
        if line["starts"] == last["starts"] and line["at"] >= last["at"] - _RECENT_SECONDS
    )
    steps = last["step"] - first["step"]
    return (last["at"] - first["at"]) / steps if steps > 0 else None


class Restart(Section):
    """A restart and its reason."""

    at: float  # seconds since 1970
    what: str  # ``machines`` or ``host 3``
    step: int | None = None  # last step reported
    reason: str = ""  # explanation for the user


class JobStatus(Section):
    """The state of a job at one time."""

    name: str
    directory: str  # directory of the job's files
    outcome: str | None = None  # set once the job has ended
    message: str = ""  # reason for the outcome
    attempt: int = 0  # number of the last attempt; 0 before the first request
    placement: JobPlacement | None = None  # placement of the last attempt
    # State of the machines: from the launcher now, or from the supervisor's last poll.
    machines: State = State.ABSENT
    machines_seen: float | None = None  # time of this state in seconds since 1970
    machines_message: str = ""  # the provider's message
    # Number of hosts in each state. A ``silent`` host has not reported yet.
    hosts: dict[str, int] = pydantic.Field(default_factory=dict)
    restarts: tuple[Restart, ...] = ()  # restarts of machines and of the run's processes, by time
    paid_hours: float = 0.0  # paid hours of all attempts
    dollars: float | None = None  # cost of `paid_hours`; unset without a list price
    watched: float | None = None  # time of the last supervisor's last poll


class Status(Section):
    """The status of a run and its job."""

    run_dir: str
    job: JobStatus | None  # unset for a run started by hand
    run: RunFigures
    at: float  # time of the reading in seconds since 1970
    report: str | None = None  # page about the run, once it is written

    @property
    def paid(self) -> bool:
        """Whether the job has paid hours."""
        return self.job is not None and self.job.paid_hours > 0

    @property
    def hours(self) -> float:
        """The total of `shares`: paid hours if any, otherwise wall time of the processes."""
        if self.job is not None and self.paid:
            return self.job.paid_hours
        return sum(self.run.seconds.values()) / 3600

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the hours by kind, with a sum of 1.

        ``no run``: paid time without a process of the run. `time_account` defines other kinds.
        """
        seconds = dict(self.run.seconds)
        if self.paid:
            seconds.pop("down", None)  # deleted machines cost no money
            seconds["no run"] = max(3600 * self.hours - sum(seconds.values()), 0.0)
        total = sum(seconds.values())
        return {kind: part / total for kind, part in seconds.items() if part} if total else {}

    @property
    def dollars_in_all(self) -> float | None:
        """The expected total cost at the current speed and price, or None if unknown."""
        left = self.run.seconds_left
        if self.job is None or self.job.dollars is None or left is None:
            return None
        placement = self.job.placement
        price = (placement and placement.dollars_per_hour) or 0.0
        return self.job.dollars + (0.0 if self.job.outcome else left / 3600 * price)


def read_status(files: JobFiles, launcher: Launcher | None, *, now: float) -> Status:
    """Returns the status of a job. Without a launcher, uses the supervisor's last observation.

    Raises UserError if a file of the job is damaged, RunStopped if its bucket does not answer.
    """
    job, state = read_job(files), read_state(files)
    since = state.attempts[0].intended if state.attempts else job.submitted
    return Status(
        run_dir=job.run_dir,
        job=_job_status(files, job, state, launcher, now=now),
        run=read_figures(job.run_dir, files.config, since=since),
        at=now,
        report=_report(job.run_dir),
    )


def read_run_status(run_dir: epath.PathLike, *, now: float) -> Status:
    """Returns the status of a run started by hand. Raises RunStopped if its bucket is down."""
    figures = read_figures(run_dir, epath.Path(run_dir) / "config.yaml")
    report = _report(run_dir)
    return Status(run_dir=str(run_dir), job=None, run=figures, at=now, report=report)


def _report(run_dir: epath.PathLike) -> str | None:
    page = epath.Path(run_dir) / REPORT
    return str(page) if page.exists() else None


def _job_status(
    files: JobFiles, job: Job, state: SupervisorState, launcher: Launcher | None, *, now: float
) -> JobStatus:
    priced = any(placement.dollars_per_hour is not None for placement in job.placements)
    found: dict[str, Any] = {
        "name": job.name,
        "directory": str(files.directory),
        "outcome": state.outcome,
        "message": state.message,
        "paid_hours": sum(record.hours(now) for record in state.attempts),
        "dollars": state.dollars(job.placements, now) if priced else None,
        "watched": state.seen or None,
    }
    if not state.attempts:
        return JobStatus(**found)
    recent = state.attempts[-_RECENT_ATTEMPTS:]
    hosts_of = {record.number: read_hosts(files, record.of(job)) for record in recent}
    last = state.attempts[-1]
    attempt, hosts = last.of(job), hosts_of[last.number]
    silent = {"silent": len(hosts.missing)} if hosts.missing else {}
    seen, at = _observe(attempt, state, launcher, now=now)
    restarts = [each for one in state.attempts for each in _restarts(one, hosts_of.get(one.number))]
    return JobStatus(
        **found,
        attempt=last.number,
        placement=attempt.placement,
        machines=seen.state,
        machines_message=seen.message,
        machines_seen=at,
        hosts=dict(Counter(host.state for host in hosts.reports.values())) | silent,
        restarts=tuple(sorted(restarts, key=lambda restart: restart.at)),
    )


def _observe(
    attempt: Attempt, state: SupervisorState, launcher: Launcher | None, *, now: float
) -> tuple[Observation, float | None]:
    """Returns the state of the last attempt's machines and the time of the observation."""
    record = state.attempts[-1]
    if record.deleted is not None:
        return Observation(State.ABSENT, record.reason), record.deleted
    last_seen = Observation(record.state, record.message)
    if launcher is None:
        return last_seen, state.seen or None
    try:
        return launcher.observe(attempt), now
    except (UserError, RunStopped) as error:  # such as missing credentials
        message = f"at the last poll; the current state is unavailable: {first_line(error)}"
        return dataclasses.replace(last_seen, message=message), state.seen or None


def _restarts(record: AttemptRecord, hosts: Hosts | None) -> Iterator[Restart]:
    """Yields the restarts of hosts in an attempt, and the restart of machines after it."""
    for worker, host in () if hosts is None else hosts.reports.items():
        for ending in host.endings:
            # Skip a host that ended because it lost a peer: the peer's ending is listed.
            if ending.exit_code not in (0, PEER_LOST):
                reason = f"exit code {ending.exit_code}: {ending.message}".rstrip(": ")
                yield Restart(at=ending.at, what=f"host {worker}", step=ending.step, reason=reason)
    if record.end in ("taken", "broken"):
        at = record.deleted or record.intended
        reason = f"attempt {record.number}: {record.reason}"
        yield Restart(at=at, what="machines", step=record.step, reason=reason)
