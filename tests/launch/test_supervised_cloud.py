"""A supervisor against the TPU service's double, which counts what bills, by a clock of our own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import tpu_v2
from google.rpc import code_pb2

from bert_jax.launch import google_calls
from bert_jax.launch.job import Attempt
from bert_jax.launch.launcher import State
from bert_jax.launch.pace import Pace
from bert_jax.launch.queued_resources import QueuedResources
from bert_jax.launch.supervisor_state import SupervisorState, read_state
from tests.launch.scripted import HOUR, World
from tests.launch.tpu_service import MACHINES, PROJECT, TpuService, status


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
            self.beat(attempt, step=self._step, workers=range(self._alive[name]))
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


def test_what_the_service_takes_back_is_made_again(cloud: Cloud) -> None:
    cloud.service.faults.share_unavailable = 0.3
    cloud.clock.after(HOUR, lambda: cloud.service.suspend("base-1"))
    cloud.clock.after(2 * HOUR, lambda: cloud.beat(2, "done", exit_code=0, step=900))
    cloud.supervisor().run()
    cloud.service.faults.share_unavailable = 0.0
    found = cloud.ends("done")
    assert [record.end for record in found.attempts] == ["taken", "over"]
    assert cloud.service.machines_ever == 2


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
