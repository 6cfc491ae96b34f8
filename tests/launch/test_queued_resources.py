"""Queued resources are requested, watched and deleted under every answer of the service."""

import collections
import dataclasses
import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.cloud import tpu_v2
from google.rpc import code_pb2

from bert_jax.errors import NoCredentials
from bert_jax.launch.job import Attempt
from bert_jax.launch.launcher import NotOurs, OutOfQuota, Owner, State, Unavailable
from bert_jax.launch.tpu_launcher import QueuedResources
from tests.launch import tpu_service
from tests.launch.cloud_jobs import Clock, make_attempt, stage
from tests.launch.tpu_service import PROJECT, TpuService
from tests.project import refuses

SCRIPT = "#!/bin/sh\necho started\n"


@dataclasses.dataclass
class World:
    service: TpuService
    launcher: QueuedResources
    clock: Clock
    bucket: str

    def attempt(self, **changes: object) -> Attempt:
        return stage(make_attempt(self.bucket, **changes), SCRIPT)  # type: ignore[arg-type]

    def wait_for(self, attempt: Attempt, state: State) -> None:
        seen = [self.launcher.observe(attempt).state for _ in range(8)]
        assert state in seen


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = Clock()
    service = TpuService(clock=clock)
    with service.serving():
        yield World(service, QueuedResources(PROJECT, pace=clock.pace), clock, str(tmp_path))


def test_a_request_waits_becomes_machines_and_is_deleted(world: World) -> None:
    attempt = world.attempt()
    assert world.launcher.observe(attempt).state == State.ABSENT
    world.launcher.create(attempt)
    seen = [world.launcher.observe(attempt).state for _ in range(5)]
    assert seen == [State.WAITING, State.WAITING, State.STARTING, State.ACTIVE, State.ACTIVE]
    assert len(world.service.billing()) == 1
    world.launcher.delete(attempt)
    assert world.launcher.observe(attempt).state == State.ABSENT
    assert world.service.billing() == []


def test_every_setting_is_in_the_request(world: World) -> None:
    attempt = world.attempt(
        on="v4:2x2x4",
        zone="us-central2-b",
        number=3,
        labels={"team": "nlp"},
        slices=4,
        provisioning="spot",
        network="net",
        subnetwork="sub",
        external_address=False,
        service_account="trainer@test-project.iam.gserviceaccount.com",
        data_disk="corpus",
        limits={"wait_hours": 2.5},
    )
    world.launcher.create(attempt)
    request = world.service.made[0]
    spec = request.queued_resource.tpu.node_spec[0]
    assert "spot" in request.queued_resource
    assert request.parent == spec.parent == f"projects/{PROJECT}/locations/us-central2-b"
    several, node, network = spec.multislice_params, spec.node, spec.node.network_config
    assert (several.node_count, several.node_id_prefix) == (4, "base-3")
    assert (node.accelerator_type, node.runtime_version) == ("v4-32", "tpu-ubuntu2204-base")
    assert (network.network, network.subnetwork) == ("net", "sub")
    assert not network.enable_external_ips
    assert node.service_account.email == "trainer@test-project.iam.gserviceaccount.com"
    assert dict(node.metadata) == {
        "startup-script": SCRIPT,
        "bert-jax-job": f"{world.bucket}/jobs/base",
        "bert-jax-attempt": "3",
    }
    assert dict(node.labels) == {"team": "nlp", "bert-jax-job": "base"}
    (disk,) = node.data_disks
    assert disk.source_disk == f"projects/{PROJECT}/zones/us-central2-b/disks/corpus"
    assert disk.mode == tpu_v2.AttachedDisk.DiskMode.READ_ONLY
    wait = request.queued_resource.queueing_policy.valid_until_duration
    assert wait.total_seconds() == 9000  # type: ignore[union-attr]


def test_a_reservation_is_named_in_full(world: World) -> None:
    world.launcher.create(world.attempt(provisioning="reservation", reservation="ours"))
    request = world.service.made[0].queued_resource
    assert request.reservation_name == f"projects/{PROJECT}/locations/us-west4-a/reservations/ours"
    assert "guaranteed" in request
    assert request.tpu.node_spec[0].node.scheduling_config.reserved
    (shown,) = world.launcher.render(world.attempt(provisioning="reservation", reservation="ours"))
    words = shlex.split(shown.command)
    assert f"--reservation={request.reservation_name}" in words
    assert words[:4] == ["gcloud", "alpha", "compute", "tpus"]  # others lack --reservation


def test_the_rendered_request_equals_the_sent_one(world: World) -> None:
    attempt = world.attempt(slices=2, provisioning="spot", limits={"wait_hours": 1})
    world.launcher.create(attempt)
    (request,) = QueuedResources(PROJECT).render(attempt)
    assert world.service.clients == 1
    sent = json.loads(tpu_v2.CreateQueuedResourceRequest.to_json(world.service.made[0]))
    spec = sent["queuedResource"]["tpu"]["nodeSpec"][0]["node"]
    spec["metadata"]["startup-script"] = "(tpu_setup/startup.sh)"
    parsed = tpu_v2.CreateQueuedResourceRequest.from_json(request.body)
    assert parsed == tpu_v2.CreateQueuedResourceRequest.from_json(json.dumps(sent))
    assert shlex.split(request.command) == [
        *("gcloud", "compute", "tpus", "queued-resources", "create", "base-1"),
        *(f"--project={PROJECT}", "--zone=us-west4-a", "--node-count=2", "--node-prefix=base-1"),
        *("--accelerator-type=v5litepod-16", "--runtime-version=v2-alpha-tpuv5-lite", "--spot"),
        *("--valid-until-duration=3600s", "--labels=bert-jax-job=base"),
        f"--metadata=bert-jax-attempt=1,bert-jax-job={world.bucket}/jobs/base",
        "--metadata-from-file=startup-script=tpu_setup/startup.sh",
    ]


@pytest.mark.parametrize("evil", ["; touch x", "$(touch x)", "`touch x`", "\n touch x", "'x"])
def test_a_printed_command_quotes_any_bucket_name(evil: str) -> None:
    (request,) = QueuedResources(PROJECT).render(make_attempt(f"gs://b{evil}"))
    words = shlex.split(request.command)
    assert f"--metadata=bert-jax-attempt=1,bert-jax-job=gs://b{evil}/jobs/base" in words
    assert [word for word in words if not word.startswith("--")] == [
        *("gcloud", "compute", "tpus", "queued-resources", "create", "base-1")
    ]


def test_another_jobs_machines_are_left_alone(world: World, tmp_path: Path) -> None:
    """Two users of a project submitted the same configuration, each to their own bucket."""
    theirs = world.attempt()
    world.launcher.create(theirs)
    world.wait_for(theirs, State.ACTIVE)
    before = world.service.billing()
    mine = stage(make_attempt(str(tmp_path / "mine")), SCRIPT)
    owner = theirs.job.directory
    with refuses("submit.name_taken", kind=NotOurs, where="us-west4-a", owner=str(owner)):
        world.launcher.create(mine)
    assert world.launcher.observe(mine).state is State.ABSENT
    world.launcher.delete(mine)
    assert world.service.billing() == before
    (existing,) = world.launcher.existing()
    world.launcher.remove(dataclasses.replace(existing, owner=Owner.of(mine)))
    assert world.service.billing() == before
    world.launcher.remove(existing)
    assert world.service.billing() == []


def test_slices_and_attempts_of_numbered_names_are_distinct(world: World) -> None:
    """The name bert-1-3 fits attempt 3 of job bert-1, and slice 3 of attempt 1 of job bert."""
    theirs = world.attempt(name="bert-1", number=3)
    world.launcher.create(theirs)
    world.wait_for(theirs, State.ACTIVE)
    before = world.service.billing()
    mine = world.attempt(name="bert", slices=4)
    world.launcher.create(mine)
    world.launcher.delete(mine)
    assert world.service.billing() == before
    assert world.service.phase("bert-1") is None


def test_slices_without_their_queued_resource_are_deleted(world: World) -> None:
    mine = world.attempt(name="bert", slices=4)
    zone = f"projects/{PROJECT}/locations/us-west4-a"
    owner = {"bert-jax-job": str(mine.job.directory)}
    for name in ("nodes/bert-1-2", "nodes/bert-1-3"):
        left = tpu_v2.Node(name=f"{zone}/{name}", labels={"bert-jax-job": "bert"}, metadata=owner)
        left.queued_resource = f"{zone}/queuedResources/bert-1"
        world.service.make_by_hand(left)
    world.launcher.delete(mine)
    assert world.service.billing() == []


def test_a_suspended_resource_names_its_cause_and_is_deleted(world: World) -> None:
    attempt = world.attempt(provisioning="spot")
    world.launcher.create(attempt)
    world.wait_for(attempt, State.ACTIVE)
    world.service.suspend("base-1")
    found = world.launcher.observe(attempt)
    assert (found.state, found.message) == (State.SUSPENDED, "preempted by the service")
    world.launcher.delete(attempt)
    assert world.service.phase("base-1") is None


def test_missing_quota_is_not_a_rate_limit(world: World) -> None:
    world.service.faults.next_errors["CreateQueuedResource"] = [tpu_service.too_fast(40)]
    world.service.faults.quota = 8
    with refuses("cloud.quota", kind=OutOfQuota, place="queued resource base-1") as caught:
        world.launcher.create(world.attempt())
    assert "Limit: 8 in zone us-west4-a" in str(caught.value)
    assert world.clock.slept == [40]
    assert world.service.requests["CreateQueuedResource"] == 2


def test_quota_missing_in_the_queue_is_a_failure(world: World) -> None:
    attempt = world.attempt()
    world.service.faults.late_quota.add("us-west4-a")
    world.launcher.create(attempt)
    world.wait_for(attempt, State.FAILED)
    assert world.launcher.observe(attempt).message == "Quota limit exceeded"
    assert world.service.machines_ever == 0


def test_waiting_for_capacity_ends_with_the_request(world: World) -> None:
    attempt = world.attempt(limits={"wait_hours": 1})
    world.service.faults.no_capacity.add("us-west4-a")
    world.launcher.create(attempt)
    for _ in range(5):
        assert world.launcher.observe(attempt).state == State.WAITING
    world.clock.sleep(3601)
    found = world.launcher.observe(attempt)
    assert (found.state, found.message) == (State.FAILED, "valid-until has passed")


NO_NETWORK = tpu_service.status(code_pb2.INVALID_ARGUMENT, "no such network")
EXPIRED = tpu_service.status(code_pb2.UNAUTHENTICATED, "token expired")
SHOWN = f"project {PROJECT}"


@pytest.mark.parametrize(
    ("answer", "key", "place", "text"),
    [
        (tpu_service.denied("tpu.nodes.create"), "cloud.permission", SHOWN, "roles/tpu.admin"),
        (
            tpu_service.denied("iam.serviceAccounts.actAs"),
            *("cloud.permission", SHOWN, "roles/iam.serviceAccountUser"),
        ),
        (
            tpu_service.not_enabled(),
            *("gcp.api_disabled", SHOWN, f"tpu.googleapis.com --project {PROJECT}"),
        ),
        (NO_NETWORK, "cloud.refused", "queued resource base-1", "no such network"),
        (EXPIRED, "gcp.credentials", "tpu.googleapis.com", "application-default login"),
    ],
)
def test_a_users_error_is_one_line_at_once(
    world: World, answer: tpu_service.status_pb2.Status, key: str, place: str, text: str
) -> None:
    world.service.faults.next_errors["CreateQueuedResource"] = [answer]
    with refuses(key, place=place) as caught:
        world.launcher.create(world.attempt())
    assert text in str(caught.value)
    assert world.clock.slept == []
    assert world.service.made == []


def test_transient_service_errors_are_retried(world: World) -> None:
    world.service.faults.share_unavailable = 0.3
    attempts = [world.attempt(number=number) for number in range(1, 6)]
    for attempt in attempts:
        world.launcher.create(attempt)
    assert len(world.service.made) == 5
    for attempt in attempts:
        world.wait_for(attempt, State.ACTIVE)
        world.launcher.delete(attempt)
    assert world.service.billing() == []
    assert world.clock.slept  # some requests were retried


def test_a_lost_answer_to_a_creation_makes_one_resource(world: World) -> None:
    world.service.faults.lost_answers["CreateQueuedResource"] = 1
    world.launcher.create(world.attempt())
    assert world.service.requests["CreateQueuedResource"] == 2
    assert len(world.service.made) == 1


def test_expired_credentials_leave_a_creation_uncertain(
    world: World,
) -> None:
    lost = tpu_service.status(code_pb2.UNAVAILABLE, "try again")
    world.service.faults.next_errors["CreateQueuedResource"] = [lost, EXPIRED]
    place = "queued resource base-1"
    with refuses("cloud.login_expired", kind=Unavailable, place=place) as caught:
        world.launcher.create(world.attempt())
    assert "token expired" in str(caught.value)


def test_the_next_request_uses_a_new_login(world: World) -> None:
    """A client caches credentials, so a new login needs a new client."""
    attempt = world.attempt()
    world.launcher.create(attempt)
    world.launcher.observe(attempt)
    assert world.service.clients == 1
    world.service.faults.next_errors["GetQueuedResource"] = [EXPIRED]
    with pytest.raises(NoCredentials):
        world.launcher.observe(attempt)
    assert world.launcher.observe(attempt).state is State.WAITING
    assert world.service.clients == 2


def test_a_silent_service_is_an_error_after_ten_minutes(world: World) -> None:
    attempt = world.attempt()
    world.service.faults.share_unavailable = 1.0
    place = "queued resource base-1"
    with refuses("cloud.no_answer", kind=Unavailable, place=place) as caught:
        world.launcher.observe(attempt)
    assert "try again" in str(caught.value)
    assert 500 < sum(world.clock.slept) <= 600
    assert world.service.requests["GetQueuedResource"] < 30


def test_an_endless_deletion_warns_of_billing(world: World) -> None:
    attempt = world.attempt()
    world.launcher.create(attempt)
    busy = tpu_service.status(code_pb2.FAILED_PRECONDITION, "in use")
    world.service.faults.next_errors["DeleteQueuedResource"] = [busy] * 1000
    with refuses("cloud.not_deleted", kind=Unavailable, minutes=30):
        world.launcher.delete(attempt)


def test_all_existing_machines_are_found_and_removable(world: World) -> None:
    for number in range(1, 4):
        world.launcher.create(world.attempt(name="base", number=number))
    world.wait_for(world.attempt(number=2), State.ACTIVE)
    lost = f"projects/{PROJECT}/locations/us-west4-a/nodes/old-1"
    world.service.make_by_hand(tpu_v2.Node(name=lost, labels={"bert-jax-job": "old"}))
    world.service.make_by_hand(tpu_v2.Node(name=f"{lost}0", labels={"theirs": "yes"}))
    found = world.launcher.existing()
    summary = collections.Counter((one.owner.job, one.resource, one.bills) for one in found)
    assert summary == {
        ("base", "base-1", False): 1,
        ("base", "base-2", True): 1,
        ("base", "base-3", False): 1,
        ("old", "old-1", True): 1,
    }
    assert {one.zone for one in found} == {"us-west4-a"}
    for one in found:
        world.launcher.remove(one)
    assert world.launcher.existing() == []
    assert world.service.billing() == [f"{lost}0"]  # other jobs' machines stay


@pytest.mark.parametrize(
    ("changes", "key", "values"),
    [
        ({"on": "v7x:2x2x1"}, "submit.on_queued", {"place": "submit.on", "found": "v7x:2x2x1"}),
        ({"provisioning": "reservation"}, "submit.reservation_missing", {}),
    ],
)
def test_impossible_requests_are_refused_before_any(
    world: World, changes: dict[str, object], key: str, values: dict[str, Any]
) -> None:
    with refuses(key, **values):
        world.launcher.create(world.attempt(**changes))
    assert not world.service.requests
