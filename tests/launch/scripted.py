"""A scripted cloud, a simulated clock, and a job to watch."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bert_jax.errors import RunStopped
from bert_jax.files.lock import lock_at
from bert_jax.launch import heartbeat_reader
from bert_jax.launch.job import Attempt, HostStatus, Job, JobFiles, JobPlacement
from bert_jax.launch.launcher import Existing, Observation, Owner, Request, State, Unavailable
from bert_jax.launch.retry_policy import SupervisorLimits
from bert_jax.launch.section import SubmitSection
from bert_jax.launch.supervisor import UNFORESEEN, Supervisor
from tests.launch.cloud_jobs import Clock

HOUR = 3600.0
EIGHT = ("--on", "v5e-8", "--zone", "us-west4-a")
PACE = SupervisorLimits(poll=120.0, start=1200.0, silence=600.0, settle=180.0)


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object) -> Any:
        raise error

    return fail


def bucket_outage() -> tuple[Callable[[], None], Callable[[], None]]:
    """Returns functions that start and end a bucket outage for the supervisor."""
    fail = raising(RunStopped("test.bucket", "no answer for 60 s"))
    down = pytest.MonkeyPatch()

    def begin() -> None:
        down.setattr(heartbeat_reader, "read_host", fail)
        down.setattr("bert_jax.launch.supervisor.write_state", fail)

    return begin, down.undo


@dataclasses.dataclass
class Machines:
    attempt: Attempt
    state: State = State.WAITING
    message: str = ""


class ScriptedLauncher:
    """A launcher whose machines a test controls.

    Attributes:
        machines: existing machines by name.
        requests: number of calls of each method.
        on_create: called with each requested attempt; may raise.
        down: while true, no method gets an answer.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.machines: dict[str, Machines] = {}
        self.requests: dict[str, int] = dict.fromkeys(("create", "observe", "delete"), 0)
        self.created: list[str] = []
        self.on_create: Callable[[Attempt], None] = lambda attempt: None
        self.on_delete: Callable[[Attempt], None] = lambda attempt: None
        self.down = False

    def render(self, attempt: Attempt) -> list[Request]:
        return []

    def create(self, attempt: Attempt) -> None:
        self._count("create")
        if attempt.resource not in self.machines:
            self.on_create(attempt)
            self.machines[attempt.resource] = Machines(attempt)
            self.created.append(attempt.resource)
            reports = JobFiles(attempt.job.directory).host(attempt.number, 0).parent
            reports.mkdir(parents=True, exist_ok=True)

    def observe(self, attempt: Attempt) -> Observation:
        self._count("observe")
        found = self.machines.get(attempt.resource)
        if found is None:
            return Observation(State.ABSENT)
        return Observation(found.state, found.message)

    def delete(self, attempt: Attempt) -> None:
        self._count("delete")
        self.on_delete(attempt)
        self.machines.pop(attempt.resource, None)

    def remove(self, existing: Existing) -> None:
        self.delete(self.machines[existing.resource].attempt)

    def existing(self) -> list[Existing]:
        return [
            Existing(
                owner=Owner.of(found.attempt),
                resource=name,
                zone=found.attempt.placement.zone or "",
                state=found.state,
                bills=found.state in (State.STARTING, State.ACTIVE),
            )
            for name, found in self.machines.items()
        ]

    def _count(self, method: str) -> None:
        self.requests[method] += 1
        if self.down:
            raise Unavailable("test.down", "503")

    def become(self, resource: str, state: State, message: str = "") -> None:
        self.machines[resource].state, self.machines[resource].message = state, message


class Provider(ScriptedLauncher):
    """A launcher with machines that are active at once, and done at the third observation."""

    looks_until_done = 3
    interrupt_at = 0

    def create(self, attempt: Any) -> None:
        super().create(attempt)
        self.become(attempt.resource, State.ACTIVE)

    def observe(self, attempt: Any) -> Observation:
        seen = super().observe(attempt)
        looks = self.requests["observe"]
        if looks == self.interrupt_at:
            raise KeyboardInterrupt
        if looks >= self.looks_until_done:
            files = JobFiles(attempt.job.directory)
            for worker in range(attempt.hosts):
                path = files.host(attempt.number, worker)
                path.write_text(HostStatus(state="done", at=1.0, step=9).model_dump_json())
        return seen


class Lines(list[str]):
    """Lines of a supervisor. By default, a line on an unexpected error fails the test."""

    unexpected_allowed = False

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock
        self.moments: list[float] = []  # time of each line

    def append(self, line: str, /) -> None:
        assert self.unexpected_allowed or UNFORESEEN not in line, line
        self.moments.append(self.clock.now)
        super().append(line)


class World:
    """A job, its cloud and its clock."""

    def __init__(self, directory: Path, **submit: Any) -> None:
        self.clock = Clock()
        self.launcher = ScriptedLauncher(self.clock)
        placements = submit.pop("placements", None) or (
            JobPlacement(on="v4:2x2x2", zone="us-west4-a", dollars_per_hour=10.0),
        )
        self.job = Job(
            name="base",
            run_dir=str(directory / "runs" / "base"),
            submit=SubmitSection(name="base", bucket=str(directory), **submit),
            placements=placements,
            version="0.2.0",
            submitted=self.clock.now,
        )
        self.files = JobFiles(self.job.directory)
        self.files.directory.mkdir(parents=True)
        self.files.job.write_text(self.job.model_dump_json())
        self.said = Lines(self.clock)
        self.ended: set[int] = set()
        self.lock = lock_at(self.files.lease, say=self.said.append)
        assert self.lock.take()

    def supervisor(self, pace: SupervisorLimits = PACE) -> Supervisor:
        """Returns a new supervisor, which reads its state from the bucket."""
        return Supervisor(
            self.files,
            self.launcher,
            self.lock,
            say=self.said.append,
            pace=pace,
            clock=self.clock,
            sleep=self.clock.sleep,
        )

    def beat(
        self, attempt: int, state: Any = "running", *, workers: Any = (0, 1), **report: Any
    ) -> None:
        """Writes heartbeats of hosts. After ``done`` or ``failed``, `keep_beating` stops."""
        if state in ("done", "failed"):
            self.ended.add(attempt)
        for worker in workers:
            path = self.files.host(attempt, worker)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(HostStatus(state=state, at=self.clock.now, **report).model_dump_json())

    def keep_beating(self, attempt: int, steps: Iterator[int] | None = None, **report: Any) -> None:
        """Writes heartbeats at every poll while the machines are active."""
        found = self.launcher.machines.get(f"base-{attempt}")
        lives = found is not None and found.state is State.ACTIVE
        if lives and attempt not in self.ended:
            self.beat(attempt, step=None if steps is None else next(steps), **report)
            self.clock.after(PACE.poll, lambda: self.keep_beating(attempt, steps, **report))

    def activate(
        self, attempt: int, *, after: float = 120, steps: Iterator[int] | None = None, **report: Any
    ) -> None:
        """Activates machines after a while; their hosts send heartbeats."""

        def start() -> None:
            if f"base-{attempt}" in self.launcher.machines:
                self.launcher.become(f"base-{attempt}", State.ACTIVE)
                self.keep_beating(attempt, steps, **report)

        self.clock.after(after, start)

    def fails(self, method: str, error: Exception, *, at: float, until: float) -> None:
        """Makes a method of the launcher raise an error for a while."""
        works = getattr(self.launcher, method)
        self.clock.after(at, lambda: setattr(self.launcher, method, raising(error)))
        self.clock.after(until, lambda: setattr(self.launcher, method, works))

    def becomes(self, state: State, message: str = "", *, at: float, attempt: int = 1) -> None:
        self.clock.after(at, lambda: self.launcher.become(f"base-{attempt}", state, message))

    def run_until_done(self, attempt: int, *, at: float, step: int) -> None:
        """Runs a supervisor to its end. An attempt's run is done in `at` seconds."""
        self.clock.after(at, lambda: self.beat(attempt, "done", exit_code=0, step=step))
        self.supervisor().run()
