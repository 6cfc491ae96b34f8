"""The agent, with small programs instead of the run."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Literal

import pytest

from bert_jax.files.atomic import write_whole
from bert_jax.launch.assignment import Assignment, read_environment
from bert_jax.launch.host import Agent, run_agent
from bert_jax.launch.job import Ending, HostStatus, JobFiles
from bert_jax.launch.run_process import (
    COORDINATOR_GONE,
    MOST_MEETINGS,
    MOST_UNCAUGHT,
    NEVER_MET,
    Restarts,
    RunProcess,
)
from tests.launch.jobs import TIMEOUT, write_job

# Each process removes the first entry, [exit code, step], from a list of endings. It reports the
# step, unless null, and ends with the exit code. Before exit code 70 it also saves the step.
PROGRAM = """
import json, os, sys, time
left = json.load(open(sys.argv[1]))
code, step = left.pop(0)
json.dump(left, open(sys.argv[1], "w"))
if step is not None:
    json.dump({"step": step, "loss": 1.5}, open(os.environ["BERT_JAX_HEARTBEAT"], "w"))
    if code == 70:
        os.makedirs(os.path.join(os.path.dirname(sys.argv[1]), "run", "checkpoints", str(step)))
print("bert-jax: because", flush=True)
if code is None:
    time.sleep(600)
sys.exit(code)
"""


class Host:
    def __init__(self, directory: Path, patch: pytest.MonkeyPatch, *, hosts: int = 1) -> None:
        self._directory, self._patch = directory, patch
        self.files: JobFiles = write_job(
            directory, {"run_dir": str(directory / "run")}, hosts=hosts
        )
        self.pause_seconds = "0.02"

    def run(self, *endings: tuple[int | None, int | None]) -> int:
        """Runs the agent to its end. `endings`: (exit code, step) of each process."""
        plan = self._directory / "plan.json"
        plan.write_text(json.dumps(endings))
        command = [sys.executable, "-S", "-c", PROGRAM, str(plan)]
        self._patch.setattr(Assignment, "command", property(lambda _: command))
        settings = read_environment(
            {
                "BERT_JAX_JOB": str(self.files.directory),
                "BERT_JAX_ATTEMPT": "1",
                "BERT_JAX_WORKER": "0",
                "BERT_JAX_BEAT_SECONDS": "0.02",
                "BERT_JAX_PAUSE_SECONDS": self.pause_seconds,
            }
        )
        code = run_agent(settings, self._directory)
        assert json.loads(plan.read_text()) == []
        return code

    @property
    def status(self) -> HostStatus:
        return HostStatus.model_validate_json(self.files.host(1, 0).read_text())


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_the_agent_restarts_the_run_and_records_reasons(host: Host) -> None:
    endings = ((3, 2), (4, 2), (43, 5), (137, 9), (0, 12))
    assert host.run(*endings) == 0
    status = host.status
    assert (status.state, status.step, status.loss, status.restarts) == ("done", 12, 1.5, 4)
    reported = [(ending.exit_code, ending.step, ending.message) for ending in status.endings]
    assert reported == [(code, step, "because") for code, step in endings]
    log = host.files.log(1, 0).read_text()
    assert log.count("bert-jax: because") == 5
    assert "exit code 43: because; restarting in 0.02 s" in log


def test_permanent_errors_end_the_agent(host: Host) -> None:
    assert host.run((2, None)) == 2
    assert (host.status.state, host.status.message) == ("failed", "because")


def test_a_host_stops_after_another_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: Host
) -> None:
    pair = Host(tmp_path / "pair", monkeypatch, hosts=2)
    failed = HostStatus(state="failed", exit_code=1, message="loss is not finite", at=0.0)
    pair.files.host(1, 1).write_text(failed.model_dump_json())
    assert pair.run((4, 3)) == 1
    assert pair.status.message == "host 1: loss is not finite"


def test_a_host_whose_peers_never_meet_gives_up(host: Host) -> None:
    """Without an exit code in the report, the supervisor requests other machines."""
    assert host.run(*[(4, None)] * MOST_MEETINGS) == NEVER_MET
    assert (host.status.state, host.status.exit_code) == ("failed", None)
    assert host.status.message.startswith(f"{MOST_MEETINGS} starts in a row ")
    assert host.status.message.endswith(" because")


@pytest.mark.parametrize("peer", ["staging", None], ids=str)
def test_a_host_waits_for_a_peer_that_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peer: Literal["staging"] | None
) -> None:
    pair = Host(tmp_path, monkeypatch, hosts=2)
    pair.pause_seconds = "0.001"
    if peer is not None:
        pair.files.host(1, 1).write_text(HostStatus(state=peer, at=0.0).model_dump_json())
    assert pair.run(*[(4, None)] * (MOST_MEETINGS + 1), (0, 3)) == 0


def test_a_peer_whose_machine_failed_does_not_fail_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Host(tmp_path, monkeypatch, hosts=2)
    failed = HostStatus(state="failed", exit_code=None, message="no space", at=0.0)
    pair.files.host(1, 1).write_text(failed.model_dump_json())
    assert pair.run((4, 3)) == 4
    assert (pair.status.state, pair.status.exit_code) == ("failed", None)


@pytest.mark.parametrize("code", [4, 139])
def test_a_crashed_host_of_a_finished_run_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """A new process of the crashed host would wait for its peers, which have ended."""
    pair = Host(tmp_path, monkeypatch, hosts=2)
    done = HostStatus(state="done", exit_code=0, at=0.0, step=9)
    pair.files.host(1, 1).write_text(done.model_dump_json())
    assert pair.run((code, None)) == 0
    assert (pair.status.state, pair.status.exit_code) == ("done", 0)
    assert pair.status.message == "host 1 has finished the run"
    assert [ending.exit_code for ending in pair.status.endings] == [code]


def test_sigterm_ends_the_run_then_the_host(host: Host) -> None:
    def send() -> None:
        end = time.monotonic() + TIMEOUT
        while not plan_is_taken() and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    def plan_is_taken() -> bool:
        status = host.files.host(1, 0)
        return status.exists() and HostStatus.model_validate_json(status.read_text()).step == 7

    sender = threading.Thread(target=send)
    sender.start()
    assert host.run((None, 7)) == 3
    sender.join()
    assert (host.status.state, host.status.step) == ("stopped", 7)


def test_sigterm_in_a_pause_ends_the_host_at_once(host: Host) -> None:
    """The system may deliver the signal to any thread."""
    host.pause_seconds = str(2 * TIMEOUT)
    began = time.monotonic()

    def send() -> None:
        end = time.monotonic() + TIMEOUT
        path = host.files.host(1, 0)
        while time.monotonic() < end:
            if path.exists() and '"restarting"' in path.read_text():
                break
            time.sleep(0.01)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    sender = threading.Thread(target=send)
    sender.start()
    assert host.run((3, 7)) == 3
    sender.join()
    assert host.status.state == "stopped"
    assert time.monotonic() - began < TIMEOUT


def test_a_silent_bucket_delays_only_heartbeats(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tries: list[object] = []

    def fails_twice(*args: object, **kwargs: object) -> None:
        tries.append(args)
        if len(tries) < 3:
            raise OSError("no route to host")
        write_whole(*args, **kwargs)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr("bert_jax.launch.heartbeat_writer.write_whole", fails_twice)
    assert host.run((3, 2), (0, 4)) == 0
    assert host.status.state == "done"
    assert host.files.log(1, 0).read_text().count("bert-jax: because") == 2
    assert capsys.readouterr().err.count("heartbeat: no route to host") == 1


def test_jaxs_abort_without_process_0_is_one_line_and_code_4(tmp_path: Path) -> None:
    """See docs/adr/0012-processes.md; a test with real processes compares the message."""
    program = f"import os; print('F1124 client.h:80] because {COORDINATOR_GONE}.'); print('@ 0x1')"
    process = RunProcess(
        [sys.executable, "-S", "-u", "-c", f"{program}; os.abort()"],
        {},
        heartbeat=tmp_path / "heartbeat.json",
        log=lambda _: None,
    )
    ending = process.wait()
    assert ending.exit_code == 4
    assert "process 0" in ending.message


def ending(code: int, step: int | None = None) -> Ending:
    return Ending(at=0.0, exit_code=code, step=step, message=f"said {code}")


@pytest.mark.parametrize(
    ("endings", "said"),
    [
        ([(0, 5)], "said 0"),
        ([(1, 5)], "said 1"),
        ([(2, 5)], "said 2"),
        # Signals and lost peers are not crashes.
        ([(3, 7), (4, 7), (3, 7), (4, 7), (4, 7)], None),
        *[
            ([(code, 7), (4, 6), (code, 7)], "the run crashed twice at step 7: said {code}")
            for code in (43, 137, 134, 5)
        ],
        # After progress, a second crash before the first report is allowed.
        (
            [(137, None), (137, 9), (137, None), (137, None)],
            "the run crashed twice before its first report: said 137",
        ),
    ],
    ids=str,
)
def test_a_run_restarts_unless_it_died_twice_at_a_step(
    endings: list[tuple[int, int | None]], said: str | None
) -> None:
    restarts = Restarts(1.0)
    *before, last = [restarts.judge(ending(*each)) for each in endings]
    assert {verdict.state for verdict in before} <= {"restarting"}
    if said is None:
        assert last.state == "restarting"
        return
    code = endings[-1][0]
    exit_code = code if code in (0, 1, 2) else 1
    state = "failed" if exit_code else "done"
    assert (last.state, last.exit_code, last.pause) == (state, exit_code, None)
    assert last.message == said.format(code=code)


@pytest.mark.parametrize("steps", [(None,), (7,), (7, 8, 9, 10)], ids=str)
def test_uncaught_exceptions_get_a_few_restarts(
    steps: tuple[int | None, ...],
) -> None:
    restarts = Restarts(1.0)
    at = [steps[turn % len(steps)] for turn in range(MOST_UNCAUGHT + 1)]
    for saved in (-1, 5):
        for step in at[:-1]:
            assert restarts.judge(ending(70, step), saved=saved).state == "restarting"
            assert restarts.judge(ending(4, step)).state == "restarting"  # ended by another process
    verdict = restarts.judge(ending(70, at[-1]), saved=5)
    assert (verdict.state, verdict.exit_code) == ("failed", 1)
    assert "4 uncaught exceptions without a new checkpoint" in verdict.message
    assert verdict.message.endswith("said 70")


def test_meetings_without_a_step_have_a_limit() -> None:
    restarts = Restarts(1.0)
    allowed = [ending(4)] * (MOST_MEETINGS - 1)
    before = [restarts.judge(each) for each in (*allowed, ending(4, 7), *allowed)]
    # A new checkpoint is progress too. A host that is not ready, or a signal, is neither.
    before += [restarts.judge(each, saved=8) for each in allowed]
    before += [restarts.judge(ending(4), peers_ready=False), restarts.judge(ending(3))]
    assert {verdict.state for verdict in before} == {"restarting"}
    verdict = restarts.judge(ending(4), saved=8)
    assert (verdict.state, verdict.exit_code, verdict.pause) == ("failed", NEVER_MET, None)
    assert verdict.message.startswith(f"{MOST_MEETINGS} starts in a row ")
    assert verdict.message.endswith(" said 4")


def test_pauses_double_to_two_minutes_and_reset() -> None:
    restarts = Restarts(5.0)
    pauses = [restarts.judge(ending(4, 3)).pause for _ in range(7)]
    assert pauses == [5, 10, 20, 40, 80, 120, 120]
    assert restarts.judge(ending(4, 4)).pause == 5


def test_machine_trouble_has_no_exit_code_and_is_retried(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an exit code, the supervisor requests other machines."""

    def full(self: Agent, assignment: Assignment) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Agent, "_stage", full)
        assert host.run() == 4
    assert (host.status.state, host.status.exit_code) == ("failed", None)
    assert host.status.message == "No space left on device"
    assert "Traceback" in host.files.log(1, 0).read_text()
    assert host.run((0, 3)) == 0
    assert (host.status.state, host.status.exit_code) == ("done", 0)
