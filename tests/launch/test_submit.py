"""submit, watch, stop and jobs on the command line, with a scripted cloud."""

import hashlib
import importlib
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from bert_jax.config import load_config
from bert_jax.launch import bundle
from bert_jax.launch.job import HostStatus, JobPlacement, find_job, read_job
from bert_jax.launch.launcher import OutOfQuota
from bert_jax.launch.retry_policy import read_state
from bert_jax.verbs import submit_checks
from bert_jax.verbs.watch import lease
from bert_jax.version import __version__ as VERSION
from tests.launch.scripted import EIGHT, Provider
from tests.project import ROOT, invoke, ok, refused, refuses, says


def test_a_job_is_staged_made_watched_and_deleted(
    provider: Provider, config: Path, tmp_path: Path
) -> None:
    done = ok("submit", config, "--bucket", tmp_path / "b", "--hosts", 2, "--watch", "--yes")
    assert "bert-small-1: done after 0:00:0" in done
    assert provider.machines == {}
    files = find_job("bert-small-1", bucket=str(tmp_path / "b"))
    job = read_job(files)
    assert job.run_dir == str(tmp_path / "runs" / "BERT_small.1")
    assert job.submit.hosts == 2
    assert yaml.safe_load(files.config.read_text())["run_dir"] == job.run_dir
    assert read_state(files).outcome == "done"


def test_the_staged_software_is_this_package_with_a_hash(
    provider: Provider, config: Path, tmp_path: Path
) -> None:
    ok("submit", config, "--bucket", tmp_path / "b")
    software = tmp_path / "b" / "jobs" / "bert-small-1" / "software"
    for line in (software / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((software / name).read_bytes()).hexdigest() == digest
    (wheel,) = software.glob("*.whl")  # local hosts use this Python: no installer
    target = tmp_path / "installed"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
        names = archive.namelist()
    assert len(names) == len(set(names))
    assert "bert_jax/pipelines/examples.py" in names
    assert not any("__pycache__" in name for name in names)
    program = "import bert_jax.pipelines.examples as found; print(found.__file__)"
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.startswith(str(target))
    lock = (software / "requirements.txt").read_text()
    assert lock == (ROOT / "constraints" / "host-tpu-py312.txt").read_text()
    assert (software / "python-version").read_text() == "3.12\n"


def test_a_checkout_with_an_egg_info_stages_a_complete_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python -m bert_jax.cli` in a checkout finds the folder before the installed package."""
    egg_info = tmp_path / "bert_jax.egg-info"
    egg_info.mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    (egg_info / "PKG-INFO").write_text(
        f"Metadata-Version: 2.1\nName: bert-jax\nVersion: {VERSION}\n"
    )
    with refuses("install.metadata"):
        bundle.build_wheel()
    with (egg_info / "PKG-INFO").open("a") as file:
        file.write("Requires-Dist: jax\n")
    with zipfile.ZipFile(io.BytesIO(bundle.build_wheel())) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        assert b"Name: bert-jax\n" in archive.read(name)


def test_an_unwatched_job_can_be_watched_later(
    provider: Provider, config: Path, tmp_path: Path
) -> None:
    begun = ok("submit", config, "--bucket", tmp_path / "b", "--yes")
    directory = tmp_path / "b" / "jobs" / "bert-small-1"
    assert f"`bert-jax watch {directory}`" in begun
    assert list(provider.machines) == ["bert-small-1-1"]
    # Before any heartbeat the run's directory already names its job.
    shown = ok("status", tmp_path / "runs" / "BERT_small.1")
    assert shown.startswith(f"job        bert-small-1 ({directory})\n")
    ok("watch", directory)
    assert provider.machines == {}
    assert provider.created == ["bert-small-1-1"]


def test_a_run_that_does_not_fit_is_refused_unpaid(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = {"v5e:2x4": (True, 10.0), "v2:2x2": (False, None)}

    def plan(config: Any, topologies: list[str], **_: Any) -> list[SimpleNamespace]:
        fits, hours = plans[topologies[0]]
        return [SimpleNamespace(fits=fits, hours=hours)]

    monkeypatch.setattr(importlib.import_module("bert_jax.verbs.plan"), "plan", plan)
    places = [JobPlacement(on="v5e:2x4", dollars_per_hour=3.84), JobPlacement(on="v2:2x2")]
    hours: dict[JobPlacement, float] = {}
    findings = list(submit_checks._plan(places, load_config(config), hours, say=print))
    assert [finding.verdict for finding in findings] == ["fine", "wrong"]


@pytest.mark.parametrize("answer", [("--yes",), ()])
def test_ctrl_c_asks_before_it_deletes(
    provider: Provider, config: Path, tmp_path: Path, answer: tuple[str, ...]
) -> None:
    provider.looks_until_done, provider.interrupt_at = 99, 3
    begun = invoke("submit", config, "--bucket", tmp_path / "b", "--watch", *answer)
    assert begun.exit_code == 3, begun.output
    directory = tmp_path / "b" / "jobs" / "bert-small-1"
    if answer:
        assert provider.machines == {}
        assert read_state(find_job(str(directory))).outcome == "stopped"
        return
    assert list(provider.machines) == ["bert-small-1-1"]
    assert f"{directory} is not watched" in begun.output
    provider.looks_until_done = 0
    ok("watch", directory)
    assert provider.machines == {}


def test_stop_deletes_an_unwatched_job(provider: Provider, config: Path, tmp_path: Path) -> None:
    invoke("submit", config, "--bucket", tmp_path / "b")
    ok("stop", "bert-small-1", "--bucket", tmp_path / "b")
    assert provider.machines == {}
    again = refused("stop", "bert-small-1", "--bucket", tmp_path / "b")
    says(again, key="job.ended", outcome="stopped")
    says(again, reason="by `bert-jax stop`")


def test_stop_leaves_deletion_to_a_live_supervisor(
    provider: Provider, config: Path, tmp_path: Path
) -> None:
    invoke("submit", config, "--bucket", tmp_path / "b")
    files = find_job("bert-small-1", bucket=str(tmp_path / "b"))
    with lease(files, say=print):
        stopped = invoke("stop", files.directory)
        assert "its supervisor" in stopped.output
        assert list(provider.machines) == ["bert-small-1-1"]
    assert invoke("watch", files.directory).exit_code == 3
    assert provider.machines == {}


def test_jobs_shows_billing_and_stops_orphans(
    provider: Provider, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert invoke("jobs").output == "no machines\n"
    invoke("submit", config, "--bucket", tmp_path / "b")
    files = find_job("bert-small-1", bucket=str(tmp_path / "b"))
    assert "bert-small-1-1 in : active, bills, watched, " in invoke("jobs").output
    assert list(provider.machines) == ["bert-small-1-1"]

    # An hour later, without a supervisor, its hosts are done.
    state = read_state(files)
    files.supervisor.write_text(
        state.model_copy(update={"seen": state.seen - 3600}).model_dump_json()
    )
    assert "bills, not watched, " in invoke("jobs").output  # no heartbeat yet
    files.host(1, 0).write_text(HostStatus(state="done", at=1.0).model_dump_json())
    assert "bills, orphan: its run is done, " in invoke("jobs").output
    kept = invoke("jobs", "--stop-orphans")
    assert list(provider.machines) == ["bert-small-1-1"], kept.output
    stopped = invoke("jobs", "--stop-orphans", "--yes")
    assert "bert-small-1-1: deleted (its run is done)" in stopped.output
    assert provider.machines == {}


def test_a_job_without_machines_gives_the_reason(
    provider: Provider, config: Path, tmp_path: Path
) -> None:
    def refuse(attempt: Any) -> None:
        raise OutOfQuota("test.quota", "limit 0")

    provider.on_create = refuse
    for more in ((), ("--watch",)):
        ended = invoke("submit", config, "--bucket", tmp_path / "b", "--yes", *more)
        assert ended.exit_code == 1, ended.output
        assert "local: limit 0" in ended.output


def test_a_name_is_reserved_until_its_job_ends(
    provider: Provider, config: Path, tmp_path: Path
) -> None:
    invoke("submit", config, "--bucket", tmp_path / "b")
    line = refused("submit", config, "--bucket", tmp_path / "b")
    assert line.key == "submit.running"
    says(line, job=str(tmp_path / "b" / "jobs" / "bert-small-1"))
    invoke("stop", "bert-small-1", "--bucket", tmp_path / "b")
    ok("submit", config, "--bucket", tmp_path / "b", "--watch")
    assert find_job("bert-small-1-2", bucket=str(tmp_path / "b")).job.exists()


def test_an_indivisible_batch_is_refused_without_a_plan(
    provider: Provider, config: Path, tmp_path: Path
) -> None:
    options = ("--bucket", tmp_path / "b", "--hosts", 3, "--no-plan", "--yes")
    line = refused("submit", config, *options)
    assert "batch_size: found 8" in line
    assert "6" in line
    assert provider.requests["create"] == 0


def test_a_dry_run_uses_no_network_and_makes_no_job(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")
    values = yaml.safe_load(config.read_text())
    values |= {"run_dir": "runs/base", "tokenizer": "data/tokenizer"}
    values["mesh"] = {"data": -1}
    for phase in values["train"]["phases"]:
        phase["dataset"] = "data/set"
    config.write_text(yaml.safe_dump(values))
    dry = ("submit", config, "--bucket", "gs://bucket", *EIGHT, "--dry-run")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "none"))
    assert "--project is missing" in ok(*dry)
    shown = ok(*dry, "--project", "p", "--full")
    assert "gcloud compute tpus queued-resources create base-1 --project=p" in shown
    assert "gs://bucket/runs/base" in shown
    assert "startup.sh for the hosts" in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.yaml"]


@pytest.mark.parametrize(
    ("arguments", "place", "key"),
    [
        ((), "--bucket", "submit.directory_missing"),
        (EIGHT, "--bucket", "submit.bucket_missing"),
        (("--bucket", "b", "submit.on=null"), "--on", "submit.on_missing"),
        (("--bucket", "b", "--on", "v9-8"), "submit.on", "topology.generation"),
        (("--bucket", "b", "--on", "local", "--on", "v5e-8"), "submit.on", "submit.local_alone"),
        (("--bucket", "b", "--on", "v5e-8"), "--zone", "submit.zone_missing"),
        (("--bucket", "b", *EIGHT), "--bucket", "submit.bucket_local"),
        (("--bucket", "gs://bucket", *EIGHT), "run_dir", "submit.local_path"),
        (("--bucket", "gs://b", *EIGHT, "--prices", "no.yaml"), "no.yaml", "file.missing"),
        (("--bucket", "b", "--name", "Base!"), "override submit.name", "setting.value"),
        (("--bucket", "b", "--max-cost", "-1"), "override submit.limits.cost", "setting.value"),
        (("--bucket", "b", "--verb", "finetune"), "finetune", "config.other_verb"),
        (
            ("--bucket", "b", *EIGHT, "--launcher", "local"),
            *("override submit.launcher", "setting.value"),
        ),
        (("--bucket", "b", "--on", "loca"), "submit.on", "topology.form"),
        (("--bucket", "b", "--on", "v5e-17"), "submit.on", "topology.size"),
    ],
)
def test_a_mistake_is_one_line_and_makes_no_job(
    config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    place: str,
    key: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused("submit", config, *arguments)
    says(line, key=key, place=place)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.yaml"]


@pytest.mark.parametrize(
    ("arguments", "key", "text"),
    [
        (("watch", "base"), "job.bucket_missing", "gs://…/jobs/base"),
        (
            ("watch", "bert-smal-1", "--bucket", "{b}"),
            *("job.unknown", 'did you mean "bert-small-1"?'),
        ),
        (("stop", "{b}/jobs/other"), "job.unknown", "/jobs/other: "),
    ],
)
def test_a_missing_job_is_one_line(
    provider: Provider,
    config: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    key: str,
    text: str,
) -> None:
    invoke("submit", config, "--bucket", tmp_path / "b")
    line = refused(*(argument.format(b=tmp_path / "b") for argument in arguments))
    assert line.key == key
    assert text in line
