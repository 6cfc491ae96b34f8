"""A host started by the startup script: real training of a tiny BERT, killed and stopped."""

import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from bert_jax.launch.job import HostStatus
from tests.launch.jobs import host, write_job
from tests.project import project_config


@pytest.fixture
def config(project: Path, tmp_path: Path) -> dict[str, Any]:
    values = project_config(project)
    values["run_dir"] = str(tmp_path / "run")
    values["mesh"] = {"platform": "cpu", "simulated_devices": 1}
    train = values["train"]
    train["phases"] = [train["phases"][0] | {"steps": 100_000}]
    train |= {"evaluation": None, "log_every": 1, "checkpoint": {"every": 100_000}}
    return values


def of_training(status: HostStatus) -> bool:
    return status.state == "running" and bool(status.step)


def trains_again(status: HostStatus) -> bool:
    # Until the first step of the new process, the status has the last step of the old one.
    return of_training(status) and (status.step or 0) > (status.endings[-1].step or 0)


def test_a_host_resumes_saves_and_never_runs_user_text(
    config: dict[str, Any], project: Path, tmp_path: Path
) -> None:
    """Names with shell metacharacters pass through the script to a training run."""
    trap = tmp_path / "pwned"
    hostile = f"a b;touch {trap.name}\n$(touch {trap.name})`touch {trap.name}`\"'&|>x"
    root = tmp_path / hostile.replace("/", "")
    root.mkdir()
    config["run_dir"] = str(root / "run $(touch pwned)")
    config["tokenizer"] = str(root / "tokenizer`touch pwned`")
    config["train"]["phases"][0]["dataset"] = str(root / "data\n$(touch pwned)")
    shutil.copytree(project / "tokenizer", config["tokenizer"])
    shutil.copytree(project / "dataset32", config["train"]["phases"][0]["dataset"])
    files = write_job(root, config)
    with host(files, cwd=str(tmp_path), BERT_JAX_HOME=str(root / "home")) as started:
        started.until(of_training)
        (run,) = psutil.Process(started.process.pid).children()
        run.kill()
        status = started.until(lambda status: status.restarts == 1 and trains_again(status))
        (ending,) = status.endings
        assert (ending.exit_code, ending.message) == (137, "killed by SIGKILL")
        assert ending.step
        assert status.loss is not None
        assert sum(status.goodput.values()) == pytest.approx(1, abs=0.01)

        started.process.send_signal(signal.SIGTERM)
        assert started.wait() == 3, started.log
    status = started.status
    assert status is not None
    assert (status.state, status.exit_code) == ("stopped", 3)
    assert f"stopped at step {status.step}, saved" in started.log
    assert (Path(config["run_dir"]) / "checkpoints" / str(status.step)).exists()
    assert not list(tmp_path.rglob("pwned"))
