"""A whole job on a simulated TPU service and a Cloud Storage emulator.

Its machines are local processes, started by the startup script as on a TPU VM. They stage the
dataset from the bucket, pretrain, and are preempted. The job still finishes.
"""

import contextlib
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from etils import epath
from google.cloud import tpu_v2

from bert_jax.cli.commands import cli
from bert_jax.config import load_config
from bert_jax.errors import UserError
from bert_jax.launch.job import JobFiles
from bert_jax.launch.local_launcher import LocalMachine
from bert_jax.launch.request_retries import RequestLimits
from bert_jax.launch.tpu_launcher import QueuedResources
from bert_jax.verbs import submit as submit_verb
from tests.launch.interrupted import (
    TIMEOUT,
    assert_done_as_undisturbed,
    processes_with,
    run_undisturbed,
    saved_often,
    wait_until,
)
from tests.launch.tpu_service import PROJECT, TpuService
from tests.project import environment, write_config
from tests.storage.cloud import Cloud

pytestmark = pytest.mark.usefixtures("cpu_hosts")


class Hosts:
    """Hosts of the simulated service: each runs the startup script with its metadata."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self._directory, self._environment = directory, environment

    def start(self, name: str, node: tpu_v2.Node) -> None:
        directory = self._directory / name
        directory.mkdir(parents=True)
        script = directory / "startup.sh"
        script.write_text(node.metadata["startup-script"])
        variables = {
            "BERT_JAX_JOB": node.metadata["bert-jax-job"],
            "BERT_JAX_ATTEMPT": node.metadata["bert-jax-attempt"],
            "BERT_JAX_WORKER": "0",
            "BERT_JAX_PYTHON": sys.executable,
            "BERT_JAX_HOME": str(directory / "home"),
        }
        LocalMachine(directory).start(0, script, self._environment | variables, cwd=None)

    def stop(self, name: str) -> None:
        """Ends a host as a preemption does: SIGTERM, then SIGKILL."""
        if (self._directory / name).exists():
            LocalMachine(self._directory / name).kill([0])


def on_bucket(bucket: epath.Path, project: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Copies the inputs of a run into the bucket. Returns a configuration with relative paths."""
    for name in ("tokenizer", "dataset32"):
        for path in (project / name).rglob("*"):
            if path.is_file():
                target = bucket / "data" / path.relative_to(project)
                target.write_bytes(path.read_bytes())
    phase = values["train"]["phases"][0] | {"dataset": "data/dataset32"}
    train = values["train"] | {"phases": [phase]}
    return values | {"tokenizer": "data/tokenizer", "run_dir": "runs/base", "train": train}


@pytest.mark.parametrize("answer", [True, False])
def test_submit_rents_a_slice_only_after_confirmation(
    cloud: Cloud, project: Path, tmp_path: Path, answer: bool
) -> None:
    bucket = cloud.make_bucket()
    path = write_config(tmp_path / "run.yaml", on_bucket(bucket, project, saved_often(project)))
    settings = [
        *("submit.on=v5litepod-4", "submit.zone=us-west4-a", f"submit.project={PROJECT}"),
        *(f"submit.bucket={bucket}", "submit.limits.cost=9"),
    ]
    questions: list[str] = []

    def confirm(question: str) -> bool:
        questions.append(question)
        return answer

    service = TpuService(clock=time.time)
    refusal = contextlib.nullcontext() if answer else pytest.raises(UserError, match="--yes")
    with service.serving(), refusal:
        submit_verb.submit(load_config(path, settings), planned=False, confirm=confirm)
    assert len(questions) == 1
    assert len(service.made) == int(answer)
    assert (bucket / "jobs").exists() == answer


@pytest.mark.chaos
def test_a_slice_preempted_in_mid_run_is_replaced(
    cloud: Cloud, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = saved_often(project)
    undisturbed = run_undisturbed(values, tmp_path)

    bucket = cloud.make_bucket()
    config = write_config(tmp_path / "run.yaml", on_bucket(bucket, project, values))
    machines = Hosts(tmp_path / "machines", environment() | cloud.environment)
    service = TpuService(start=machines.start, stop=machines.stop, clock=time.time)
    quick = RequestLimits(poll=0.1)
    monkeypatch.setattr(
        submit_verb, "launcher_for", lambda section: QueuedResources(section.project, pace=quick)
    )
    options = [
        *("--on", "v5litepod-4", "--zone", "us-west4-a", "--project", PROJECT, "--spot"),
        *("--bucket", str(bucket), "--yes", "--watch", "--no-plan", "--no-limit"),
        "submit.poll_seconds=0.4",
    ]
    with service.serving():
        results = []
        user = threading.Thread(
            target=lambda: results.append(
                CliRunner().invoke(cli, ["submit", str(config), *options])
            )
        )
        user.start()
        files = JobFiles(bucket / "jobs" / "base")

        def said() -> str:
            logs = [path.read_text() for path in (tmp_path / "machines").rglob("*.log")]
            return "\n".join([*(result.output for result in results), *logs])

        saved = bucket / "runs" / "base" / "checkpoints"
        wait_until(
            lambda: (
                bool(results)
                or (saved.exists() and any(path.name.isdigit() for path in saved.iterdir()))
            ),
            said,
        )
        assert not results, said()
        service.suspend("base-1")
        user.join(TIMEOUT)
        (result,) = results
        assert result.exit_code == 0, said()
        assert service.billing() == []
        assert service.phase("base-1") is service.phase("base-2") is None
        assert service.machines_ever == 2

    run_dir = bucket / "runs" / "base"
    assert_done_as_undisturbed(files, ["taken", "over"], run_dir, undisturbed, said=said())
    assert not processes_with(f"BERT_JAX_HOME={tmp_path}")
