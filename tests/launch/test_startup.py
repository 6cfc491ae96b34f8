"""`tpu_setup/startup.sh` on a Cloud TPU VM: installation, arguments and refused values."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from etils import epath

from tests.launch.cloud_vm import TOKEN, Vm, stage_software
from tests.launch.jobs import STARTUP, TIMEOUT
from tests.project import ROOT
from tests.storage.cloud import Cloud

ATTRIBUTES = {
    "bert-jax-attempt": "2",
    "agent-worker-number": "3",
    "worker-network-endpoints": "a:0:10.0.0.1,a:1:10.0.0.2,a:2:10.0.0.3,a:3:10.0.0.4",
    "tpu-env": "ACCELERATOR_TYPE: 'v5litepod-16'\nMEGASCALE_SLICE_ID: '2'\nZONE: 'x'\n",
}
WORKER = 2 * 4 + 3


def test_shellcheck_finds_no_problem() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "shellcheck"), str(STARTUP)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == ""
    assert done.returncode == 0


def test_hosts_install_with_the_tests_version_of_uv() -> None:
    (version,) = re.findall(r"^UV := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for path in (ROOT / "constraints").glob("*.txt"):
        assert set(re.findall(r"^uv==(\S+)", path.read_text(), re.MULTILINE)) <= {version}
    assert f"uv=={version} " in (ROOT / "constraints" / "host-uv.txt").read_text()


def test_a_vm_installs_the_wheel_once_and_starts_the_agent(cloud: Cloud, tmp_path: Path) -> None:
    job = cloud.make_bucket() / "jobs" / "a b$(touch pwned)"
    stage_software(job)
    vm = Vm(tmp_path / "vm")
    attributes = ATTRIBUTES | {"bert-jax-job": str(job)}
    first = vm.boot(attributes, cloud.proxy.url)
    assert first.returncode == 0, first.stderr
    assert first.stdout.splitlines()[-1] == f"{job}|2|{WORKER}|{vm.home}"
    status = json.loads((job / "attempts" / "2" / f"worker-{WORKER}.json").read_text())
    assert status["state"] == "installing"

    assert "--require-hashes --requirement requirements.txt" in vm.notes
    assert "--property=KillMode=mixed" in vm.notes
    assert TOKEN not in vm.notes  # every user can see a process's arguments
    assert TOKEN not in first.stdout + first.stderr
    said = [path.read_text() for path in (job / "attempts" / "2").iterdir()]
    assert said
    assert not any(TOKEN in text for text in said)
    installed = vm.notes.count("/uv ")
    again = vm.boot(attributes, cloud.proxy.url)
    assert again.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]
    assert vm.notes.count("/uv ") == installed


def test_a_changed_wheel_is_not_run(cloud: Cloud, tmp_path: Path) -> None:
    job = cloud.make_bucket() / "jobs" / "tiny"
    stage_software(job)
    (job / "software" / "bert_jax-0.2.0-py3-none-any.whl").write_bytes(b"another")
    vm = Vm(tmp_path / "vm")
    done = vm.boot(ATTRIBUTES | {"bert-jax-job": str(job)}, cloud.proxy.url)
    assert done.returncode != 0
    assert "bert_jax-0.2.0-py3-none-any.whl: FAILED" in done.stderr
    status = json.loads((job / "attempts" / "2" / f"worker-{WORKER}.json").read_text())
    assert status["state"] == "failed"
    assert "installing" in status["message"]
    assert "FAILED" in (job / "attempts" / "2" / f"worker-{WORKER}.log").read_text()
    assert "/uv " not in vm.notes


def test_it_installs_from_a_local_directory(tmp_path: Path) -> None:
    job = epath.Path(tmp_path / "jobs" / "tiny")
    stage_software(job)
    vm = Vm(tmp_path / "vm")
    for path in (vm.disk, vm.huge_pages):
        path.parent.mkdir(parents=True)
        path.write_text("madvise")
    done = vm.boot(ATTRIBUTES | {"bert-jax-job": str(job)})
    assert f"/mount -o ro,noload {vm.disk} {tmp_path}/vm/mnt/disks/data\n" in vm.notes
    assert done.stdout.splitlines()[-1].startswith(f"{job}|2|{WORKER}|"), done.stderr
    assert vm.huge_pages.read_text() == "always\n"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("BERT_JAX_WORKER", "a[$(touch pwned)]"),
        ("BERT_JAX_ATTEMPT", "1;touch pwned"),
        ("TPU_WORKER_ID", "x[$(touch pwned)]+1"),
        ("MEGASCALE_SLICE_ID", "`touch pwned`"),
        ("BERT_JAX_JOB", "$(touch pwned)"),
        ("BERT_JAX_JOB", "gs://b"),
    ],
)
def test_an_invalid_value_is_refused_and_never_run(tmp_path: Path, name: str, value: str) -> None:
    given = {"BERT_JAX_JOB": "/nowhere", "BERT_JAX_ATTEMPT": "1", "BERT_JAX_PYTHON": "/bin/false"}
    done = subprocess.run(
        ["bash", str(STARTUP)],
        env={"PATH": os.environ["PATH"], **given, name: value},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 2
    assert f'found "{value}", allowed:' in done.stderr
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("environment", "worker"),
    [
        ({}, "0"),
        ({"JOB_COMPLETION_INDEX": "1"}, "1"),
        ({"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a,b"}, "1"),
        (
            {"TPU_WORKER_ID": "1", "TPU_WORKER_HOSTNAMES": "a,b,c,d", "MEGASCALE_SLICE_ID": "08"},
            "33",
        ),
        ({"TPU_WORKER_ID": "1", "BERT_JAX_WORKER": "7"}, "7"),
    ],
)
def test_a_container_counts_hosts_over_all_slices(
    tmp_path: Path, environment: dict[str, str], worker: str
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf %s "$BERT_JAX_WORKER $*"\n')
    python.chmod(0o755)
    given = {"BERT_JAX_JOB": "gs://b/jobs/tiny", "BERT_JAX_ATTEMPT": "1"}
    done = subprocess.run(
        ["bash", str(STARTUP)],
        env={"PATH": os.environ["PATH"], "BERT_JAX_PYTHON": str(python), **given, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=True,
    )
    assert done.stdout == f"{worker} -m bert_jax.launch.host"
