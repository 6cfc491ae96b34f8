"""GKE jobs on the command line, with a simulated cluster and a Cloud Storage emulator."""

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bert_jax.launch import gke_launcher as gke
from bert_jax.launch.job import JobFiles
from bert_jax.launch.request_retries import RequestLimits
from bert_jax.launch.retry_policy import read_state
from tests.launch.cluster import Cluster
from tests.launch.interrupted import saved_often
from tests.launch.manifests import IMAGE
from tests.launch.test_cloud_job import on_bucket
from tests.project import ok, refused, write_config
from tests.storage.cloud import Cloud

pytestmark = pytest.mark.usefixtures("cpu_hosts")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    cluster = Cluster(lingering=1)
    with cluster.serving(tmp_path) as kubeconfig:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
        monkeypatch.setattr(
            "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", os.fspath(kubeconfig)
        )
        monkeypatch.setattr(gke, "RequestLimits", functools.partial(RequestLimits, poll=0.02))
        yield cluster


def test_jobs_finds_jobs_on_kubectls_cluster(
    cloud: Cloud, cluster: Cluster, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`jobs` needs no options: it finds jobs by label in all namespaces, and deletes orphans."""
    bucket = cloud.make_bucket()
    config = write_config(tmp_path / "run.yaml", on_bucket(bucket, project, saved_often(project)))
    options = [
        *("--launcher", "gke", "--cluster", "pool", "--bucket", bucket, "--on", "v5litepod-4"),
        *("--no-plan", "--no-limit", f"submit.image={IMAGE}", "submit.namespace=team"),
    ]
    assert refused("submit", config, *options).key == "submit.cancelled"
    assert cluster.jobsets == {}
    ok("submit", config, *options, "--yes")
    assert cluster.jobsets["base-1"]["metadata"]["namespace"] == "team"
    shown = ok("jobs").splitlines()
    assert f"base-1 in cluster/team: starting, bills, watched, {bucket}/jobs/base" in shown
    files = JobFiles(bucket / "jobs" / "base")
    state = read_state(files)
    old = state.model_copy(update={"seen": state.seen - 3600, "outcome": "failed"})
    files.supervisor.write_text(old.model_dump_json())
    assert "base-1: deleted (its job has ended: failed)" in ok("jobs", "--stop-orphans", "--yes")
    assert cluster.jobsets == {}
    cluster.installed = False
    assert "gke: " not in ok("jobs")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert "gke: not listed: " in ok("jobs")
