"""Placements and costs of a job are known before any request."""

from pathlib import Path

import pytest
import yaml

from bert_jax.launch.preflight import TABLE_DATE
from bert_jax.parallel.accelerators import ACCELERATORS
from tests.project import ROOT, invoke, ok, refused, says

BASE = ROOT / "configs" / "pretrain" / "base.yaml"
BUCKET = ("--project", "p", "--bucket", "gs://your-bucket")
V5E = ("--on", "v5litepod-16", "--zone", "us-west4-a")


@pytest.mark.parametrize(
    ("on", "zone", "key", "allowed"),
    [
        ("v5litepod-16", "us-west4-44", "submit.zone_unknown", "us-central1-a"),
        ("v5litepod-16", "us-wset4-a", "submit.zone_unlisted", "us-central1-a"),
        ("v5litepod-16", "us-west4", "submit.zone_unknown", "us-west4-a"),
        ("v5litepod-16", "europe-west1-b", "submit.zone_unlisted", "us-central1-a"),
        ("v4-16", "us-west4-a", "submit.zone_unlisted", "us-central2-b"),
    ],
)
def test_an_invalid_or_unsuitable_zone_is_refused(
    on: str, zone: str, key: str, allowed: str
) -> None:
    line = refused("submit", BASE, *BUCKET, "--on", on, "--zone", zone, "--dry-run")
    says(line, key=key, place="submit.zone", found=zone)
    assert allowed in line
    assert key == "submit.zone_unknown" or TABLE_DATE in line
    if zone == "us-wset4-a":
        assert 'did you mean "us-west4-a"?' in str(line)


def test_an_unknown_zone_warns_with_the_tables_date() -> None:
    place = ("--on", "v4-16", "--zone", "us-west4-a", "submit.unlisted_zones=true")
    account = "submit.service_account=hosts@p.iam.gserviceaccount.com"
    said = ok("submit", BASE, *BUCKET, *place, account, "--dry-run")
    (warning,) = (line for line in said.splitlines() if line.startswith("warning: "))
    assert 'submit.zone: found "us-west4-a"' in warning
    assert TABLE_DATE in warning


def test_impossible_places_are_dropped() -> None:
    places = ("--on", "v5litepod-16", "--on", "v4-16", "--zone", "us-west4-a")
    said = ok("submit", BASE, *BUCKET, *places, "--dry-run")
    assert "machines  v5e:4x4 in us-west4-a, 4 hosts, on-demand" in said
    assert 'wrong: v4:2x2x2 in us-west4-a: submit.zone: found "us-west4-a"' in said


def test_the_tables_zones_are_accepted() -> None:
    for accelerator in ACCELERATORS.values():
        slice_ = f"{accelerator.name}:{'x'.join(map(str, accelerator.shapes[1]))}"
        zones = [word for zone in accelerator.zones for word in ("--zone", zone)]
        gke = ("--launcher", "gke", "submit.image=i") if accelerator.gke_slice else ()
        options = (*BUCKET, "--on", slice_, *zones, *gke, "mesh={}", "--dry-run")
        assert "submit.zone" not in ok("submit", BASE, *options, "train.phases.0.batch_size=256")


@pytest.mark.parametrize(
    ("bucket", "key"),
    [
        ("gs://My_Bucket", "bucket.name"),
        ("gs://ab", "bucket.name"),
        ("gs://your-bucket-", "bucket.name"),
        (f"gs://{'a' * 64}/jobs", "bucket.name"),
        ("gs://192.168.1.4", "bucket.name_reserved"),
        ("gs://google-data", "bucket.name_reserved"),
        ("s3://bucket", "path.address"),
    ],
)
def test_an_invalid_bucket_name_is_refused(bucket: str, key: str) -> None:
    line = refused("submit", BASE, *V5E, "--project", "p", "--bucket", bucket, "--dry-run")
    says(line, key=key, place="--bucket", found=bucket)


def test_a_dry_run_shows_cost_limits_and_skipped_checks() -> None:
    options = (*BUCKET, *V5E, "--dry-run")
    said = ok("submit", BASE, *options, "--max-cost", 500)
    parts = [
        "Dry run of job base",
        "machines  ",
        "cost      ",
        "limits    ",
        "Not checked",
        "--full",
    ]
    assert sorted(parts, key=said.index) == parts
    assert "stops at $500.00, enough for 26.0 h" in said
    assert "gcloud compute" not in said
    assert len(said.splitlines()) < 25
    full = ok("submit", BASE, *options, "--full")
    parts = ["Not checked", "gcloud compute", "startup.sh for the hosts"]
    assert sorted(parts, key=full.index) == parts
    assert "--max-cost DOLLARS or --no-limit" in full


def test_a_paid_submit_needs_a_limit_or_an_explicit_none(config: Path) -> None:
    values = yaml.safe_load(config.read_text()) | {"run_dir": "r", "tokenizer": "t", "mesh": {}}
    for phase in values["train"]["phases"]:
        phase["dataset"] = "d"
    config.write_text(yaml.safe_dump(values))
    options = (*BUCKET, "--on", "v5e-8", "--zone", "us-west4-a", "--yes")
    line = refused("submit", config, *options)
    says(line, key="submit.limit_missing", place="--max-cost")
    line = refused("submit", config, *options, "--max-cost", 9, "--no-limit")
    says(line, key="submit.two_limits", found=9)


@pytest.mark.parametrize("verb", ["submit", "watch", "stop", "status", "logs"])
def test_without_credentials_the_network_is_not_used(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    arguments = {"submit": (BASE, *BUCKET, *V5E, "--max-cost", 9, "--yes")}
    found = invoke(verb, *arguments.get(verb, ("gs://your-bucket/jobs/base",)))
    assert found.exit_code == 2, found.output
    line = found.output.splitlines()[-1]
    assert line.startswith("bert-jax: gs://your-bucket")
    assert "`gcloud auth application-default login`" in line
    assert line.endswith("[gcp.no_credentials]")
