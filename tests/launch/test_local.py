"""This machine as a cloud: any process can list its hosts, and none survive deletion."""

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bert_jax.launch import local_launcher as local
from bert_jax.launch.job import Attempt, Job, JobPlacement
from bert_jax.launch.launcher import NotOurs, State
from bert_jax.launch.local_launcher import LocalLauncher
from bert_jax.launch.section import SubmitSection
from tests.project import ok, project_config, refuses, write_config

# A host whose run has its own session: signals to the host's group do not reach the run.
SCRIPT = """
trap 'echo saved >> "$BERT_JAX_JOB/host-$BERT_JAX_WORKER"; exit 3' TERM
echo "started $BERT_JAX_ATTEMPT $BERT_JAX_COORDINATOR" >> "$BERT_JAX_JOB/host-$BERT_JAX_WORKER"
setsid bash -c 'echo $$ > "$BERT_JAX_JOB/run-$BERT_JAX_WORKER"; exec sleep 600' &
while :; do sleep 0.05; done
"""


def job_in(directory: Path, *, hosts: int = 2) -> Job:
    return Job(
        name="base",
        run_dir=str(directory / "run"),
        working_directory=str(directory),
        submit=SubmitSection(name="base", bucket=str(directory), on=("local",), hosts=hosts),
        placements=(JobPlacement(on="local", dollars_per_hour=0.0),),
        version="0.2.0",
        submitted=0.0,
    )


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempt:
    monkeypatch.setattr(local, "startup_script", lambda: SCRIPT)
    job = job_in(tmp_path)
    job.directory.mkdir(parents=True)
    return Attempt(job, 1, job.placements[0])


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalLauncher]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    launcher = LocalLauncher()
    yield launcher
    for existing in launcher.existing():
        launcher.remove(existing)


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def lines(attempt: Attempt, worker: int) -> list[str]:
    path = Path(attempt.job.directory) / f"host-{worker}"
    return path.read_text().splitlines() if path.exists() else []


def runs(attempt: Attempt) -> list[int]:
    paths = sorted(Path(attempt.job.directory).glob("run-*"))
    return [int(path.read_text()) for path in paths if path.read_text().strip()]


def lives(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def test_hosts_are_listed_started_once_and_may_save(
    launcher: LocalLauncher, attempt: Attempt, tmp_path: Path
) -> None:
    assert launcher.observe(attempt).state is State.ABSENT
    launcher.create(attempt)
    launcher.create(attempt)  # as a new supervisor does
    eventually(lambda: len(runs(attempt)) == 2)
    elsewhere = LocalLauncher()
    assert elsewhere.observe(attempt).state is State.ACTIVE
    (existing,) = elsewhere.existing()
    assert (existing.owner.job, existing.resource, existing.bills) == ("base", "base-1", True)
    assert existing.owner.directory == str(attempt.job.directory)

    processes = runs(attempt)
    elsewhere.delete(attempt)
    elsewhere.delete(attempt)
    assert elsewhere.existing() == []
    assert not any(map(lives, processes))
    (port,) = {lines(attempt, worker)[0].rpartition(":")[2] for worker in (0, 1)}
    for worker in (0, 1):
        assert lines(attempt, worker) == [f"started 1 127.0.0.1:{port}", "saved"]


def test_ended_hosts_count_as_failed(
    launcher: LocalLauncher, attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "startup_script", lambda: "exit 2")
    launcher.create(attempt)
    eventually(lambda: launcher.observe(attempt).state is State.FAILED)


def test_another_directorys_hosts_are_left_alone(
    launcher: LocalLauncher, attempt: Attempt, tmp_path: Path
) -> None:
    launcher.create(attempt)
    other = job_in(tmp_path / "other")
    theirs = Attempt(other, 1, other.placements[0])
    owner = str(attempt.job.directory)
    with refuses("submit.name_taken", kind=NotOurs, found="base-1", owner=owner):
        launcher.create(theirs)
    assert launcher.observe(theirs).state is State.ABSENT
    launcher.delete(theirs)
    assert launcher.observe(attempt).state is State.ACTIVE


# A host that reports its run as done, and ends.
DONE = """
mkdir -p "$BERT_JAX_JOB/attempts/$BERT_JAX_ATTEMPT"
cd "$BERT_JAX_JOB/attempts/$BERT_JAX_ATTEMPT"
echo '{"state": "done", "exit_code": 0, "at": 1.0, "step": 7}' > "report-$BERT_JAX_WORKER"
mv "report-$BERT_JAX_WORKER" "worker-$BERT_JAX_WORKER.json"
"""


def test_a_local_job_is_submitted_watched_and_deleted(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real command line with real processes; test_host.py tests the agent."""
    monkeypatch.setattr(local, "startup_script", lambda: DONE)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    values: dict[str, Any] = project_config(project)
    values |= {"run_dir": str(tmp_path / "run")}
    values["submit"] = {"poll_seconds": 0.05}
    values["mesh"] |= {"data": -1}
    config = write_config(tmp_path / "run.yaml", values)
    options = ("--on", "local", "--hosts", 2, "--bucket", tmp_path / "b", "--watch", "--yes")
    said = ok("submit", config, *options)
    assert said.splitlines()[-1].startswith("run: done after 0:0"), said
    assert "no process is running" not in said
    assert ok("jobs").splitlines()[-1] == "no machines"
    shown = ok("status", tmp_path / "run")
    assert shown.startswith(f"job        run ({tmp_path}/b/jobs/run)\n")
    assert shown.splitlines()[-1].startswith("end        done: at step 7")
