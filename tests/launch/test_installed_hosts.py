"""Hosts install the staged lock: from a package index, into an empty environment."""

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from etils import epath

from bert_jax.files.host_lock import Lock, host_lock
from bert_jax.launch.bundle import installer
from bert_jax.launch.job import HostStatus, JobFiles
from bert_jax.launch.retry_policy import read_state
from tests.launch.cloud_vm import Vm
from tests.launch.interrupted import STEPS, saved_often, wait_until
from tests.launch.jobs import write_job
from tests.launch.scripted import Provider
from tests.project import ROOT, ok, refused, says, write_config

pytestmark = pytest.mark.slow

EXTRAS = "fast,gcp,hub,mlperf"
# uv finds a Python of pyenv in PATH only; without one, uv downloads it.
_PYENV = ":".join(map(str, Path.home().glob(".pyenv/versions/*/bin")))
ONLINE = {"UV_SYSTEM_CERTS": "1", "PATH": f"{os.environ['PATH']}:{_PYENV}"}


def _staged(config: Path, bucket: Path, lock: Lock) -> Path:
    """Submits a job to a scripted launcher; returns the folder of its staged software."""
    ok("submit", config, "--bucket", bucket, "--name", "staged", f"submit.lock={lock}")
    return bucket / "jobs" / "staged" / "software"


def _unpacked(archive: Path, directory: Path) -> Path:
    """Returns the program of uv's wheel."""
    with zipfile.ZipFile(archive) as files:
        (program,) = (name for name in files.namelist() if name.endswith("/scripts/uv"))
        uv = Path(files.extract(program, directory))
    uv.chmod(0o755)
    return uv


@pytest.mark.parametrize("lock", ["tpu", "gpu"])
def test_the_staged_files_resolve(
    provider: Provider, config: Path, tmp_path: Path, lock: Lock
) -> None:
    software = _staged(config, tmp_path / "b", lock)
    (archive,) = software.glob("uv-*.whl")
    uv = _unpacked(archive, tmp_path)

    def resolve(*requirements: str) -> str:
        done = subprocess.run(
            [
                *(str(uv), "pip", "install", "--dry-run", "--no-build"),
                *("--target", str(tmp_path / "t")),
                *("--python-version", (software / "python-version").read_text().strip()),
                *("--python-platform", "x86_64-manylinux_2_31", *requirements),
            ],
            env=os.environ | ONLINE,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    count = len(host_lock(lock).versions)
    requirements = str(software / "requirements.txt")
    said = resolve("--require-hashes", "--requirement", requirements)
    assert f"Resolved {count} packages" in said
    # The wheel needs nothing outside the lock.
    (wheel,) = software.glob("bert_jax-*.whl")
    package = f"bert-jax[{lock},{EXTRAS}] @ {wheel.as_uri()}"
    said = resolve(package, "--constraint", requirements)
    assert f"Resolved {count + 1} packages" in said


def test_versions_are_printed_and_a_lock_elsewhere_is_refused(
    provider: Provider, config: Path, tmp_path: Path
) -> None:
    lock = host_lock("tpu").versions
    options = ("--bucket", tmp_path / "b", "submit.lock=tpu", "--dry-run")
    line = next(line for line in ok("submit", config, *options).splitlines() if "libtpu" in line)
    assert f"jax {lock['jax']}, libtpu {lock['libtpu']}" in line
    cloud = ("--on", "v5e:2x2", "--zone", "us-west4-a", "--project", "p", "--bucket", "gs://b-1")
    refusal = refused("submit", config, *cloud, "submit.lock=gpu", "--dry-run")
    says(refusal, key="submit.lock_local", found="gpu")


def test_an_environment_of_uv_without_pip_downloads_the_same_installer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((name, wheel),) = installer().items()
    (tmp_path / name).write_bytes(wheel)
    uv = _unpacked(tmp_path / name, tmp_path)
    monkeypatch.setenv("UV_SYSTEM_CERTS", "1")
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert installer() == {name: wheel}


def test_a_missing_installer_is_one_line(
    provider: Provider, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    refusal = refused("submit", config, "--bucket", tmp_path / "b", "submit.lock=tpu")
    assert (refusal.key, refusal.place[:4]) == ("install.uv", "uv==")
    assert not (tmp_path / "b" / "jobs" / "bert-small-1" / "job.json").exists()


def _facts(python: Path) -> dict[str, str]:
    """Returns the versions in the environment of a Python, and the file of bert_jax."""
    program = (
        "import json, bert_jax, jax, libtpu; from importlib.metadata import version as v;"
        "print(json.dumps({n: v(n) for n in ('jax', 'jaxlib', 'libtpu', 'flax', 'numpy')}"
        " | {'file': bert_jax.__file__}))"
    )
    done = subprocess.run(
        [python, "-c", program], capture_output=True, check=True, cwd=python.parent
    )
    return json.loads(done.stdout)


@pytest.mark.chaos
def test_hosts_install_the_lock_and_train(
    project: Path, tmp_path: Path, provider: Provider, config: Path
) -> None:
    """A VM with fake metadata, then `submit --on local` with a kill: one environment for both."""
    home = tmp_path / "home"
    values: dict[str, Any] = saved_often(project) | {"run_dir": str(tmp_path / "vm-run")}
    files = write_job(tmp_path / "vm-jobs", values)
    shutil.copytree(_staged(config, tmp_path / "b", "tpu"), Path(files.directory) / "software")
    vm = Vm(tmp_path / "vm")
    attributes = {
        **{"bert-jax-job": str(files.directory), "bert-jax-attempt": "1"},
        **{"agent-worker-number": "0", "worker-network-endpoints": "a", "tpu-env": ""},
    }
    done = vm.boot(
        attributes,
        **{"BERT_JAX_HOME": str(home), "TPU_SKIP_MDS_QUERY": "1", "UV_SYSTEM_CERTS": "1"},
        **{"PATH": f"{tmp_path}/vm/bin:{ONLINE['PATH']}"},
        **{"UV_OFFLINE": "0", "UV_PYTHON_DOWNLOADS": "automatic"},
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    status = HostStatus.model_validate_json(files.host(1, 0).read_text())
    assert (status.state, status.step) == ("done", STEPS)
    (python,) = (home / "environments").glob("*/bin/python")
    facts = _facts(python)
    assert facts.pop("file").startswith(str(home))
    lock = host_lock("tpu").versions
    assert facts == {name: lock[name] for name in facts}

    environment = dict(os.environ) | ONLINE
    # These variables are for the JAX of the tests.
    for name in ("JAX_NUM_CPU_DEVICES", "XLA_FLAGS", "TPU_LIBRARY_PATH"):
        environment.pop(name, None)
    environment |= {"BERT_JAX_HOME": str(home), "XDG_STATE_HOME": str(tmp_path / "state")}
    environment |= {"TPU_SKIP_MDS_QUERY": "1", "BERT_JAX_PAUSE_SECONDS": "0.5"}
    planned = subprocess.run(
        [python, "-m", "bert_jax.cli", "plan", files.config, "--topology", "v5e:2x2"],
        env=environment,
        cwd=home,
        capture_output=True,
        text=True,
        check=False,
    )
    assert planned.returncode == 0, planned.stderr
    said = " ".join(planned.stdout.split())
    assert f"Compiled with jax {lock['jax']} and libtpu {lock['libtpu']}, the versions" in said

    values |= {"run_dir": str(tmp_path / "run"), "submit": {"poll_seconds": 0.5}}
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "bert_jax.cli", "submit", "run.yaml", "--on", "local"),
            *("--bucket", "jobs", "--watch", "--yes", "submit.lock=tpu"),
        ],
        cwd=write_config(tmp_path / "run.yaml", values).parent,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as submitted:
        saved = tmp_path / "run" / "checkpoints"
        wait_until(
            lambda: submitted.poll() is not None or (saved / "4").exists(),
            lambda: f"no checkpoint in {saved}",
        )
        assert submitted.poll() is None, submitted.communicate()
        for run in psutil.process_iter(["cmdline"]):
            words = run.info["cmdline"] or []
            if "pretrain" in words and words[0].startswith(str(home)):
                run.send_signal(signal.SIGKILL)
        said, _ = submitted.communicate(timeout=600)
    assert submitted.returncode == 0, said
    job = JobFiles(epath.Path(tmp_path / "jobs" / "jobs" / "run"))
    assert read_state(job).outcome == "done", said
    ended = HostStatus.model_validate_json(job.host(1, 0).read_text())
    assert (ended.step, [each.exit_code for each in ended.endings]) == (STEPS, [137, 0])


@pytest.mark.chaos
def test_the_image_installs_the_lock_of_hosts(tmp_path: Path) -> None:
    """Runs the commands of the Dockerfile's first stage, in an environment like its image."""
    source, image = tmp_path / "source", tmp_path / "image"
    for name in (ROOT / ".dockerignore").read_text().splitlines():
        if (path := ROOT / name.removeprefix("!")).is_dir() and name.startswith("!"):
            shutil.copytree(path, source / path.name, symlinks=True)
        elif name.startswith("!"):
            shutil.copy(path, source)
    uv = str(Path(sys.executable).with_name("uv"))
    subprocess.run(
        [uv, "venv", "--seed", "--python", "3.12", image], env=os.environ | ONLINE, check=True
    )
    stage = (ROOT / "tpu_setup" / "Dockerfile").read_text().split("\nFROM ")[1]
    commands = re.findall(r"^RUN ((?:.*\\\n)*.*)$", stage, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        done = subprocess.run(
            ["sh", "-c", command.replace("/opt/bert-jax", str(tmp_path / "bert-jax"))],
            env=os.environ | ONLINE | {"ACCELERATOR": "tpu", "PATH": f"{image}/bin:/usr/bin:/bin"},
            cwd=source,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    facts = _facts(tmp_path / "bert-jax" / "bin" / "python")
    assert facts.pop("file").startswith(str(tmp_path))
    lock = host_lock("tpu").versions
    assert facts == {name: lock[name] for name in facts}
