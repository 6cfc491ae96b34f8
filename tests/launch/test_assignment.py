"""The agent's input, and its additions to the run's command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bert_jax.config import load_config
from bert_jax.launch.assignment import JAX_CACHE, Assignment, read_assignment, read_environment
from bert_jax.launch.job import JobPlacement
from bert_jax.launch.section import LauncherName
from tests.launch.jobs import write_job
from tests.project import ROOT, refuses
from tests.storage.cloud import Cloud


def assignment(
    directory: Path,
    placement: JobPlacement,
    *,
    worker: int = 0,
    launcher: LauncherName = "queued-resources",
    port: int | None = None,
    **variables: str,
) -> Assignment:
    config = {
        "run_dir": str(directory / "run"),
        "loader": {"cache": {}},
        "mesh": {"distributed": {"coordinator_port": port}},
    }
    files = write_job(directory, config, hosts=3, placement=placement, launcher=launcher)
    values = {
        "BERT_JAX_JOB": str(files.directory),
        "BERT_JAX_ATTEMPT": "1",
        "BERT_JAX_WORKER": str(worker),
    }
    return read_assignment(read_environment(values | variables))


def test_a_tpu_gets_platform_slices_and_a_lasting_cache(tmp_path: Path) -> None:
    placement = JobPlacement(on="v5e:4x4", slices=2, zone="z")
    found = assignment(tmp_path, placement, worker=7, BERT_JAX_HOME="/d: $(x)")
    verb, config, *overrides = found.command[3:]
    assert (verb, config) == ("pretrain", str(found.host.files.config))
    assert overrides == [
        "mesh.platform=tpu",
        "mesh.slices=2",
        "mesh.distributed.enabled=true",
        "mesh.distributed.coordinator_port=8476",  # 8482 is closed on new v6e slices
        'loader.cache.directory="/d: $(x)/datasets"',
    ]
    assert found.environment == {JAX_CACHE: f"{found.host.files.directory}/compiled"}


@pytest.mark.parametrize(
    ("on", "launcher", "given", "port"),
    [
        ("v6e:4x4", "queued-resources", None, 8476),
        ("v6e:4x4", "queued-resources", 8482, 8482),
        ("v6e:2x2", "queued-resources", None, 8482),  # one host
        ("v6e:4x4", "gke", None, 8482),
        ("local", "queued-resources", None, 8482),
    ],
)
def test_hosts_of_cloud_tpu_meet_on_a_port_that_the_firewall_opens(
    tmp_path: Path, on: str, launcher: LauncherName, given: int | None, port: int
) -> None:
    found = assignment(tmp_path, JobPlacement(on=on), launcher=launcher, port=given)
    config = load_config(found.command[4], found.command[5:])
    assert config.mesh.distributed.port == port


def test_local_processes_get_their_meeting_address(tmp_path: Path) -> None:
    found = assignment(
        tmp_path, JobPlacement(on="local"), worker=2, BERT_JAX_COORDINATOR="127.0.0.1:99"
    )
    assert found.command[5:] == [
        "mesh.distributed.enabled=true",
        "mesh.distributed.coordinator_address=127.0.0.1:99",
        "mesh.distributed.process_count=3",
        "mesh.distributed.process_index=2",
    ]
    assert found.environment == {}


def test_a_host_outside_the_attempt_is_refused(tmp_path: Path) -> None:
    with refuses("host.worker", place="BERT_JAX_WORKER", found=3, hosts=3):
        assignment(tmp_path, JobPlacement(on="local"), worker=3)


def test_jax_finds_compiled_programs_in_a_bucket(cloud: Cloud) -> None:
    compiled = cloud.make_bucket() / "jobs" / "tiny" / "compiled"
    program = (
        "import bert_jax.files.remote, jax\n"
        "hits = []\n"
        "jax.monitoring.register_event_listener(lambda name, **_: hits.append(name))\n"
        "for _ in range(2):\n"
        "    hits.clear()\n"
        "    jax.clear_caches()\n"
        "    jax.jit(lambda x: (x @ x).sum())(jax.numpy.ones((8, 8))).block_until_ready()\n"
        "    print(any('cache_hits' in name for name in hits))"
    )
    variables = {JAX_CACHE: str(compiled), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | variables | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["False", "True"]
