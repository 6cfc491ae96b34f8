"""Everything that may happen to a job ends as designed, with nothing left that bills."""

import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from bert_jax.errors import NoCredentials, RunStopped, UserError
from bert_jax.files.lock import LockLost
from bert_jax.launch import supervisor_state
from bert_jax.launch.job import Attempt, Ending, JobPlacement
from bert_jax.launch.launcher import NotOurs, OutOfQuota, State, Unavailable
from bert_jax.launch.section import LimitsSection
from bert_jax.launch.supervisor_state import read_state
from bert_jax.verbs.watch import lease
from tests.launch.scripted import HOUR, PACE, Machines, World, bucket_outage

TWO = (
    JobPlacement(on="v4:2x2x2", zone="us-west4-a", dollars_per_hour=10.0),
    JobPlacement(on="v4:2x2x2", zone="us-east1-c", dollars_per_hour=12.0),
)


def steps(first: int = 0) -> Any:
    return itertools.count(first, 10)


def running(directory: Path, **submit: Any) -> World:
    """Returns a job whose first machines come after two minutes."""
    world = World(directory, **submit)
    world.activate(1, steps=steps())
    return world


def ends(world: World, outcome: str) -> supervisor_state.SupervisorState:
    """Checks how a job ended: as it should, written down, and with nothing left."""
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
    # From the look before it was active to the one after the end, at 10 dollars an hour.
    assert found.dollars(world.job.placements, world.clock.now) == pytest.approx(
        10 * (HOUR - 60) / HOUR, rel=0.05
    )
    assert world.files.attempt(1).exists()


def test_what_was_suspended_is_deleted_and_made_again(tmp_path: Path) -> None:
    world = running(tmp_path)
    world.becomes(State.SUSPENDED, "preempted", at=HOUR)
    world.clock.after(HOUR + 70, lambda: world.activate(2, steps=steps(400)))
    world.run_until_done(2, at=2 * HOUR, step=900)
    found = ends(world, "done")
    assert world.launcher.created == ["base-1", "base-2"]
    assert [record.end for record in found.attempts] == ["taken", "over"]
    assert found.attempts[0].reason == "suspended: preempted"
    assert "base-1: taken: suspended: preempted" in world.said
    # What was taken back bills nothing any more.
    assert found.attempts[0].hours(world.clock.now) < 1.0


def test_a_run_that_was_done_before_its_machines_were_taken_is_done(tmp_path: Path) -> None:
    world = running(tmp_path)

    def end() -> None:
        world.beat(1, "done", exit_code=0, step=900)
        world.launcher.become("base-1", State.SUSPENDED)

    world.clock.after(HOUR, end)
    world.supervisor().run()
    ends(world, "done")
    assert world.launcher.created == ["base-1"]


def test_without_quota_the_next_place_is_tried(tmp_path: Path) -> None:
    world = World(tmp_path, placements=TWO)

    def refuse(attempt: Attempt) -> None:
        if attempt.placement.zone == "us-west4-a":
            raise OutOfQuota("quota 'TPUS_PER_PROJECT' exhausted: limit 8 in us-west4-a")

    world.launcher.on_create = refuse
    world.activate(2, steps=steps())
    world.run_until_done(2, at=HOUR, step=9)
    found = ends(world, "done")
    assert [record.end for record in found.attempts] == ["quota", "over"]
    assert found.attempts[1].placement == 1


def test_without_quota_anywhere_the_job_ends(tmp_path: Path) -> None:
    world = World(tmp_path, placements=TWO)

    def refuse(attempt: Attempt) -> None:
        raise OutOfQuota(f"limit 0 in {attempt.placement.zone}")

    world.launcher.on_create = refuse
    world.supervisor().run()
    found = ends(world, "limit")
    assert found.message == (
        "no machines could be had (v4:2x2x2 in us-west4-a: limit 0 in us-west4-a; "
        "v4:2x2x2 in us-east1-c: limit 0 in us-east1-c)"
    )
    assert world.launcher.requests["create"] == 2


def test_without_permission_the_job_ends_with_what_the_user_can_mend(tmp_path: Path) -> None:
    world = World(tmp_path)

    def refuse(attempt: Attempt) -> None:
        raise UserError("permission denied: tpu.nodes.create")

    world.launcher.on_create = world.launcher.on_delete = refuse
    with pytest.raises(UserError, match=r"^permission denied: tpu\.nodes\.create$"):
        world.supervisor().run()
    ends(world, "failed")
    assert world.launcher.requests["create"] == 1


def test_a_name_that_is_not_the_jobs_ends_it_and_deletes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)

    def refuse(attempt: Attempt) -> None:
        raise NotOurs("base-1 exists and is not of this job")

    world.launcher.on_create = refuse
    with pytest.raises(NotOurs, match="base-1 exists"):
        world.supervisor().run()
    ends(world, "failed")
    assert world.launcher.requests["delete"] == 0


class Login:
    """Credentials that run out and come back."""

    def __init__(self, world: World) -> None:
        self.valid, self.world = True, world
        self._count = world.launcher._count
        world.launcher._count = self._checked

    def _checked(self, method: str) -> None:
        self._count(method)
        if not self.valid:
            raise NoCredentials("tpu.googleapis.com: no credentials")

    def make_without_answer(self, attempt: Attempt) -> None:
        """Makes the machines, and then nothing is heard."""
        self.world.launcher.machines[attempt.resource] = Machines(attempt)
        self.world.launcher.created.append(attempt.resource)
        self.world.launcher.on_create = lambda attempt: None
        self.valid = False
        raise Unavailable("503 the answer is lost")


def test_credentials_that_run_out_after_a_lost_answer_lose_no_machines(tmp_path: Path) -> None:
    world = World(tmp_path)
    login = Login(world)
    world.launcher.on_create = login.make_without_answer
    world.clock.after(HOUR, lambda: setattr(login, "valid", True))
    world.activate(1, after=HOUR + 60, steps=steps())
    world.run_until_done(1, at=2 * HOUR, step=9)
    ends(world, "done")
    assert world.launcher.created == ["base-1"]
    assert "base-1: trying again: tpu.googleapis.com: no credentials" in world.said


def test_a_job_is_not_over_while_what_may_exist_cannot_be_deleted(tmp_path: Path) -> None:
    world = World(tmp_path)
    login = Login(world)
    world.launcher.on_create = login.make_without_answer
    world.clock.after(600, lambda: world.files.stop.write_text("{}"))
    world.clock.after(HOUR, lambda: setattr(login, "valid", True))
    world.supervisor().run()
    ends(world, "stopped")
    assert world.clock.now >= 1_000_000 + HOUR
    line = "base-1: trying again: cannot be deleted and may bill: tpu.googleapis.com: no credential"
    assert any(said.startswith(line) for said in world.said)


def test_credentials_that_run_out_before_machines_are_asked_for_again_are_waited_for(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    login = Login(world)
    world.activate(1, steps=steps())
    world.becomes(State.SUSPENDED, at=HOUR)

    def expire(attempt: Attempt) -> None:
        login.valid = False
        world.clock.after(HOUR, lambda: setattr(login, "valid", True))

    world.launcher.on_delete = expire
    world.activate(2, after=2.5 * HOUR, steps=steps(400))
    world.run_until_done(2, at=3 * HOUR, step=900)
    assert [record.end for record in ends(world, "done").attempts] == ["taken", "over"]


def test_who_has_no_credentials_to_begin_with_is_told_so_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    Login(world).valid = False
    with pytest.raises(NoCredentials):
        world.supervisor().run()
    ends(world, "failed")
    assert world.launcher.requests == {"create": 1, "observe": 0, "delete": 0}


@pytest.mark.parametrize("by_itself", [True, False], ids=["service", "supervisor"])
def test_capacity_that_never_comes_ends_the_job(tmp_path: Path, by_itself: bool) -> None:
    world = World(tmp_path, placements=TWO, limits=LimitsSection(wait_hours=2.0))
    if by_itself:  # valid-until
        for number in (1, 2):
            world.clock.after(
                number * (2 * HOUR + 60) - 70,
                lambda number=number: world.launcher.become(f"base-{number}", State.FAILED),
            )
    world.supervisor().run()
    found = ends(world, "limit")
    assert [record.end for record in found.attempts] == ["capacity", "capacity"]
    assert found.message.startswith("no machines could be had (v4:2x2x2 in us-west4-a: ")
    assert found.dollars(world.job.placements, world.clock.now) == 0.0
    assert 4.0 <= found.hours(world.clock.now) < 4.2


def test_of_several_places_none_is_waited_for_long_and_all_for_ever(tmp_path: Path) -> None:
    world = World(tmp_path, placements=TWO)
    world.clock.after(3.1 * HOUR, lambda: world.beat(12, "done", exit_code=0, step=1))
    world.activate(12, after=3 * HOUR)
    world.supervisor().run()
    found = ends(world, "done")
    assert {record.end for record in found.attempts[:-1]} == {"capacity"}
    assert [record.placement for record in found.attempts[:4]] == [0, 1, 0, 1]


def test_a_service_that_fails_now_and_then_or_for_an_hour_changes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    fails = itertools.count()
    count = world.launcher._count

    def flaky(method: str) -> None:
        count(method)
        if next(fails) % 3 == 0:
            raise Unavailable("503")

    world.launcher._count = flaky
    world.activate(1, after=180, steps=steps())
    world.clock.after(HOUR, lambda: setattr(world.launcher, "down", True))
    world.clock.after(2 * HOUR, lambda: setattr(world.launcher, "down", False))
    world.run_until_done(1, at=3 * HOUR, step=70)
    ends(world, "done")
    assert world.launcher.created == ["base-1"]
    assert any("trying again: 503" in line for line in world.said)


@pytest.mark.parametrize("method", ["observe", "delete"])
def test_no_refusal_of_the_service_ends_a_supervisor_whose_machines_bill(
    tmp_path: Path, method: str
) -> None:
    world = running(tmp_path)
    works = getattr(world.launcher, method)

    def refuse(attempt: Attempt) -> Any:
        raise UserError("base-1: the service refuses the request: stream terminated")

    world.clock.after(HOUR, lambda: setattr(world.launcher, method, refuse))
    world.clock.after(3 * HOUR, lambda: setattr(world.launcher, method, works))
    world.run_until_done(1, at=2 * HOUR, step=70)
    assert len(ends(world, "done").attempts) == 1
    assert any("stream terminated" in line for line in world.said)


def test_a_fault_that_nobody_foresaw_is_said_once_and_looked_at_again(tmp_path: Path) -> None:
    """Who ended by it would leave machines that bill, and limits that nobody keeps."""
    world = World(tmp_path)
    world.said.faults_meant = True
    world.activate(1, steps=steps())
    observe = world.launcher.observe

    def fail(attempt: Attempt) -> Any:
        raise KeyError("replicatedJobs\nand more")

    world.clock.after(HOUR, lambda: setattr(world.launcher, "observe", fail))
    world.clock.after(2 * HOUR, lambda: setattr(world.launcher, "observe", observe))
    world.run_until_done(1, at=3 * HOUR, step=70)
    assert len(ends(world, "done").attempts) == 1
    said = [line for line in world.said if "KeyError" in line]
    assert len(said) == 1
    assert said[0].startswith("base-1: trying again after what nobody foresaw: KeyError: ")


def test_a_limit_is_kept_although_machines_cannot_be_looked_at(tmp_path: Path) -> None:
    world = World(tmp_path, limits=LimitsSection(cost=25.0))
    world.said.faults_meant = True
    world.activate(1, steps=steps())

    def fail(attempt: Attempt) -> Any:
        raise KeyError("replicatedJobs")

    world.clock.after(HOUR, lambda: setattr(world.launcher, "observe", fail))
    world.supervisor().run()
    found = ends(world, "limit")
    assert 24.0 < found.dollars(world.job.placements, world.clock.now) <= 25.0


def test_a_worker_that_never_starts_is_replaced_and_twice_ends_the_job(tmp_path: Path) -> None:
    world = World(tmp_path)

    world.activate(1, after=60, workers=[0])
    world.activate(2, after=2000, workers=[0])
    world.supervisor().run()
    found = ends(world, "failed")
    assert found.attempts[0].reason == "worker 1 has not started within 21 min"
    assert found.message.startswith("failed before its first step twice: worker 1 has not started")
    assert world.launcher.created == ["base-1", "base-2"]


def test_a_host_that_falls_silent_is_replaced(tmp_path: Path) -> None:
    world = World(tmp_path)

    def speak(minutes: int) -> None:
        world.beat(1, workers=[0] if minutes > 5 else [0, 1], step=minutes)
        if "base-1" in world.launcher.machines:
            world.clock.after(60, lambda: speak(minutes + 1))

    def start() -> None:
        world.launcher.become("base-1", State.ACTIVE)
        speak(0)

    world.clock.after(60, start)
    world.activate(2, after=2000, steps=steps(100))
    world.run_until_done(2, at=HOUR, step=600)
    found = ends(world, "done")
    assert found.attempts[0].end == "broken"
    assert found.attempts[0].reason == "worker 1 has been silent for 11 min"
    assert found.attempts[0].step is not None


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_supervisor_killed_about_a_creation_leaves_one_set_of_machines(
    tmp_path: Path, dies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the note that machines will be asked for, the request, and the note of its answer."""

    class Killed(BaseException):
        pass

    world = World(tmp_path)

    def die(attempt: Attempt) -> None:
        raise Killed

    if dies == "before":
        world.launcher.on_create = die
        with pytest.raises(Killed):
            world.supervisor().run()
    else:
        with monkeypatch.context() as patch:
            patch.setattr(world.launcher, "create", _then(world.launcher.create, die))
            with pytest.raises(Killed):
                world.supervisor().run()
        assert list(world.launcher.machines) == ["base-1"]
    written = read_state(world.files)
    assert [record.created for record in written.attempts] == [None]
    world.launcher.on_create = lambda attempt: None
    world.activate(1, steps=steps())
    world.run_until_done(1, at=HOUR, step=70)
    ends(world, "done")
    assert world.launcher.created == ["base-1"]


def _then(first: Any, second: Any) -> Any:
    def both(attempt: Attempt) -> None:
        first(attempt)
        second(attempt)

    return both


def test_a_supervisor_killed_at_the_end_is_followed_by_one_that_deletes(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    world = running(tmp_path)
    world.clock.after(HOUR, lambda: world.beat(1, "done", exit_code=0, step=70))

    def die(attempt: Attempt) -> None:
        raise Killed

    world.launcher.on_delete = die
    with pytest.raises(Killed):
        world.supervisor().run()
    assert list(world.launcher.machines) == ["base-1"]
    world.launcher.on_delete = lambda attempt: None
    world.supervisor().run()
    ends(world, "done")


def test_a_job_that_is_interrupted_again_while_it_is_deleted_stays_over(tmp_path: Path) -> None:
    world = running(tmp_path)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def take_a_while(attempt: Attempt) -> None:
        world.launcher.machines.clear()
        raise KeyboardInterrupt

    world.clock.after(HOUR, interrupt)
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


def test_what_cannot_be_written_is_deleted_all_the_same(tmp_path: Path) -> None:
    world = running(tmp_path)
    begin, end = bucket_outage()
    world.clock.after(HOUR, begin)
    world.becomes(State.SUSPENDED, at=HOUR)

    def mend(attempt: Attempt) -> None:
        end()

    world.launcher.on_delete = mend
    world.activate(2, after=2 * HOUR, steps=steps(400))
    world.clock.after(3 * HOUR, lambda: world.beat(2, "done", exit_code=0, step=900))
    try:
        world.supervisor().run()
    finally:
        end()
    ends(world, "done")


def test_the_second_supervisor_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    with (
        pytest.raises(UserError, match=r"is watched by another process \(host and process .+ \d+"),
        lease(world.files, say=world.said.append),
    ):
        pass
    world.lock.give_back()
    with lease(world.files, say=world.said.append):
        assert world.files.lease.exists()
    assert world.launcher.requests["create"] == 0


def test_a_supervisor_that_lost_its_lease_ends_and_leaves_the_machines(tmp_path: Path) -> None:
    world = running(tmp_path)

    class Lost:
        holder = ""
        left = 20

        def take(self) -> bool:
            return True

        def give_back(self) -> None:
            pass

        def check(self) -> None:
            self.left -= 1
            if not self.left:
                raise LockLost("another process has taken the lock")

    world.lock = Lost()
    with pytest.raises(LockLost, match="another process has taken the lock"):
        world.supervisor().run()
    assert list(world.launcher.machines) == ["base-1"]


def test_a_bucket_that_cannot_be_reached_for_a_while_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = running(tmp_path)

    begin, end = bucket_outage()
    # For longer than a silence of hosts is borne, which theirs is not.
    world.clock.after(HOUR, begin)
    world.clock.after(HOUR + 3 * PACE.silence, end)
    world.run_until_done(1, at=3 * HOUR, step=70)
    found = ends(world, "done")
    assert len(found.attempts) == 1
    assert any("cannot be read" in line for line in world.said)


def test_a_lease_that_the_bucket_does_not_tell_of_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    answers: list[Exception | None] = [None]

    def check() -> None:
        if answers[-1] is not None:
            raise answers[-1]

    monkeypatch.setattr(world.lock, "check", check)
    world.activate(1, steps=steps())
    world.clock.after(HOUR, lambda: answers.append(RunStopped("gs://b/lease: no answer")))
    world.clock.after(2 * HOUR, lambda: answers.append(LockLost("another has it")))
    with pytest.raises(LockLost):
        world.supervisor().run()
    assert world.clock.now - world.job.submitted >= 2 * HOUR
    assert any("trying again: gs://b/lease: no answer" in line for line in world.said)
    assert list(world.launcher.machines) == ["base-1"]  # they are the other's now


def test_no_machines_are_asked_for_that_could_not_be_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    down = pytest.MonkeyPatch()

    def fail(*_: object) -> None:
        assert not world.launcher.created
        raise RunStopped("gs://b: no answer")

    down.setattr("bert_jax.launch.supervisor.write_state", fail)
    world.clock.after(HOUR, down.undo)
    world.activate(1, after=HOUR + 120, steps=steps())
    world.run_until_done(1, at=2 * HOUR, step=70)
    ends(world, "done")


def test_the_cost_of_all_attempts_counts(tmp_path: Path) -> None:
    world = running(tmp_path, limits=LimitsSection(cost=25.0))
    world.becomes(State.SUSPENDED, at=HOUR)
    world.clock.after(HOUR + 70, lambda: world.activate(2, steps=steps(400)))
    world.supervisor().run()
    found = ends(world, "limit")
    assert 24.0 < found.dollars(world.job.placements, world.clock.now) <= 25.0
    assert len(found.attempts) == 2


def test_hours_and_retries_have_limits(tmp_path: Path) -> None:
    world = World(tmp_path / "hours", limits=LimitsSection(hours=3.0))
    world.activate(1, steps=steps())
    world.supervisor().run()
    assert ends(world, "limit").message.startswith("limits.hours: 3 have passed")

    world = World(tmp_path / "retries", limits=LimitsSection(retries=2))
    for number in range(1, 5):
        world.activate(number, after=number * HOUR, steps=steps(number))
        world.clock.after(
            (number + 0.5) * HOUR,
            lambda number=number: world.launcher.become(f"base-{number}", State.SUSPENDED),
        )
    world.supervisor().run()
    found = ends(world, "limit")
    assert found.message == "limits.retries: 3 attempts have ended, the last: suspended"
    assert world.launcher.created == ["base-1", "base-2", "base-3"]


def test_a_run_that_stopped_itself_is_not_started_again_and_its_dump_is_named(
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
    assert found.message == f"worker 1: loss is not finite; see `bert-jax replay {dump}`"
    assert world.launcher.created == ["base-1"]


@pytest.mark.parametrize("state", ["running", "restarting", None])
def test_a_host_that_is_not_done_after_another_one_keeps_no_machines(
    tmp_path: Path, state: str | None
) -> None:
    """Its process hangs after the last save, it waits for what has ended, or it is silent."""
    world = running(tmp_path)

    def one_ends() -> None:
        world.beat(1, "done", exit_code=0, step=900, workers=[0])
        if state is not None:
            other_goes_on()

    def other_goes_on() -> None:
        if "base-1" in world.launcher.machines:
            world.beat(1, state, exit_code=4, step=899, workers=[1])
            world.clock.after(60, other_goes_on)

    world.clock.after(HOUR, one_ends)
    world.supervisor().run()
    found = ends(world, "done")
    assert found.message == "at step 900"
    assert world.launcher.created == ["base-1"]
    assert found.hours(world.clock.now) < 1.5


def test_machines_that_fail_at_the_same_step_twice_end_the_job_with_the_dumps_name(
    tmp_path: Path,
) -> None:
    world = World(tmp_path)
    dump = tmp_path / "runs" / "base" / "bad_step_40"
    dump.mkdir(parents=True)
    for number, step in ((1, 20), (2, 40), (3, 40)):
        world.activate(number, after=number * HOUR, steps=itertools.repeat(step))
        world.clock.after(
            (number + 0.5) * HOUR,
            lambda number=number: world.launcher.become(f"base-{number}", State.FAILED, "gone"),
        )
    world.supervisor().run()
    found = ends(world, "failed")
    assert found.message == (f"failed at step 40 twice: failed: gone; see `bert-jax replay {dump}`")
    assert world.launcher.created == ["base-1", "base-2", "base-3"]


def test_requests_that_fail_before_there_are_machines_are_not_made_for_ever(tmp_path: Path) -> None:
    world = World(tmp_path, placements=TWO)
    observe = world.launcher.observe

    def fail(attempt: Attempt) -> Any:
        world.launcher.become(attempt.resource, State.FAILED, "internal error")
        return observe(attempt)

    world.launcher.observe = fail
    world.supervisor().run()
    found = ends(world, "failed")
    assert found.message == "6 requests in a row came to nothing: failed: internal error"
    assert [record.placement for record in found.attempts] == [0, 1, 0, 1, 0, 1]


def test_machines_that_somebody_deleted_are_made_again(tmp_path: Path) -> None:
    world = running(tmp_path)
    world.clock.after(HOUR, lambda: world.launcher.machines.clear())
    world.activate(2, after=1.1 * HOUR, steps=steps(50))
    world.run_until_done(2, at=2 * HOUR, step=70)
    assert ends(world, "done").attempts[0].reason == "deleted by somebody else"


def test_machines_that_came_while_the_supervisor_slept_may_start(tmp_path: Path) -> None:
    """A laptop that was closed for ten hours has not seen when they came."""
    world = World(tmp_path)

    def sleep() -> None:
        world.clock.now += 10 * HOUR
        world.launcher.become("base-1", State.STARTING)

    world.clock.after(600, sleep)
    world.activate(1, after=10.4 * HOUR, steps=steps())
    world.run_until_done(1, at=11 * HOUR, step=9)
    assert len(ends(world, "done").attempts) == 1


def test_machines_that_start_for_ever_are_given_up(tmp_path: Path) -> None:
    """In their time from the first sight to the first word; being active does not prolong it."""
    world = World(tmp_path)
    for number, after in ((1, 120), (2, 2400)):
        world.clock.after(
            after, lambda number=number: world.launcher.become(f"base-{number}", State.STARTING)
        )
    world.clock.after(3000, lambda: world.launcher.become("base-2", State.ACTIVE))
    world.supervisor().run()
    found = ends(world, "failed")
    assert [record.reason for record in found.attempts] == [
        "not started within 21 min",
        "worker 0, 1 has not started within 21 min",
    ]


def test_what_the_user_has_stopped_is_deleted(tmp_path: Path) -> None:
    world = running(tmp_path)
    world.clock.after(HOUR, lambda: world.files.stop.write_text("{}"))
    world.supervisor().run()
    assert ends(world, "stopped").message == "by `bert-jax stop`"


@pytest.mark.parametrize("poll", [60.0, 600.0])
def test_each_minute_of_watching_has_a_line_and_each_look_one_request(
    tmp_path: Path, poll: float
) -> None:
    """State, step of steps, loss, dollars and the time left."""
    world = World(tmp_path)
    world.files.config.write_text("train: {phases: [{steps: 600}, {steps: 400}]}")
    world.activate(1, after=600, steps=steps(), loss=6.5)
    world.clock.after(2 * HOUR, lambda: world.beat(1, "done", exit_code=0, step=70))
    world.supervisor(dataclasses.replace(PACE, poll=poll)).run()
    ends(world, "done")
    assert sum(world.launcher.requests.values()) <= 2 * HOUR / poll + 3
    moments = [1_000_000.0, *world.said.moments, world.clock.now]
    assert max(later - one for one, later in itertools.pairwise(moments)) <= 60.0
    assert "base-1: attempt 1: asked for v4:2x2x2 in us-west4-a" in world.said
    if poll == 60.0:
        lines = [line for line in world.said if line.startswith("base-1: active, 2 hosts running")]
        assert lines[19] == (
            "base-1: active, 2 hosts running, step 200 of 1,000 (20.0%), loss 6.500, $3.50 so far, "
            "1:20:00 left"
        )
        assert "base-1: waiting for capacity, 5 min since the request, $0.00 so far" in world.said


def test_a_restart_of_a_host_is_told_once_when_it_happens_and_not_by_the_next_supervisor(
    tmp_path: Path,
) -> None:
    world = running(tmp_path)
    lost = Ending(at=1.0, exit_code=4, step=30, message="process 1 is gone")
    hung = Ending(at=2.0, exit_code=43, step=30, message="a step hangs")

    def restart() -> None:
        world.beat(1, "restarting", workers=[0], endings=(lost,), step=30)
        world.beat(1, "restarting", workers=[1], endings=(hung,), step=30)
        world.ended.add(1)  # beats no more

    def interrupt() -> None:
        raise KeyboardInterrupt

    world.clock.after(HOUR, restart)
    world.clock.after(HOUR + 300, interrupt)
    with pytest.raises(KeyboardInterrupt):
        world.supervisor().run()
    line = "base-1: host 1 ended at step 30 with exit code 43: a step hangs"
    assert [said for said in world.said if "ended at" in said] == [line]
    world.run_until_done(1, at=400, step=70)
    assert world.said.count(line) == 1


def test_machines_that_ran_and_wait_again_are_not_given_up_for_want_of_capacity(
    tmp_path: Path,
) -> None:
    """As pods do that JobSet makes anew: for how long, their launcher knows."""
    world = running(tmp_path, limits=LimitsSection(wait_hours=1.0))
    world.becomes(State.WAITING, at=2 * HOUR)
    world.becomes(State.ACTIVE, at=2.5 * HOUR)
    # Their hosts' last word is half an hour old, and the next takes a while.
    world.clock.after(2.5 * HOUR + 300, lambda: world.keep_beating(1, steps(200)))
    world.run_until_done(1, at=2.8 * HOUR, step=900)
    assert len(ends(world, "done").attempts) == 1
