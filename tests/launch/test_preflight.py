"""Checks find jobs that cannot run, before machines are requested."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from etils import epath

from bert_jax.config import parse_config
from bert_jax.errors import UserError
from bert_jax.launch.cloud_checks import check_accelerators, check_quotas
from bert_jax.launch.job import Job, JobPlacement
from bert_jax.launch.preflight import (
    PreflightFinding,
    check_bucket,
    check_layout,
    check_platform,
    refuse,
    wrong,
)
from bert_jax.parallel.section import MeshSection
from bert_jax.verbs.submit_checks import PreparedJob, checked_online
from tests.launch import tpu_service
from tests.launch.cloud_jobs import Clock, make_attempt
from tests.launch.tpu_service import TpuService
from tests.project import ROOT, ok, project_config, refused, refuses, says
from tests.storage.cloud import Cloud


@pytest.fixture
def service() -> Iterator[TpuService]:
    service = TpuService(clock=lambda: 0.0)
    with service.serving():
        yield service


def job_on(*places: tuple[str, str, int], bucket: str = "gs://b", **submit: Any) -> Job:
    placements = tuple(JobPlacement(on=on, zone=zone, slices=slices) for on, zone, slices in places)
    on, zone, _ = places[0]
    job = make_attempt(bucket, on=on, zone=zone, **submit).job
    return job.model_copy(update={"placements": placements})


def only_error(finding: PreflightFinding, key: str) -> UserError:
    """Returns the error of a finding; asserts its key."""
    assert (finding.verdict, finding.error and finding.error.key) == ("wrong", key), finding
    assert finding.error is not None
    return finding.error


PACE = Clock().pace


BASE = ROOT / "configs" / "pretrain" / "base.yaml"
ON = ("--project", "p", "--bucket", "gs://b-1", "--zone", "us-central1-a")
GKE = ("--launcher", "gke", "submit.image=i")


@pytest.mark.parametrize(
    ("options", "key", "found"),
    [
        (("--on", "v5e-4", *GKE, "--slices", "2"), "submit.slices_of_one_host", 2),
        (("--on", "v5e-4", "submit.external_address=false"), "submit.cloud_nat", False),
        (("--on", "v5e-4", "submit.queue=tpus"), "submit.queue", "tpus"),
        (("--on", "v5e-4", "submit.service_account=hosts"), "submit.name_form", "hosts"),
        (("--on", "v5e-4", *GKE, "submit.service_account=a@b"), "submit.name_form", "a@b"),
        (("--on", "v5e-4", "--spot", "submit.reservation=r"), "submit.reservation_unused", "r"),
    ],
)
def test_settings_that_hosts_cannot_have_are_refused(
    options: tuple[str, ...], key: str, found: object
) -> None:
    line = refused("submit", BASE, *ON, *options, "--dry-run")
    places = {
        "submit.slices_of_one_host": "submit.slices",
        "submit.name_form": "submit.service_account",
        "submit.reservation_unused": "submit.reservation",
    }
    place = places.get(key, key)
    says(line, key=key, place=place, found=found)


def test_a_schedule_that_hosts_would_refuse_is_refused_here() -> None:
    longer = "optimizer.warmup_steps=9999999"
    line = refused("submit", BASE, *ON, "--on", "v5e-4", longer, "--dry-run")
    says(line, place="optimizer.warmup_steps", found=9_999_999)


@pytest.mark.parametrize(
    "options",
    [
        (*GKE, "submit.network=n", "submit.service_account=hosts"),
        ("submit.data_disk_gb=20", "submit.service_account=a@b"),
    ],
)
def test_a_setting_that_the_launcher_ignores_is_a_warning(options: tuple[str, ...]) -> None:
    (line,) = _warnings(ok("submit", BASE, *ON, "--on", "v5e-4", *options, "--dry-run"))
    assert options[-2].partition("=")[0] in line


@pytest.mark.parametrize(
    "options",
    [
        ("--on", "v5e-8", *GKE, "--slices", "2", "submit.queue=tpus"),
        ("--on", "v5e-4", "--slices", "2"),  # the Cloud TPU API has no such rule
        ("--on", "v5e-4", "submit.external_address=false", "submit.cloud_nat=true"),
    ],
)
def test_an_account_that_may_lack_the_bucket_is_a_warning(options: tuple[str, ...]) -> None:
    options = (*ON, *options, "--dry-run")
    (line,) = _warnings(ok("submit", BASE, *options))
    assert "submit.service_account" in line
    assert "roles/storage.objectUser on gs://b-1" in line
    account = "hosts" if "gke" in options else "a@b"
    assert _warnings(ok("submit", BASE, *options, f"submit.service_account={account}")) == []


def _warnings(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith(("warning: ", "unknown: "))]


@pytest.mark.parametrize(("on", "kind"), [("v6e-4", "Hyperdisk ML"), ("v5p-8", "Balanced")])
def test_a_data_disk_names_the_type_that_hosts_take(on: str, kind: str) -> None:
    options = ("--on", on, "submit.data_disk=corpus", "submit.service_account=a@b")
    allowed = "submit.unlisted_zones=true" if on == "v6e-4" else "mesh={}"
    said = _warnings(ok("submit", BASE, *ON, *options, allowed, "--dry-run"))
    (line,) = (line for line in said if line.startswith("unknown: "))
    assert "submit.data_disk" in line
    assert kind in line


@pytest.mark.parametrize(
    ("gigabytes", "cache", "submit", "key"),
    [
        (97, None, {}, None),
        (98, None, {}, "submit.boot_disk"),  # more than 100 GiB, with 10 GB of the system
        (98, "/dev/shm", {}, None),
        (98, None, {"launcher": "gke"}, None),  # the size of the node's disk is unknown
        (98, None, {"launcher": "gke", "data_disk_gb": 96}, None),
        (98, None, {"launcher": "gke", "data_disk_gb": 95}, "submit.data_disk_gb"),
    ],
)
def test_datasets_must_fit_the_hosts_disk(
    service: TpuService,
    project: Path,
    tmp_path: Path,
    gigabytes: int,
    cache: str | None,
    submit: dict[str, Any],
    key: str | None,
) -> None:
    """Two phases and the evaluation use one dataset, which a host copies once."""
    dataset = tmp_path / "dataset"
    shutil.copytree(project / "dataset32", dataset)
    with (dataset / "sparse").open("wb") as file:
        file.truncate(gigabytes * 10**9)
    values = project_config(project)
    for section in (*values["train"]["phases"], values["train"].setdefault("evaluation", {})):
        section["dataset"] = str(dataset)
    values["loader"] = {"cache": {"directory": cache}}
    job = job_on(("v5e:4x4", "us-west4-a", 1), bucket="local", **submit)
    prepared = PreparedJob(job, parse_config(values, source="test"), ())
    if key is None:
        checked_online(prepared, planned=False, say=print)
        return
    with refuses(key) as caught:
        checked_online(prepared, planned=False, say=print)
    limit = 97.37 if key == "submit.boot_disk" else 96
    sizes = [float(size) for size in re.findall(r"\d+(?:\.\d+)?", caught.value.message)]
    for wanted, tolerance in ((gigabytes, 0.1), (limit, 0.04)):
        assert any(size == pytest.approx(wanted, abs=tolerance) for size in sizes), sizes


def test_a_zone_without_the_accelerator_names_others(
    service: TpuService,
) -> None:
    job = job_on(("v5e:4x4", "us-west4-a", 1), ("v6e:4x4", "us-west4-a", 1), ("v6e:4x4", "x-y", 1))
    fine, *others = check_accelerators(job, pace=PACE)
    assert [finding.verdict for finding in (fine, *others)] == ["fine", "wrong", "wrong"]
    offers, empty = (only_error(finding, "submit.zone_without") for finding in others)
    says(offers, found="us-west4-a", accelerator="v6e-16", offered="v5litepod-4, v5litepod-16")
    says(offers, allowed="us-central1-b, us-east1-d")
    says(empty, found="x-y", offered="nothing")
    assert service.requests == {"ListAcceleratorTypes": 2}  # once per zone


def test_quota_is_compared_with_all_slices(service: TpuService) -> None:
    places = [("v5e:4x4", "us-west4-a", slices) for slices in (1, 2, 3)]
    found = list(check_quotas(job_on(*places), pace=PACE))
    assert [finding.verdict for finding in found] == ["fine", "fine", "wrong"]
    place = "quota TPUV5sLitepodPerProjectPerZoneForTPUAPI in us-west4-a"
    says(only_error(found[2], "submit.quota"), place=place, found=32, expected=48)
    # A zone that is listed without a value has quota 0. The quota of v5p counts TensorCores.
    (finding,) = check_quotas(job_on(("v6e:4x4", "us-east5-b", 1)), pace=PACE)
    assert finding.verdict == "wrong"
    spot = job_on(("v5p:2x2x2", "us-west4-a", 1), provisioning="spot")
    (finding,) = check_quotas(spot, pace=PACE)
    assert finding.line == (
        "quota TPUV5PPreemptiblePerProjectPerZoneForTPUAPI in us-west4-a: 32, needed 16"
    )


def test_an_unreadable_quota_is_unknown(service: TpuService) -> None:
    (finding,) = check_quotas(job_on(("v2:2x2", "us-central1-b", 1)), pace=PACE)
    assert finding.verdict == "unknown"
    assert finding.line.startswith("quota of v2-8: ")
    service.faults.next_errors["GetQuotaInfo"] = [tpu_service.denied("cloudquotas.quotas.get")]
    (finding,) = check_quotas(job_on(("v5e:4x4", "us-west4-a", 1)), pace=PACE)
    assert finding.verdict == "unknown"
    assert "roles/cloudquotas.viewer" in finding.line


def test_a_bucket_is_tried_and_its_location_compared(cloud: Cloud) -> None:
    bucket = cloud.make_bucket()
    job = job_on(
        ("v5e:4x4", "us-central1-a", 1), ("v5e:4x4", "europe-west4-b", 1), bucket=str(bucket)
    )
    fine, warning = check_bucket(job)
    assert fine.line.startswith(f"{bucket} in US-CENTRAL1 ")
    assert warning.verdict == "warning"
    assert warning.placement == job.placements[1]
    assert list(epath.Path(bucket).iterdir()) == []  # the test file is deleted


def test_a_missing_bucket_is_an_error(cloud: Cloud) -> None:
    (finding,) = check_bucket(job_on(("v5e:4x4", "us-central1-a", 1), bucket="gs://no-such"))
    assert finding.verdict == "wrong"
    assert "gcloud storage buckets create gs://no-such" in finding.line


def test_batch_and_mesh_must_fit_hosts_and_devices() -> None:
    job = job_on(("v5e:4x4", "z", 1), ("v5e:4x4", "z", 3))
    sizes = {"train.phases.0.batch_size": (256, 1)}
    (finding,) = check_layout(job, MeshSection(fsdp=4), sizes)
    assert finding.placement == job.placements[1]
    assert finding.line.startswith("train.phases.0.batch_size: found 256, ")
    assert "48" in finding.line
    one = job_on(("v5e:4x4", "z", 1))
    (finding,) = check_layout(one, MeshSection(data=4, fsdp=2), {})
    assert finding.line.startswith("mesh: found data 4 × fsdp 2 × tensor 1")
    assert finding.verdict == "wrong"
    # Hosts read the same rows if the tensor axis spans them.
    assert list(check_layout(one, MeshSection(tensor=8), {"finetune.batch_size": (2, 1)})) == []


@pytest.mark.parametrize(
    ("mesh", "key", "found"),
    [
        (MeshSection(platform="gpu"), "submit.platform", "gpu"),
        (MeshSection(simulated_devices=8), "submit.simulated_devices", 8),
    ],
)
def test_cpu_training_on_a_slice_is_refused(mesh: MeshSection, key: str, found: object) -> None:
    (finding,) = check_platform(job_on(("v5e:4x4", "z", 1)), mesh)
    says(only_error(finding, key), found=found, on="v5e:4x4")


def test_the_slices_or_local_platform_is_accepted() -> None:
    here = job_on(("local", "z", 1))
    for mesh in (MeshSection(), MeshSection(platform="tpu")):
        assert list(check_platform(job_on(("v5e:4x4", "z", 1)), mesh)) == []
    for mesh in (MeshSection(), MeshSection(platform="cpu", simulated_devices=8)):
        assert list(check_platform(here, mesh)) == []
    (finding,) = check_platform(here, MeshSection(platform="tpu"))
    assert finding.verdict == "wrong"
    assert finding.error is not None
    assert finding.error.key in ("mesh.platform", "mesh.no_device")


def test_a_job_goes_to_the_first_place_without_errors() -> None:
    here, there = JobPlacement(on="v5e:4x4", zone="a"), JobPlacement(on="v5e:4x4", zone="b")
    quota, zone, tokenizer = (UserError(f"test.{kind}", "wrong") for kind in ("a", "b", "c"))
    findings = [wrong(quota, here), PreflightFinding("warning", "far", there)]
    assert refuse(findings, [here, there]) == (there,)
    with refuses("test.a"):
        refuse([*findings, wrong(zone, there)], [here, there])
    with refuses("test.c"):
        refuse([wrong(tokenizer)], [here])
