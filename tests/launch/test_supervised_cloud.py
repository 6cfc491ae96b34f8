"""A supervisor against the TPU service's double, which counts what bills, by a clock of our own."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import tpu_v2
from google.rpc import code_pb2

from bert_jax.errors import UserError
from bert_jax.launch import google_calls, watching
from bert_jax.launch.job import Attempt, JobPlacement
from bert_jax.launch.launcher import State
from bert_jax.launch.pace import Pace
from bert_jax.launch.queued_resources import QueuedResources
from bert_jax.launch.section import LimitsSection
from bert_jax.launch.supervisor import Supervisor
from bert_jax.launch.supervisor_state import SupervisorState, read_state
from bert_jax.launch.watching import watch_job
from tests.launch.scripted import HOUR, PACE, World, bucket_outage
from tests.launch.tpu_service import MACHINES, PROJECT, TpuService, denied, status, too_fast

PLACES = tuple(
    JobPlacement(on="v4:2x2x2", zone=zone, dollars_per_hour=10.0)
    for zone in ("us-west4-a", "us-east1-c")
)


class Cloud(World):
    """A job on the double: hosts of its machines speak every minute, for as long as they are."""

    def __init__(self, directory: Path, **submit: Any) -> None:
        super().__init__(directory, project=PROJECT, **submit)
        self.files.software.mkdir(parents=True)
        self.files.startup.write_text("#!/bin/sh\n")
        pace = Pace(sleep=self.clock.sleep, clock=self.clock, now=self.clock, draw=lambda: 1.0)
        self.service = TpuService(machines=self, clock=self.clock)
        self.launcher: Any = QueuedResources(PROJECT, pace=pace)
        self._alive: dict[str, int] = {}  # machines by name
        self._step = 0
        self.dead: set[int] = set()  # workers that never start

    def start(self, name: str, node: tpu_v2.Node, slices: int) -> None:
        """Hosts begin to speak."""
        self._alive[name] = MACHINES[node.accelerator_type] * slices
        self._speak(name)

    def stop(self, name: str) -> None:
        """They fall silent."""
        self._alive.pop(name, None)

    def _speak(self, name: str) -> None:
        attempt = int(name.rpartition("-")[2])
        if name in self._alive and attempt not in self.ended:
            self._step += 1
            step = None if self.dead else self._step  # they meet before the first
            workers = [each for each in range(self._alive[name]) if each not in self.dead]
            self.beat(attempt, step=step, workers=workers)
            self.clock.after(60, lambda: self._speak(name))

    def ends(self, outcome: str) -> SupervisorState:
        """Checks how the job ended, and that nothing is left."""
        found = read_state(self.files)
        assert found.outcome == outcome, (found, self.said)
        assert self.service.billing() == []
        assert self.launcher.existing() == []
        return found


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: Any) -> Iterator[Cloud]:
    made = Cloud(tmp_path, **getattr(request, "param", {}))
    with made.service.serving() as address:
        monkeypatch.setenv(google_calls.EMULATOR, address)
        yield made


@pytest.mark.parametrize("unavailable", [0.0, 0.05, 0.3])
def test_what_the_service_takes_back_is_made_again(cloud: Cloud, unavailable: float) -> None:
    cloud.service.faults.share_unavailable = unavailable
    cloud.clock.after(HOUR, lambda: cloud.service.suspend("base-1"))
    cloud.clock.after(2 * HOUR, lambda: cloud.beat(2, "done", exit_code=0, step=900))
    cloud.supervisor().run()
    cloud.service.faults.share_unavailable = 0.0
    found = cloud.ends("done")
    assert [record.end for record in found.attempts] == ["taken", "over"]
    assert cloud.service.machines_ever == 2


@pytest.mark.parametrize(
    "cloud",
    [{"placements": (JobPlacement(on=on, zone="us-west4-a"),)} for on in ("v5e:2x4", "v6e:2x4")],
    indirect=True,
)
def test_eight_chips_of_one_machine_are_one_host(cloud: Cloud) -> None:
    """Nobody waits for a second, and the one that there is ends the job."""
    cloud.clock.after(2 * HOUR, lambda: cloud.beat(1, "done", exit_code=0, step=900, workers=[0]))
    cloud.supervisor().run()
    assert [record.end for record in cloud.ends("done").attempts] == ["over"]
    assert cloud.service.machines_ever == 1


def test_too_many_requests_are_made_again_when_the_service_says(cloud: Cloud) -> None:
    for method in ("CreateQueuedResource", "GetQueuedResource", "DeleteQueuedResource"):
        cloud.service.faults.next_errors[method] = [too_fast(100), too_fast(200)]
    cloud.clock.after(HOUR, lambda: cloud.beat(1, "done", exit_code=0, step=900))
    cloud.supervisor().run()
    cloud.ends("done")
    assert cloud.service.machines_ever == 1


@pytest.mark.parametrize("cloud", [{"placements": PLACES}], indirect=True)
def test_a_project_without_quota_gets_nothing_and_is_told(cloud: Cloud) -> None:
    cloud.service.faults.quota = 4
    cloud.supervisor().run()
    assert "Limit: 4" in cloud.ends("limit").message
    assert cloud.service.machines_ever == 0


@pytest.mark.parametrize("cloud", [{"placements": PLACES}], indirect=True)
def test_quota_that_is_missed_in_the_queue_sends_it_elsewhere(cloud: Cloud) -> None:
    cloud.service.faults.late_quota = {"us-west4-a"}
    cloud.clock.after(HOUR, lambda: cloud.beat(2, "done", exit_code=0, step=900))
    cloud.supervisor().run()
    found = cloud.ends("done")
    assert "Quota limit exceeded" in found.attempts[0].reason
    assert found.attempts[1].placement == 1


@pytest.mark.parametrize(
    ("method", "code"),
    [
        ("GetQueuedResource", code_pb2.UNKNOWN),
        ("GetQueuedResource", code_pb2.DATA_LOSS),
        ("GetQueuedResource", code_pb2.UNIMPLEMENTED),
        ("GetQueuedResource", code_pb2.FAILED_PRECONDITION),
        ("GetQueuedResource", code_pb2.ALREADY_EXISTS),
        ("DeleteQueuedResource", code_pb2.UNKNOWN),
        ("DeleteQueuedResource", code_pb2.OUT_OF_RANGE),
        ("ListNodes", code_pb2.NOT_FOUND),
    ],
)
def test_no_error_of_the_service_ends_a_supervisor_whose_machines_bill(
    cloud: Cloud, method: str, code: int
) -> None:
    errors = [status(code, "stream terminated")] * 3
    cloud.clock.after(HOUR, lambda: cloud.service.faults.next_errors.update({method: errors}))
    cloud.clock.after(2 * HOUR, lambda: cloud.beat(1, "done", exit_code=0, step=900))
    cloud.supervisor().run()
    assert len(cloud.ends("done").attempts) == 1
    assert errors == []


def test_a_request_that_is_refused_as_untimely_is_one_line(cloud: Cloud) -> None:
    refused = status(code_pb2.FAILED_PRECONDITION, "the zone is being moved")
    cloud.service.faults.next_errors["CreateQueuedResource"] = [refused]
    with pytest.raises(UserError, match="the service refuses the request: the zone is being moved"):
        cloud.supervisor().run()
    cloud.ends("failed")


def test_a_user_without_permission_is_told_which(cloud: Cloud) -> None:
    cloud.service.faults.next_errors["CreateQueuedResource"] = [denied("tpu.nodes.create")]
    with pytest.raises(UserError, match=r"tpu\.nodes\.create"):
        cloud.supervisor().run()
    cloud.ends("failed")
    assert cloud.service.made == []


def test_a_name_that_somebody_else_has_ends_the_job_and_their_machines_stay(cloud: Cloud) -> None:
    theirs = Attempt(cloud.job, 1, cloud.job.placements[0])
    cloud.launcher.create(theirs)
    while cloud.launcher.observe(theirs).state is not State.ACTIVE:
        pass
    cloud.service.give_to("base-1", job="payroll")
    with pytest.raises(UserError, match="give the job another name"):
        cloud.supervisor().run()
    assert read_state(cloud.files).outcome == "failed"
    assert cloud.service.billing() == [_node("base-1")]
    assert not cloud.service.requests["DeleteQueuedResource"]


@pytest.mark.parametrize(
    "cloud",
    [{"placements": PLACES, "limits": LimitsSection(wait_hours=1.0)}],
    indirect=True,
)
def test_capacity_that_never_comes_ends_the_job(cloud: Cloud) -> None:
    cloud.service.faults.no_capacity = {"us-west4-a", "us-east1-c"}
    cloud.supervisor().run()
    found = cloud.ends("limit")
    assert [record.end for record in found.attempts] == ["capacity", "capacity"]
    assert found.dollars(PLACES, cloud.clock.now) == 0.0
    assert cloud.service.machines_ever == 0


@pytest.mark.parametrize("cloud", [{"limits": LimitsSection(cost=15.0)}], indirect=True)
def test_cost_that_is_reached_ends_the_job(cloud: Cloud) -> None:
    cloud.supervisor().run()
    found = cloud.ends("limit")
    assert 14.0 < found.dollars(cloud.job.placements, cloud.clock.now) <= 15.0


def test_a_supervisor_killed_between_request_and_note_makes_nothing_twice(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    create = cloud.launcher.create

    def die(attempt: Attempt) -> None:
        create(attempt)
        raise Killed

    cloud.service.faults.lost_answers["CreateQueuedResource"] = 1
    with monkeypatch.context() as patch:
        patch.setattr(cloud.launcher, "create", die)
        with pytest.raises(Killed):
            cloud.supervisor().run()
    assert [existing.state for existing in cloud.launcher.existing()] == [State.WAITING]
    cloud.clock.after(HOUR, lambda: cloud.beat(1, "done", exit_code=0, step=900))
    cloud.supervisor().run()
    cloud.ends("done")
    assert len(cloud.service.made) == 1
    assert cloud.service.machines_ever == 1


def test_a_worker_that_never_starts_is_replaced_and_twice_ends_the_job(cloud: Cloud) -> None:
    cloud.dead = {1}
    cloud.supervisor().run()
    found = cloud.ends("failed")
    assert "worker 1 has not started" in found.message
    assert [record.end for record in found.attempts] == ["broken", "broken"]
    assert cloud.service.machines_ever == 2


def test_a_second_supervisor_is_refused_while_the_first_one_lives(cloud: Cloud) -> None:
    refused: list[str] = []

    def second() -> None:
        with pytest.raises(UserError) as error:
            watch_job(cloud.files, cloud.launcher, say=cloud.said.append, confirm=lambda _: True)
        refused.append(str(error.value))

    cloud.clock.after(HOUR, second)
    cloud.clock.after(2 * HOUR, lambda: cloud.beat(1, "done", exit_code=0, step=900))
    cloud.supervisor().run()
    cloud.ends("done")
    assert "is watched by another process" in refused[0]
    assert len(cloud.service.made) == cloud.service.machines_ever == 1


def test_a_bucket_that_cannot_be_reached_for_a_minute_changes_nothing(cloud: Cloud) -> None:
    begin, end = bucket_outage()
    cloud.clock.after(HOUR, begin)
    cloud.clock.after(HOUR + 90, end)
    cloud.clock.after(2 * HOUR, lambda: cloud.beat(1, "done", exit_code=0, step=900))
    cloud.supervisor().run()
    assert len(cloud.ends("done").attempts) == cloud.service.machines_ever == 1
    assert any("cannot be read" in line for line in cloud.said)


@pytest.mark.parametrize("answer", [True, False])
def test_ctrl_c_deletes_what_bills_unless_the_user_keeps_it(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    timed = functools.partial(Supervisor, pace=PACE, clock=cloud.clock, sleep=cloud.clock.sleep)
    monkeypatch.setattr(watching, "Supervisor", timed)
    cloud.lock.give_back()
    cloud.clock.after(HOUR, interrupt)
    state = watch_job(
        cloud.files, cloud.launcher, say=cloud.said.append, confirm=lambda question: answer
    )
    if answer:
        cloud.ends("stopped")
        return
    assert state.outcome is None
    assert cloud.service.billing() == [_node("base-1")]
    assert "nobody watches" in cloud.said[-1]


def _node(name: str) -> str:
    return f"projects/{PROJECT}/locations/us-west4-a/nodes/{name}"


def test_what_exists_says_which_job_it_is_of(cloud: Cloud) -> None:
    cloud.supervisor().start()
    (existing,) = cloud.launcher.existing()
    assert existing.directory == str(cloud.job.directory)
