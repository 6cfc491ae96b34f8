"""The whole path on GKE: a double of the cluster's API, and a real Cloud Storage emulator.

The short form has pods that only say what hosts say. In the long one they are processes here, which
the startup script starts as in a container: one is killed in mid-run, and JobSet starts it anew.
"""

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from etils import epath

from bert_jax.launch import gke, launchers, machine
from bert_jax.launch.job import HostStatus, JobFiles
from bert_jax.launch.pace import Pace
from bert_jax.launch.supervisor_state import read_state
from tests.launch.cluster import Cluster
from tests.launch.interrupted import (
    cpu_hosts,  # noqa: F401
    saved_often,
)
from tests.launch.manifests import IMAGE
from tests.launch.test_cloud_job import on_bucket
from tests.project import ok, refused, write_config
from tests.storage.cloud import Cloud, _calm, _server, cloud  # noqa: F401

pytestmark = pytest.mark.usefixtures("cpu_hosts")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """kubectl's configuration names it."""
    cluster = Cluster(lingering=1)
    with cluster.serving(tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.setattr(
            "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", os.fspath(kubeconfig)
        )
        monkeypatch.setattr(gke, "Pace", functools.partial(Pace, poll=0.02))
        yield cluster


def options(bucket: epath.Path, *more: str) -> list[str]:
    return [
        *("--launcher", "gke", "--cluster", "pool", "--bucket", str(bucket), "--yes", "--watch"),
        *("--no-plan", "--no-limit", f"submit.image={IMAGE}", "submit.poll_seconds=0.05", *more),
    ]


# What a host has said of itself when it ends with a code; one that is lost says nothing.
_ENDED: dict[int, Any] = {
    0: {"state": "done", "exit_code": 0},
    1: {"state": "failed", "exit_code": 1, "message": "loss is not finite"},
}


class SpokenPods:
    """Pods that speak as hosts do, and end as they are told to: a list of codes for each start."""

    def __init__(self, *plan: Sequence[int]) -> None:
        self._plan, self._looks = list(plan), 0
        self.started: list[str] = []
        self._codes: dict[str, Sequence[int]] = {}

    def start(self, name: str, environments: Sequence[Mapping[str, str]]) -> None:
        """They say that they run; what is done says so."""
        self.started.append(name)
        codes = self._codes[name] = self._plan.pop(0)
        self._looks = 0
        assert len(codes) == len(environments)
        for worker, (code, told) in enumerate(zip(codes, environments, strict=True)):
            assert told["TPU_WORKER_ID"] == str(worker)
            files = JobFiles(epath.Path(told[machine.JOB]))
            ended = _ENDED.get(code, {"state": "running"})
            status = HostStatus(at=len(self.started), step=7, **ended)
            path = files.host(int(told[machine.ATTEMPT]), worker)
            path.write_text(status.model_dump_json())

    def exit_codes(self, name: str) -> Sequence[int | None]:
        """They run for two looks."""
        self._looks += 1
        return self._codes[name] if self._looks > 2 else [None] * len(self._codes[name])

    def stop(self, name: str) -> None:
        """They are gone."""
        del self._codes[name]


def test_pods_that_fail_are_started_anew_then_the_jobset_and_all_is_deleted_at_the_end(
    cloud: Cloud,  # noqa: F811
    cluster: Cluster,
    project: Path,
    tmp_path: Path,
) -> None:
    """submit, pods, a lost pod, JobSet's own restart, a JobSet that failed, another one, done."""
    bucket = cloud.make_bucket()
    config = write_config(tmp_path / "run.yaml", on_bucket(bucket, project, saved_often(project)))
    pods = cluster.pods = SpokenPods((137, 0), (0, 137), (0, 0))
    unasked = [each for each in options(bucket, "--on", "v5litepod-8") if each != "--yes"]
    assert "the question was not answered with yes" in refused("submit", config, *unasked)
    assert cluster.jobsets == {}
    said = ok("submit", config, *options(bucket, "--on", "v5litepod-8", "--retries", "1"))
    assert pods.started == ["base-1", "base-1", "base-2"]
    found = read_state(JobFiles(bucket / "jobs" / "base"))
    assert [record.end for record in found.attempts] == ["broken", "over"], said
    assert found.attempts[0].reason == "failed: ReachedMaxRestarts: exit 137"
    assert found.outcome == "done"
    assert cluster.jobsets == {}
    assert cluster.running == set()
    assert ok("status", bucket / "runs" / "base").startswith("job        base (gs://")


def test_jobs_finds_what_is_on_the_cluster_that_kubectl_knows(
    cloud: Cloud,  # noqa: F811
    cluster: Cluster,
    project: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By its label, in any namespace, with no option; and it can be ended from there."""
    bucket = cloud.make_bucket()
    config = write_config(tmp_path / "run.yaml", on_bucket(bucket, project, saved_often(project)))
    without_watch = [o for o in options(bucket, "--on", "v5litepod-4") if o != "--watch"]
    ok("submit", config, *without_watch, "submit.namespace=team")
    assert cluster.jobsets["base-1"]["metadata"]["namespace"] == "team"
    shown = ok("jobs").splitlines()
    assert f"base-1 in cluster/team: starting, bills, watched, {bucket}/jobs/base" in shown
    files = JobFiles(bucket / "jobs" / "base")
    state = read_state(files)
    old = state.model_copy(update={"seen": state.seen - 3600, "outcome": "failed"})
    files.supervisor.write_text(old.model_dump_json())
    assert "base-1: deleted (its job is over: failed)" in ok("jobs", "--stop-orphans", "--yes")
    assert cluster.jobsets == {}
    cluster.installed = False
    assert "gke: " not in ok("jobs")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert "gke: not listed: kubectl's configuration names no cluster" in ok("jobs")
    assert not launchers.has_cluster()
