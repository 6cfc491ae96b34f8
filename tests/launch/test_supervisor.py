"""Every event of a job leads to its intended outcome and leaves no machines."""

import dataclasses
import functools
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from bert_jax.errors import NoCredentials, RunStopped, UserError
from bert_jax.files.lock import LockLost
from bert_jax.launch.job import Attempt, Ending, JobPlacement
from bert_jax.launch.launcher import NotOurs, OutOfQuota, State, Unavailable
from bert_jax.launch.retry_policy import SupervisorState, read_state
from bert_jax.launch.section import LimitsSection
from bert_jax.launch.supervisor import UNFORESEEN
from bert_jax.verbs.watch import lease
from tests.launch.scripted import HOUR, PACE, Machines, World, bucket_outage, raising
from tests.project import refuses

TWO = (
    JobPlacement(on="v4:2x2x2", zone="us-west4-a", dollars_per_hour=10.0),
    JobPlacement(on="v4:2x2x2", zone="us-east1-c", dollars_per_hour=12.0),
)


class Killed(BaseException):
    """Simulates the end of a supervisor's process."""


def steps(first: int = 0) -> Any:
    return itertools.count(first, 10)


def running(directory: Path, **submit: Any) -> World:
    """Returns a job whose first machines arrive after two minutes."""
    world = World(directory, **submit)
    world.activate(1, steps=steps())
    return world


def ends(world: World, outcome: str) -> SupervisorState:
    """Asserts a job's recorded outcome and that no machines are left."""
    found = read_state(world.files)
    assert found.outcome == outcome, (found, world.said)
    assert world.launcher.machines == {}
    assert all(record.deleted is not None for record in found.attempts)
    return found


def test_a_job_is_made_watched_and_deleted(tmp_path: Path) -> None:
    world = running(tmp_path)
    world.run_until_done(1, at=HOUR, step=500)
    found = ends(world, "done")
    assert found.message == "at step 500"
    assert world.launcher.created == ["base-1"]
    # Billed from the poll before the activation to the poll after the end, at $10 an hour.
    assert found.dollars(world.job.placements, world.clock.now) == pytest.approx(
        10 * (HOUR - 60) / HOUR, rel=0.05
    )


def test_suspended_machines_are_deleted_and_replaced(tmp_path: Path) -> None:
    world = running(tmp_path)
    world.becomes(State.SUSPENDED, "preempted", at=HOUR - 130)
    world.activate(2, after=HOUR + 400, steps=steps(400))
    world.run_until_done(2, at=2 * HOUR, step=900)
    found = ends(world, "done")
    assert world.launcher.created == ["base-1", "base-2"]
    assert [record.end for record in found.attempts] == ["taken", "over"]
    assert found.attempts[0].reason == "suspended: preempted"
    assert "base-1: taken: suspended: preempted" in world.said
    # Preempted machines no longer bill.
    assert found.attempts[0].hours(world.clock.now) < 1.0


def test_a_run_done_before_preemption_is_done(tmp_path: Path) -> None:
    world = running(tmp_path)
    world.clock.after(HOUR, lambda: world.beat(1, "done", exit_code=0, step=900))
    world.becomes(State.SUSPENDED, at=HOUR)
    world.supervisor().run()
    ends(world, "done")
    assert world.launcher.created == ["base-1"]


def test_without_quota_the_next_place_is_tried(tmp_path: Path) -> None:
    world = World(tmp_path, placements=TWO)

    def refuse(attempt: Attempt) -> None:
        if attempt.placement.zone == "us-west4-a":
            raise OutOfQuota("test.quota", "limit 8 in us-west4-a")

    world.launcher.on_create = refuse
    world.activate(2, after=300, steps=steps())
    world.run_until_done(2, at=HOUR, step=9)
    found = ends(world, "done")
    assert [record.end for record in found.attempts] == ["quota", "over"]
    assert found.attempts[1].placement == 1


def test_without_quota_anywhere_the_job_ends(tmp_path: Path) -> None:
    world = World(tmp_path, placements=TWO)
    world.launcher.on_create = raising(OutOfQuota("test.quota", "limit 0"))
    world.supervisor().run()
    assert ends(world, "limit").message == (
        "no machines are available (v4:2x2x2 in us-west4-a: limit 0; "
        "v4:2x2x2 in us-east1-c: limit 0)"
    )
    assert world.launcher.requests["create"] == 2


@pytest.mark.parametrize(
    "error", [UserError("test.permission", "tpu.nodes.create"), NotOurs("test.name", "base-1")]
)
def test_a_users_error_ends_the_job_without_deletions(tmp_path: Path, error: UserError) -> None:
    world = World(tmp_path)
    world.launcher.on_create = world.launcher.on_delete = raising(error)
    with refuses(error.key, kind=type(error)):
        world.supervisor().run()
    ends(world, "failed")
    assert world.launcher.requests == {"create": 1, "observe": 0, "delete": 0}


class Login:
    """Credentials that expire and are renewed."""

    def __init__(self, world: World) -> None:
        self.valid, self.world = True, world
        self._count = world.launcher._count
        world.launcher._count = self._checked

    def _checked(self, method: str) -> None:
        self._count(method)
        if not self.valid:
            raise NoCredentials("test.login", "tpu.googleapis.com: no credentials")

    def expires(self, *, hours: float) -> None:
        """Refuses the credentials for `hours`."""
        self.valid = False
        self.world.clock.after(hours * HOUR, lambda: setattr(self, "valid", True))

    def make_without_answer(self, attempt: Attempt) -> None:
        """Creates the machines, but loses the answer."""
        self.world.launcher.machines[attempt.resource] = Machines(attempt)
        self.world.launcher.created.append(attempt.resource)
        self.world.launcher.on_create = lambda attempt: None
        self.expires(hours=1)
        raise Unavailable("test.lost", "503")


def test_expired_credentials_do_not_lose_machines(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.launcher.on_create = Login(world).make_without_answer
    world.activate(1, after=HOUR + 60, steps=steps())
    world.run_until_done(1, at=2 * HOUR, step=9)
    ends(world, "done")
    assert world.launcher.created == ["base-1"]
    assert "base-1: retrying: tpu.googleapis.com: no credentials" in world.said


def test_a_job_is_not_over_until_machines_are_deleted(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.launcher.on_create = Login(world).make_without_answer
    world.clock.after(600, lambda: world.files.stop.write_text("{}"))
    world.supervisor().run()
    ends(world, "stopped")
    assert world.clock.now >= 1_000_000 + HOUR
    lines = [line for line in world.said if "cannot delete" in line]
    assert lines
    assert all("tpu.googleapis.com: no credentials" in line for line in lines)


def test_the_supervisor_waits_for_renewed_credentials(
    tmp_path: Path,
) -> None:
    world = running(tmp_path)
    login = Login(world)
    world.becomes(State.SUSPENDED, at=HOUR)
    world.launcher.on_delete = lambda attempt: login.expires(hours=1)
    world.activate(2, after=2.5 * HOUR, steps=steps(400))
    world.run_until_done(2, at=3 * HOUR, step=900)
    assert [record.end for record in ends(world, "done").attempts] == ["taken", "over"]


def test_missing_credentials_are_named_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    Login(world).valid = False
    with pytest.raises(NoCredentials):
        world.supervisor().run()
    ends(world, "failed")
    assert world.launcher.requests == {"create": 1, "observe": 0, "delete": 0}


@pytest.mark.parametrize("by_itself", [True, False], ids=["service", "supervisor"])
def test_missing_capacity_ends_the_job(tmp_path: Path, by_itself: bool) -> None:
    world = World(tmp_path, placements=TWO, limits=LimitsSection(wait_hours=2.0))
    for number in (1, 2) if by_itself else ():  # the service fails it at `valid-until`
        world.becomes(State.FAILED, attempt=number, at=number * (2 * HOUR + 60) - 70)
    world.supervisor().run()
    found = ends(world, "limit")
    assert [record.end for record in found.attempts] == ["capacity", "capacity"]
    assert found.message.startswith("no machines are available (v4:2x2x2 in us-west4-a: ")
    assert found.dollars(world.job.placements, world.clock.now) == 0.0
    assert 4.0 <= found.hours(world.clock.now) < 4.2


def test_places_are_tried_in_turn_without_end(tmp_path: Path) -> None:
    world = World(tmp_path, placements=TWO)
    world.activate(12, after=3.4 * HOUR)
    world.run_until_done(12, at=3.5 * HOUR, step=1)
    found = ends(world, "done")
    assert {record.end for record in found.attempts[:-1]} == {"capacity"}
    assert [record.placement for record in found.attempts[:4]] == [0, 1, 0, 1]


def test_service_outages_do_not_change_the_outcome(tmp_path: Path) -> None:
    world = World(tmp_path)
    fails, count = itertools.count(), world.launcher._count

    def flaky(method: str) -> None:
        count(method)
        if next(fails) % 3 == 0:
            raise Unavailable("test.down", "503")

    world.launcher._count = flaky
    world.activate(1, after=180, steps=steps())
    world.clock.after(HOUR, lambda: setattr(world.launcher, "down", True))
    world.clock.after(2 * HOUR, lambda: setattr(world.launcher, "down", False))
    world.run_until_done(1, at=3 * HOUR, step=70)
    ends(world, "done")
    assert world.launcher.created == ["base-1"]
    assert any("retrying: 503" in line for line in world.said)


@pytest.mark.parametrize("method", ["observe", "delete"])
def test_a_refusal_does_not_end_a_supervisor_while_billing(tmp_path: Path, method: str) -> None:
    world = running(tmp_path)
    world.fails(method, UserError("test.stream", "stream terminated"), at=HOUR, until=3 * HOUR)
    world.run_until_done(1, at=2 * HOUR, step=70)
    assert len(ends(world, "done").attempts) == 1
    assert any("stream terminated" in line for line in world.said)


def test_an_unforeseen_error_is_printed_once_and_retried(tmp_path: Path) -> None:
    """An error that ended the supervisor would leave machines that bill."""
    world = running(tmp_path)
    world.said.unexpected_allowed = True
    world.fails("observe", KeyError("replicatedJobs\nand more"), at=HOUR, until=2 * HOUR)
    world.run_until_done(1, at=3 * HOUR, step=70)
    assert len(ends(world, "done").attempts) == 1
    (said,) = [line for line in world.said if "KeyError" in line]
    assert said.startswith(f"base-1: {UNFORESEEN}: KeyError: ")


def test_limits_hold_while_machines_are_unreachable(tmp_path: Path) -> None:
    world = running(tmp_path, limits=LimitsSection(cost=25.0))
    world.said.unexpected_allowed = True
    world.fails("observe", KeyError("replicatedJobs"), at=HOUR, until=30 * HOUR)
    world.supervisor().run()
    found = ends(world, "limit")
    assert 24.0 < found.dollars(world.job.placements, world.clock.now) <= 25.0


def test_a_second_worker_that_never_starts_ends_the_job(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.activate(1, after=60, workers=[0])
    world.activate(2, after=2000, workers=[0])
    world.supervisor().run()
    found = ends(world, "failed")
    assert found.attempts[0].reason == "worker 1 has not started within 22 min"
    assert found.message.startswith("failed before its first step twice: worker 1 has not started")
    assert world.launcher.created == ["base-1", "base-2"]


def test_a_silent_host_is_replaced(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.activate(1, after=60, steps=steps(), workers=[0])
    for minutes in range(2, 7):
        world.clock.after(60 * minutes, lambda: world.beat(1, workers=[1], step=1))
    world.activate(2, after=2000, steps=steps(100))
    world.run_until_done(2, at=HOUR, step=600)
    first = ends(world, "done").attempts[0]
    assert (first.end, first.reason) == ("broken", "worker 1 has been silent for 12 min")
    assert first.step is not None


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_kill_around_a_creation_leaves_one_set_of_machines(tmp_path: Path, dies: str) -> None:
    """The kill comes before or after the request, and before its answer is saved."""
    world = World(tmp_path)
    create = world.launcher.create
    world.launcher.create = raising(Killed())
    if dies == "after":
        world.launcher.create = lambda attempt: create(attempt) or raising(Killed())()
    with pytest.raises(Killed):
        world.supervisor().run()
    assert list(world.launcher.machines) == (["base-1"] if dies == "after" else [])
    assert [record.created for record in read_state(world.files).attempts] == [None]
    world.launcher.create = create
    world.activate(1, steps=steps())
    world.run_until_done(1, at=HOUR, step=70)
    ends(world, "done")
    assert world.launcher.created == ["base-1"]


def test_a_killed_supervisors_successor_deletes_machines(tmp_path: Path) -> None:
    world = running(tmp_path)
    world.launcher.on_delete = raising(Killed())
    with pytest.raises(Killed):
        world.run_until_done(1, at=HOUR, step=70)
    assert list(world.launcher.machines) == ["base-1"]
    world.launcher.on_delete = lambda attempt: None
    world.supervisor().run()
    ends(world, "done")


def test_an_interrupted_deletion_keeps_the_job_over(tmp_path: Path) -> None:
    world = running(tmp_path)

    def take_a_while(attempt: Attempt) -> None:
        world.launcher.machines.clear()
        raise KeyboardInterrupt

    world.clock.after(HOUR, raising(KeyboardInterrupt()))
    supervisor = world.supervisor()
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()
    supervisor.stop("by Ctrl-C")
    world.launcher.on_delete = take_a_while
    with pytest.raises(KeyboardInterrupt):
        supervisor.run()
    world.launcher.on_delete = lambda attempt: None
    world.supervisor().run()
    ends(world, "stopped")
    assert world.launcher.created == ["base-1"]


def test_machines_are_deleted_even_if_writes_fail(tmp_path: Path) -> None:
    world = running(tmp_path)
    begin, end = bucket_outage()
    world.clock.after(HOUR, begin)
    world.becomes(State.SUSPENDED, at=HOUR)
    world.launcher.on_delete = lambda attempt: end()
    world.activate(2, after=2 * HOUR, steps=steps(400))
    try:
        world.run_until_done(2, at=3 * HOUR, step=900)
    finally:
        end()
    ends(world, "done")


def test_a_second_supervisor_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    holder = f"{os.uname().nodename} {os.getpid()}"
    with (
        refuses("job.watched", place=world.files.directory, holder=holder),
        lease(world.files, say=world.said.append),
    ):
        pass
    world.lock.give_back()
    with lease(world.files, say=world.said.append):
        assert world.files.lease.exists()
    assert world.launcher.requests["create"] == 0


def test_a_bucket_outage_does_not_change_the_outcome(tmp_path: Path) -> None:
    world = running(tmp_path)
    begin, end = bucket_outage()
    # The outage is longer than the limit between heartbeats. The attempt must not end.
    world.clock.after(HOUR, begin)
    world.clock.after(HOUR + 3 * PACE.silence, end)
    world.run_until_done(1, at=3 * HOUR, step=70)
    assert len(ends(world, "done").attempts) == 1
    assert any("cannot read" in line for line in world.said)


def test_only_another_holder_ends_a_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = running(tmp_path)

    def answers(error: Exception) -> None:
        monkeypatch.setattr(world.lock, "check", raising(error))

    world.clock.after(HOUR, lambda: answers(RunStopped("test.bucket", "gs://b/lease: no answer")))
    world.clock.after(2 * HOUR, lambda: answers(LockLost("test.lease", "another has it")))
    with refuses("test.lease", kind=LockLost):
        world.supervisor().run()
    assert world.clock.now - world.job.submitted >= 2 * HOUR
    assert any("retrying: gs://b/lease: no answer" in line for line in world.said)
    assert list(world.launcher.machines) == ["base-1"]  # they now belong to the other supervisor


def test_unrecorded_machines_are_never_requested(tmp_path: Path) -> None:
    world = World(tmp_path)
    begin, end = bucket_outage()
    world.clock.after(HOUR, lambda: end() if not world.launcher.created else None)
    world.activate(1, after=HOUR + 120, steps=steps())
    begin()
    try:
        world.run_until_done(1, at=2 * HOUR, step=70)
    finally:
        end()
    ends(world, "done")


def test_the_cost_of_all_attempts_counts(tmp_path: Path) -> None:
    world = running(tmp_path, limits=LimitsSection(cost=25.0))
    world.becomes(State.SUSPENDED, at=HOUR)
    world.activate(2, after=HOUR + 400, steps=steps(400))
    world.supervisor().run()
    found = ends(world, "limit")
    assert 24.0 < found.dollars(world.job.placements, world.clock.now) <= 25.0
    assert len(found.attempts) == 2


def test_hours_and_retries_have_limits(tmp_path: Path) -> None:
    world = running(tmp_path / "hours", limits=LimitsSection(hours=3.0))
    world.supervisor().run()
    assert ends(world, "limit").message.startswith("limits.hours: 3 h ")

    world = World(tmp_path / "retries", limits=LimitsSection(retries=2))
    for number in range(1, 5):
        world.activate(number, after=number * HOUR, steps=steps(number))
        world.becomes(State.SUSPENDED, attempt=number, at=(number + 0.5) * HOUR)
    world.supervisor().run()
    found = ends(world, "limit")
    assert found.message == "limits.retries: 3 attempts have ended, the last: suspended"
    assert world.launcher.created == ["base-1", "base-2", "base-3"]


def test_a_run_that_stopped_itself_is_not_restarted(
    tmp_path: Path,
) -> None:
    world = running(tmp_path)
    dump = tmp_path / "runs" / "base" / "bad_step_40"
    dump.mkdir(parents=True)
    (dump.parent / "bad_step_7").mkdir()
    failed: Any = {"exit_code": 1, "message": "loss is not finite", "step": 40}
    world.clock.after(HOUR, lambda: world.beat(1, "failed", workers=[1], **failed))
    world.supervisor().run()
    found = ends(world, "failed")
    assert found.message == f"worker 1: loss is not finite; see the dump {dump}"
    assert world.launcher.created == ["base-1"]


@pytest.mark.parametrize("state", ["running", "restarting", None])
def test_machines_are_deleted_despite_an_unfinished_host(tmp_path: Path, state: str | None) -> None:
    """Host 1 hangs after the last save, waits for an ended peer, or never reports."""
    world = running(tmp_path)

    def other_goes_on() -> None:
        if "base-1" in world.launcher.machines:
            world.beat(1, state, exit_code=4, step=899, workers=[1])
            world.clock.after(60, other_goes_on)

    world.clock.after(HOUR, lambda: world.beat(1, "done", exit_code=0, step=900, workers=[0]))
    if state is not None:
        world.clock.after(HOUR, other_goes_on)
    world.supervisor().run()
    found = ends(world, "done")
    assert found.message == "at step 900"
    assert world.launcher.created == ["base-1"]
    assert found.hours(world.clock.now) < 1.5


def test_failing_twice_at_a_step_ends_the_job(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    dump = tmp_path / "runs" / "base" / "bad_step_40"
    dump.mkdir(parents=True)
    for number, step in ((1, 20), (2, 40), (3, 40)):
        world.activate(number, after=number * HOUR, steps=itertools.repeat(step))
        world.becomes(State.FAILED, "gone", attempt=number, at=(number + 0.5) * HOUR)
    world.supervisor().run()
    found = ends(world, "failed")
    assert found.message == f"failed at step 40 twice: failed: gone; see the dump {dump}"
    assert world.launcher.created == ["base-1", "base-2", "base-3"]


def test_hosts_that_never_meet_end_the_job(tmp_path: Path) -> None:
    """The hosts send heartbeats meanwhile. Other machines are tried once."""
    world = World(tmp_path)

    def give_up(attempt: int) -> None:
        world.beat(attempt, "failed", workers=[1], message="6 starts in a row")

    for number in (1, 2):
        world.activate(number, after=number * HOUR)
        world.clock.after((number + 0.5) * HOUR, functools.partial(give_up, number))
    world.supervisor().run()
    found = ends(world, "failed")
    assert found.message == "failed before its first step twice: worker 1: 6 starts in a row"
    assert world.launcher.created == ["base-1", "base-2"]
    assert found.hours(world.clock.now) < 3


def test_failing_requests_have_a_limit(tmp_path: Path) -> None:
    world = World(tmp_path, placements=TWO)
    world.launcher.on_create = lambda attempt: world.clock.after(
        1, lambda: world.launcher.become(attempt.resource, State.FAILED, "internal error")
    )
    world.supervisor().run()
    found = ends(world, "failed")
    assert found.message == "6 requests in a row failed: failed: internal error"
    assert [record.placement for record in found.attempts] == [0, 1, 0, 1, 0, 1]


def test_externally_deleted_machines_are_replaced(tmp_path: Path) -> None:
    world = running(tmp_path)
    world.clock.after(HOUR, lambda: world.launcher.machines.clear())
    world.activate(2, after=1.1 * HOUR, steps=steps(50))
    world.run_until_done(2, at=2 * HOUR, step=70)
    assert ends(world, "done").attempts[0].reason == "deleted from outside"


def test_machines_from_a_suspended_time_may_start(tmp_path: Path) -> None:
    """The supervisor was suspended for ten hours, in which the machines started."""
    world = World(tmp_path)

    def sleep() -> None:
        world.clock.now += 10 * HOUR
        world.launcher.become("base-1", State.STARTING)

    world.clock.after(600, sleep)
    world.activate(1, after=10.4 * HOUR, steps=steps())
    world.run_until_done(1, at=11 * HOUR, step=9)
    assert len(ends(world, "done").attempts) == 1


def test_machines_that_never_start_have_a_time_limit(tmp_path: Path) -> None:
    """The limit starts when machines are first seen. Their activation does not extend it."""
    world = World(tmp_path)
    world.becomes(State.STARTING, at=120)
    world.becomes(State.STARTING, attempt=2, at=2400)
    world.becomes(State.ACTIVE, attempt=2, at=3000)
    world.supervisor().run()
    assert [record.reason for record in ends(world, "failed").attempts] == [
        "not started within 22 min",
        "worker 0, 1 has not started within 22 min",
    ]


@pytest.mark.parametrize("poll", [60.0, 600.0])
def test_watching_prints_a_line_each_minute(tmp_path: Path, poll: float) -> None:
    """The line has state, step, number of steps, loss, dollars and time left."""
    world = World(tmp_path)
    world.files.config.write_text("train: {phases: [{steps: 600}, {steps: 400}]}")
    world.activate(1, after=600, steps=steps(), loss=6.5)
    world.clock.after(2 * HOUR, lambda: world.beat(1, "done", exit_code=0, step=70))
    world.supervisor(dataclasses.replace(PACE, poll=poll)).run()
    ends(world, "done")
    assert sum(world.launcher.requests.values()) <= 2 * HOUR / poll + 3
    moments = [1_000_000.0, *world.said.moments, world.clock.now]
    assert max(later - one for one, later in itertools.pairwise(moments)) <= 60.0
    assert "base-1: attempt 1: requested v4:2x2x2 in us-west4-a" in world.said
    if poll == 60.0:
        lines = [line for line in world.said if line.startswith("base-1: active, 2 hosts running")]
        assert lines[19] == (
            "base-1: active, 2 hosts running, step 100 of 1,000 (10.0%), loss 6.500, $3.50 so far, "
            "3:00:00 left"
        )
        assert "base-1: waiting for capacity, 5 min since the request, $0.00 so far" in world.said


def test_a_hosts_restart_is_printed_once(
    tmp_path: Path,
) -> None:
    world = running(tmp_path)
    lost = Ending(at=1.0, exit_code=4, step=30, message="process 1 is gone")
    hung = Ending(at=2.0, exit_code=43, step=30, message="a step hangs")

    def restart() -> None:
        world.beat(1, "restarting", workers=[0], endings=(lost,), step=30)
        world.beat(1, "restarting", workers=[1], endings=(hung,), step=30)
        world.ended.add(1)  # no more heartbeats

    world.clock.after(HOUR, restart)
    world.clock.after(HOUR + 300, raising(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        world.supervisor().run()
    line = "base-1: host 1 ended at step 30 with exit code 43: a step hangs"
    assert [said for said in world.said if "ended at" in said] == [line]
    world.run_until_done(1, at=400, step=70)
    assert world.said.count(line) == 1


def test_machines_that_wait_again_are_not_abandoned(
    tmp_path: Path,
) -> None:
    """JobSet recreates pods, which wait again. The launcher limits this wait."""
    world = running(tmp_path, limits=LimitsSection(wait_hours=1.0))
    world.becomes(State.WAITING, at=2 * HOUR)
    world.becomes(State.ACTIVE, at=2.5 * HOUR)
    # The last heartbeat is half an hour old, and the next one comes after five minutes.
    world.clock.after(2.5 * HOUR + 300, lambda: world.keep_beating(1, steps(200)))
    world.run_until_done(1, at=2.8 * HOUR, step=900)
    assert len(ends(world, "done").attempts) == 1
