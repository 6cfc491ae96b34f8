"""`status`, `logs` and `jobs` read a job from its directory alone."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from bert_jax.cli.commands import cli
from bert_jax.errors import UserError
from bert_jax.launch.job import RUN_JOB, Attempt, Ending, HostStatus, JobFiles, JobPlacement
from bert_jax.launch.launcher import Launcher, Observation, State
from bert_jax.launch.retry_policy import AttemptRecord, SupervisorState, write_state
from bert_jax.launch.status import read_run_status, read_status
from bert_jax.train.time_account import KINDS
from bert_jax.verbs.jobs import Machines, find_existing
from bert_jax.verbs.logs import read_log
from bert_jax.verbs.status import describe_status
from tests.launch.jobs import write_job
from tests.launch.scripted import HOUR, World
from tests.project import refused, says

T0 = 1_767_225_600.0  # 2026-01-01 00:00 UTC


class Seen:
    def __init__(self, seen: Observation | UserError) -> None:
        self._seen = seen

    def observe(self, attempt: Attempt) -> Observation:
        if isinstance(self._seen, UserError):
            raise self._seen
        return Observation(self._seen.state, f"{attempt.resource}: {self._seen.message}")


def launcher(state: State = State.ACTIVE, message: str = "ready") -> Launcher:
    return cast("Launcher", Seen(Observation(state, message)))


def write_metrics(run: Path, lines: list[dict[str, Any]]) -> None:
    run.mkdir(parents=True, exist_ok=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def account(step: int, at: float, *, starts: int, **seconds: float) -> dict[str, Any]:
    figures = dict.fromkeys(KINDS, 0.0) | seconds
    return {"kind": "goodput", "step": step, "starts": starts, "finished": 0, "at": at} | figures


@pytest.fixture
def files(tmp_path: Path) -> JobFiles:
    """A job of two hosts: preempted after an hour, running again for an hour."""
    config = {
        "run_dir": str(tmp_path / "run"),
        "train": {"phases": [{"dataset": "d", "steps": 700}, {"dataset": "d", "steps": 300}]},
    }
    placement = JobPlacement(on="local", dollars_per_hour=10.0)
    files = write_job(tmp_path, config, hosts=2, placement=placement)
    write_metrics(
        tmp_path / "run",
        [
            {"kind": "train", "step": 100, "loss": 8.0},
            account(100, T0 + 0.9 * HOUR, starts=1, train=0.5 * HOUR),
            {"kind": "train", "step": 200, "loss": 7.0},
            account(200, T0 + 2.0 * HOUR, starts=2, train=0.6 * HOUR, compile=0.2 * HOUR),
            {"kind": "train", "step": 300, "loss": 6.5},
            {"kind": "speed", "step": 300, "tokens_per_second": 81_000.0, "mfu": 0.412},
            account(
                300,
                T0 + 2.5 * HOUR,
                starts=2,
                train=1.0 * HOUR,
                compile=0.2 * HOUR,
                lost=0.1 * HOUR,
                down=1.0 * HOUR,
            ),
        ],
    )
    taken = AttemptRecord(
        number=1,
        placement=0,
        intended=T0,
        created=T0,
        bills_from=T0,
        state=State.SUSPENDED,
        end="taken",
        reason="suspended: preempted",
        deleted=T0 + HOUR,
        step=100,
    )
    again = AttemptRecord(
        number=2,
        placement=0,
        intended=T0 + 1.5 * HOUR,
        bills_from=T0 + 1.5 * HOUR,
        state=State.STARTING,
    )
    write_state(files, SupervisorState(attempts=(taken, again), seen=T0 + 2.4 * HOUR))
    hung = Ending(at=T0 + 2.2 * HOUR, exit_code=43, step=250, message="a step hangs")
    lost = Ending(at=T0 + 2.2 * HOUR, exit_code=4, step=250, message="process 1 is gone")
    for worker, ending in ((0, lost), (1, hung)):
        report = HostStatus(state="running", at=T0 + 2.5 * HOUR, step=300, endings=(ending,))
        path = files.host(2, worker)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(report.model_dump_json())
    return files


def test_the_lines_of_a_running_job(files: JobFiles) -> None:
    status = read_status(files, launcher(), now=T0 + 2.5 * HOUR)
    assert describe_status(status) == [
        f"job        tiny ({files.directory})",
        f"run        {status.run_dir}",
        "machines   attempt 2, local: active (tiny-2: ready)",
        "hosts      2 running",
        "supervisor last at 2026-01-01 02:24 UTC, 0:06:00 ago",
        "step       300 of 1,000 (30.0%), loss 6.500, 81,000 tokens/s, MFU 41.2%",
        "goodput    50.0% of 2.00 paid hours trained; no run 35.0%, compile 10.0%, lost 5.0%",
        "restarts   1 of machines, 1 of a host's run",
        "           2026-01-01 01:00 UTC machines at step 100: attempt 1: suspended: preempted",
        "           2026-01-01 02:12 UTC host 1 at step 250: exit code 43: a step hangs",
        "cost       $20.00 so far, about $55.00 in all",
        "ETA        2026-01-01 06:00 UTC, in 3:30:00 of training",
    ]


def test_without_credentials_the_last_known_state_is_shown(
    files: JobFiles,
) -> None:
    broken = cast("Launcher", Seen(UserError("test.login", "no credentials")))
    status = read_status(files, broken, now=T0 + 3 * HOUR)
    assert status.job is not None
    assert status.job.machines is State.STARTING
    (line,) = (line for line in describe_status(status) if line.startswith("machines"))
    assert "starting (" in line
    assert line.endswith(": no credentials), 0:36:00 ago")


def test_an_ended_job_shows_its_end_and_cost(files: JobFiles) -> None:
    state = SupervisorState(
        attempts=(
            AttemptRecord(
                number=1,
                placement=0,
                intended=T0,
                bills_from=T0,
                end="over",
                reason="at step 300",
                deleted=T0 + HOUR,
            ),
        ),
        outcome="failed",
        message="loss is not finite; dump: bad_step_300",
        seen=T0 + HOUR,
    )
    write_state(files, state)
    lines = describe_status(read_status(files, launcher(), now=T0 + 9 * HOUR))
    assert "end        failed: loss is not finite; dump: bad_step_300" in lines
    assert "cost       $10.00 so far" in lines
    assert not [line for line in lines if line.startswith(("ETA", "hosts", "supervisor"))]


def test_time_before_the_job_does_not_count(files: JobFiles, tmp_path: Path) -> None:
    """A run started by hand, then submitted."""
    last = AttemptRecord(number=1, placement=0, intended=T0 + HOUR, bills_from=T0 + HOUR)
    write_state(files, SupervisorState(attempts=(last,)))
    seconds = read_status(files, None, now=T0 + 3 * HOUR).run.seconds
    assert (seconds["train"], seconds["compile"]) == (0.5 * HOUR, 0.2 * HOUR)


def test_a_run_started_by_hand(files: JobFiles, tmp_path: Path) -> None:
    (tmp_path / "run" / "config.yaml").write_text(files.config.read_text())
    (tmp_path / "run" / "report.html").touch()
    status = read_run_status(tmp_path / "run", now=T0 + 3.5 * HOUR)
    lines = describe_status(status)
    assert lines[0] == f"run        {tmp_path / 'run'}"
    assert lines[1].startswith("step       300 of 1,000 (30.0%)")
    assert lines[1].endswith("1:00:00 ago")
    assert lines[2].startswith("goodput    43.5% of 2.30 hours trained; down 43.5%")
    assert lines[3] == f"report     {tmp_path / 'run' / 'report.html'}"


def test_a_log_is_read_in_parts_and_followed_to_the_end(files: JobFiles) -> None:
    files.log(2, 1).write_text("one\n")
    steps: Iterator[Any] = iter(
        [
            lambda: files.log(2, 1).write_text("one\ntwo\n"),
            lambda: files.log(2, 1, 1).write_text("three\n"),
            lambda: files.host(2, 1).write_text(HostStatus(state="done", at=T0).model_dump_json()),
        ]
    )
    followed = list(read_log(files, 2, 1, follow=True, pause=lambda: next(steps)()))
    assert followed == [b"one\n", b"two\n", b"three\n"]
    assert list(read_log(files, 2, 1)) == [b"one\ntwo\n", b"three\n"]


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_a_job_is_found_by_run_directory_and_name(files: JobFiles, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    (run_dir / RUN_JOB).write_text(f"{files.directory}\n")
    files.log(2, 1).write_text("hello\n")
    bucket = ("--bucket", str(tmp_path))
    for target in ((str(run_dir),), (str(files.directory),), ("tiny", *bucket)):
        shown = run("status", *target)
        assert shown.exit_code == 0, shown.output
        assert shown.output.startswith(f"job        tiny ({files.directory})\n")
        assert run("logs", *target, "--worker", "1").output == "hello\n"
    as_json = json.loads(run("status", str(run_dir), "--json").stdout)
    assert as_json["job"]["restarts"][1]["what"] == "host 1"


def test_missing_jobs_are_named(files: JobFiles, tmp_path: Path) -> None:
    (tmp_path / "neighbour").mkdir()
    nowhere = refused("status", tmp_path / "neighbur")
    says(nowhere, key="job.unknown", place=f"{tmp_path}/neighbur")
    missing = refused("status", "tinny", "--bucket", tmp_path)
    says(missing, key="job.unknown", allowed=["tiny"])
    assert 'did you mean "tiny"?' in str(missing)
    (tmp_path / "run" / "config.yaml").write_text("{}")
    by_hand = refused("logs", tmp_path / "run")
    says(by_hand, key="job.not_submitted", place=str(tmp_path / "run"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A job submitted five hours ago, without a supervisor."""
    world = World(tmp_path)
    world.clock.now = time.time() - 5 * HOUR
    world.supervisor().run(ask_only=True)
    return world


def found(world: World) -> Machines:
    (only,) = find_existing([world.launcher], bucket=None, say=world.said.append)
    return only


def test_unwatched_machines_with_silent_hosts_are_orphans(world: World) -> None:
    world.launcher.become("base-1", State.ACTIVE)
    # No supervisor has seen the machines: they may be new.
    assert (found(world).orphan, found(world).note) == ("", "not watched")
    world.supervisor()._poll()
    assert found(world).orphan == "not started within 300 min"
    world.beat(1)
    assert found(world).orphan == "silent for 300 min"
    world.clock.now = time.time()
    world.beat(1, workers=(1,))
    assert found(world).orphan == ""


def test_a_damaged_heartbeat_does_not_hide_billing(world: World) -> None:
    world.launcher.become("base-1", State.ACTIVE)
    world.beat(1)
    world.files.host(1, 1).write_text("{")
    assert found(world).orphan == ""
    assert found(world).note.startswith("not watched, its hosts' reports are unreadable: ")
    assert world.said == ["base-1: attempt 1: requested v4:2x2x2 in us-west4-a"]
