"""JobSets follow the schemas. The launcher creates, observes and deletes them."""

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bert_jax.errors import KeyedError, NoCredentials, UserError
from bert_jax.launch.gke_launcher import GkeJobSets
from bert_jax.launch.job import Attempt
from bert_jax.launch.launcher import NotOurs, OutOfQuota, Owner, State, Unavailable
from tests.launch.cloud_jobs import Clock, make_attempt
from tests.launch.cluster import Cluster, check_manifest
from tests.launch.manifests import GOLDEN, IMAGE, texts
from tests.project import refuses

BUCKET = "gs://bucket"


def gke_attempt(**changes: Any) -> Attempt:
    return make_attempt(BUCKET, **{"image": IMAGE, **changes})


def manifest(**changes: Any) -> dict[str, Any]:
    (request,) = GkeJobSets().render(gke_attempt(**changes))
    return yaml.safe_load(request.body)


def pod_of(jobset: dict[str, Any]) -> dict[str, Any]:
    return jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def test_requests_and_manifests_equal_the_golden_files() -> None:
    """After an intended change, run ``python -m tests.launch.manifests``."""
    made = dict(texts())
    assert sorted(made) == sorted(path.name for path in GOLDEN.iterdir())
    for name, text in made.items():
        assert text == (GOLDEN / name).read_text(), name


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("*.yaml")))
def test_manifests_follow_the_published_schemas(name: str) -> None:
    jobset = yaml.safe_load((GOLDEN / name).read_text())
    check_manifest(jobset)
    (container,) = pod_of(jobset)["containers"]
    assert container["securityContext"] == {"privileged": True}  # may lock memory


@pytest.mark.parametrize("slices", [1, 2])
def test_pods_with_an_account_leave_the_host_network(slices: int) -> None:
    """On the host network, pods act as their node, not as their Kubernetes account."""
    as_node, as_account = manifest(slices=slices), manifest(slices=slices, service_account="hosts")
    for jobset in (as_node, as_account):
        check_manifest(jobset)
        assert jobset["spec"]["network"]["enableDNSHostnames"]
    node_pod, account_pod = pod_of(as_node), pod_of(as_account)
    assert node_pod.pop("hostNetwork")
    assert node_pod.pop("dnsPolicy") == "ClusterFirstWithHostNet"
    assert account_pod.pop("serviceAccountName") == "hosts"
    assert node_pod == account_pod  # the coordinator's name is the same


@pytest.mark.parametrize(
    ("generation", "storage_class"),
    [
        *(("v4", "standard-rwo"), ("v5e", "standard-rwo"), ("v5p", "standard-rwo")),
        *(("v6e", "dynamic-rwo"), ("v7x", "dynamic-rwo")),
    ],
)
def test_a_disk_is_of_a_type_that_the_machine_takes(generation: str, storage_class: str) -> None:
    jobset = yaml.safe_load((GOLDEN / f"{generation}-4-slices.jobset.yaml").read_text())
    (_, work) = pod_of(jobset)["volumes"]
    claim = work["ephemeral"]["volumeClaimTemplate"]["spec"]
    assert claim["storageClassName"] == storage_class


def test_values_of_a_job_are_never_expanded() -> None:
    attempt = make_attempt("gs://bucket/$(HOME)$$", image=IMAGE)
    (request,) = GkeJobSets().render(attempt)
    values = {
        v["name"]: v.get("value")
        for v in pod_of(yaml.safe_load(request.body))["containers"][0]["env"]
    }
    # Kubernetes turns two dollars into one, and leaves the rest unchanged.
    assert values["BERT_JAX_JOB"] == "gs://bucket/$$(HOME)$$$$/jobs/base"


@pytest.mark.parametrize("generation", ["v5e", "v6e"])
@pytest.mark.parametrize(
    ("shape", "pods", "chips"), [("1x1", 1, 1), ("2x2", 1, 4), ("2x4", 2, 4), ("4x4", 4, 4)]
)
def test_pods_are_the_attempts_hosts_with_all_chips(
    generation: str, shape: str, pods: int, chips: int
) -> None:
    on = f"{generation}:{shape}"
    (replicated,) = manifest(on=on)["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    assert (spec["parallelism"], spec["completions"]) == (pods, pods)
    (container,) = spec["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"google.com/tpu": str(chips)}
    assert make_attempt("gs://bucket", on=on, image=IMAGE, launcher="gke").hosts == pods


@pytest.mark.parametrize(
    ("changes", "key", "values"),
    [
        ({"on": "v2:4x4"}, "submit.on_gke", {"place": "submit.on", "found": "v2:4x4"}),
        ({"image": None}, "submit.image_missing", {"place": "submit.image"}),
        ({"provisioning": "reservation"}, "submit.reservation_missing", {}),
    ],
)
def test_slices_missing_on_gke_are_refused(
    changes: dict[str, Any], key: str, values: dict[str, Any]
) -> None:
    with refuses(key, **values):
        manifest(**changes)


@dataclasses.dataclass
class World:
    cluster: Cluster
    launcher: GkeJobSets
    clock: Clock


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """An empty cluster, found through kubectl's configuration."""
    cluster, clock = Cluster(), Clock()
    with cluster.serving(tmp_path) as kubeconfig:
        monkeypatch.setattr(
            "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", os.fspath(kubeconfig)
        )
        yield World(cluster, GkeJobSets(cluster="pool", pace=clock.pace), clock)


def test_a_jobset_waits_runs_and_is_deleted(world: World) -> None:
    attempt = gke_attempt(slices=2)
    assert world.launcher.observe(attempt).state == State.ABSENT
    world.launcher.create(attempt)
    world.launcher.create(attempt)  # no error: the JobSet is ours
    world.cluster.unscheduled = "0/3 nodes are available"
    seen = world.launcher.observe(attempt)
    assert (seen.state, seen.message) == (State.WAITING, "0/3 nodes are available")
    world.cluster.unscheduled = None
    assert world.launcher.observe(attempt).state == State.STARTING
    jobset = world.cluster.jobsets["base-1"]
    jobset["status"] = {"replicatedJobsStatus": [{"name": "slice", "ready": 2}]}
    assert world.launcher.observe(attempt).state == State.ACTIVE
    (found,) = world.launcher.existing()
    assert (found.owner.job, found.resource, found.bills) == ("base", "base-1", True)
    assert found.owner.directory == f"{BUCKET}/jobs/base"
    world.launcher.delete(attempt)
    assert world.cluster.jobsets == {}
    assert world.clock.slept == [10.0, 10.0]  # the pods ended after 20 s
    world.launcher.delete(attempt)


def test_a_failed_jobset_gives_its_reason(world: World) -> None:
    attempt = gke_attempt()
    world.launcher.create(attempt)
    world.cluster.jobsets["base-1"]["status"] = {
        "terminalState": "Failed",
        "conditions": [{"type": "Failed", "message": "slice-0 failed: exit code 1"}],
    }
    seen = world.launcher.observe(attempt)
    assert (seen.state, seen.message) == (State.FAILED, "slice-0 failed: exit code 1")
    for one in world.launcher.existing():
        assert not one.bills
        world.launcher.remove(one)
    assert world.launcher.existing() == []


def test_missing_capacity_is_a_failure(world: World) -> None:
    attempt = gke_attempt(limits={"wait_hours": 2})
    world.launcher.create(attempt)
    world.cluster.unscheduled = "no nodes"
    world.clock.now = 1767225600 + 3600  # an hour after its creation
    assert world.launcher.observe(attempt).state == State.WAITING
    world.clock.now += 2 * 3600
    seen = world.launcher.observe(attempt)
    assert (seen.state, seen.message) == (State.FAILED, "no capacity within 2 h: no nodes")


def test_a_job_waits_in_its_kueue_queue(world: World) -> None:
    attempt = gke_attempt(queue="team.tpus", limits={"wait_hours": 2})
    world.launcher.create(attempt)
    jobset = world.cluster.jobsets["base-1"]
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team.tpus"
    world.clock.now = 1767225600 + 3600  # an hour after its creation
    seen = world.launcher.observe(attempt)
    assert (seen.state, seen.waits_since) == (State.WAITING, 1767225600)
    assert "team.tpus" in seen.message
    (found,) = world.launcher.existing()
    assert not found.bills
    jobset["spec"]["suspend"] = False
    assert world.launcher.observe(attempt).state == State.STARTING
    # Ten hours later, Kueue evicts the running job. Its jobs are still listed as ready.
    evicted = {"type": "Suspended", "status": "True", "lastTransitionTime": "2026-01-01T10:00:00Z"}
    running = [{"name": "slice", "ready": 1}]
    jobset["status"] = {"conditions": [evicted], "replicatedJobsStatus": running}
    jobset["spec"]["suspend"] = True
    world.clock.now = 1767225600 + 11 * 3600
    assert world.launcher.observe(attempt).state == State.WAITING
    world.clock.now += 2 * 3600
    assert world.launcher.observe(attempt).state == State.FAILED


def test_waiting_for_preempted_pods_counts_from_preemption(world: World) -> None:
    attempt = gke_attempt(limits={"wait_hours": 2})
    world.launcher.create(attempt)
    ran = {"restarts": 1, "replicatedJobsStatus": [{"name": "slice", "ready": 0}]}
    world.cluster.jobsets["base-1"]["status"] = ran
    world.cluster.unscheduled, world.cluster.pods_made = "no nodes", "2026-01-01T09:00:00Z"
    world.clock.now = 1767225600 + 10 * 3600  # the pods ran for nine hours
    assert world.launcher.observe(attempt).state == State.WAITING
    world.clock.now += 2 * 3600
    seen = world.launcher.observe(attempt)
    assert (seen.state, seen.message) == (State.SUSPENDED, "no capacity within 2 h: no nodes")


def test_transient_cluster_errors_are_retried_after_a_pause(world: World) -> None:
    world.cluster.errors = [
        (503, {}, "try again"),
        (429, {"Retry-After": "17"}, "too many requests"),
        (500, {}, "etcd"),
        (599, {}, "a proxy's own"),
    ]
    world.launcher.create(gke_attempt())
    assert world.clock.slept == [1.0, 17.0, 4.0, 8.0]
    assert list(world.cluster.jobsets) == ["base-1"]


def test_an_unreachable_cluster_is_an_error(world: World) -> None:
    world.cluster.errors = [(503, {}, "try again")] * 100
    with refuses("cloud.no_answer", kind=Unavailable, place="JobSet base-1"):
        world.launcher.observe(gke_attempt())


@pytest.mark.parametrize(
    ("status", "reason", "kind", "key"),
    [
        (401, "Unauthorized", NoCredentials, "gke.credentials"),
        (403, "cannot create", UserError, "cloud.permission"),
        (403, "exceeded quota: chips", OutOfQuota, "cloud.quota"),
        (422, "name is too long", UserError, "cloud.refused"),
        (418, "a teapot", UserError, "cloud.refused"),
    ],
)
def test_a_clusters_refusal_is_one_line_at_once(
    world: World, status: int, reason: str, kind: type[KeyedError], key: str
) -> None:
    world.cluster.errors = [(status, {}, reason)]
    with refuses(key, kind=kind, place="JobSet base-1", reason=reason):
        world.launcher.create(gke_attempt())
    assert world.clock.slept == []
    assert world.cluster.jobsets == {}


def test_a_launcher_ignores_a_changed_kubectl_context(world: World, tmp_path: Path) -> None:
    launcher = GkeJobSets(pace=world.clock.pace)
    launcher.create(gke_attempt())
    (tmp_path / "other").mkdir()
    other = Cluster()
    with other.serving(tmp_path / "other") as file:
        kubeconfig = yaml.safe_load((tmp_path / "kubeconfig").read_text())
        elsewhere = yaml.safe_load(file.read_text())
        elsewhere["clusters"][0]["name"] = elsewhere["contexts"][0]["context"]["cluster"] = "new"
        elsewhere["contexts"][0]["name"] = kubeconfig["current-context"] = "new"
        for kind in ("clusters", "contexts"):
            kubeconfig[kind] += elsewhere[kind]
        (tmp_path / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
        world.cluster.errors = [(401, {}, "Unauthorized")]
        with pytest.raises(NoCredentials):
            launcher.observe(gke_attempt())
        assert launcher.observe(gke_attempt()).state is State.STARTING
        assert not other.requests


def test_one_permitted_namespace_is_enough(world: World) -> None:
    world.launcher.create(gke_attempt())
    world.cluster.errors = [(403, {}, "cannot list at the cluster scope")]
    (found,) = world.launcher.existing()
    assert (found.resource, found.zone) == ("base-1", "pool/default")
    world.cluster.jobsets["base-1"]["metadata"]["namespace"] = "team"
    (found,) = world.launcher.existing()
    assert found.zone == "pool/team"
    world.cluster.installed = False
    with refuses("gke.no_jobset", place="pool", namespace="default"):
        world.launcher.existing()


def test_another_jobs_machines_are_left_alone(
    world: World,
) -> None:
    world.launcher.create(gke_attempt())
    mine = make_attempt("gs://mine", image=IMAGE)
    with refuses("submit.name_taken", kind=NotOurs, found="base-1", owner=f"{BUCKET}/jobs/base"):
        world.launcher.create(mine)
    assert world.launcher.observe(mine).state is State.ABSENT
    world.launcher.delete(mine)
    (existing,) = world.launcher.existing()
    world.launcher.remove(dataclasses.replace(existing, owner=Owner.of(mine)))
    assert list(world.cluster.jobsets) == ["base-1"]
    world.cluster.jobsets["base-1"]["metadata"]["labels"]["bert-jax-job"] = "payroll"
    world.launcher.delete(gke_attempt())
    assert list(world.cluster.jobsets) == ["base-1"]


def test_a_cluster_unknown_to_kubectl_is_named(world: World) -> None:
    with refuses("gke.cluster", place="submit.cluster", found="other") as caught:
        GkeJobSets(cluster="other").observe(gke_attempt())
    assert str(caught.value).count("_pool") >= 1
