"""If a process is killed, stopped or missing, the others name it and exit in time."""

import signal
import time
from pathlib import Path

import pytest

from bert_jax.launch.run_process import COORDINATOR_GONE
from tests.processes.hosts import Host, free_port, joining, start, start_one
from tests.processes.test_stop import ENDLESS, until_it_trains
from tests.project import Refusal, keyed

IN_TIME = 30.0  # seconds


def line_of(host: Host) -> Refusal:
    """Returns a process's only error line. Asserts that there is no C++ or Python traceback."""
    for trace in ("Traceback", "Check failure", "terminate called", "@     0x"):
        assert trace not in host.err, host.err
    lines = [line for line in host.err.splitlines() if line.startswith("bert-jax: ")]
    assert len(lines) == 1, host.err
    return keyed(lines[0])


@pytest.mark.parametrize(
    ("count", "number"),
    [
        (2, signal.SIGSTOP),
        (2, signal.SIGKILL),
        pytest.param(4, signal.SIGKILL, marks=pytest.mark.chaos),
    ],
)
def test_the_others_name_a_dead_process(
    config: Path, tmp_path: Path, count: int, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    more = (*ENDLESS, "mesh.distributed.silence_seconds=4")
    with start("pretrain", config, f"run_dir={run}", *more, count=count, directory=tmp_path) as job:
        until_it_trains(job, run)
        job[1].send(number)
        sent = time.monotonic()
        for other in (job[index] for index in range(count) if index != 1):
            assert other.wait() == 4, job.said()
            assert other.ended_at is not None
            assert other.ended_at - sent < IN_TIME
            line = line_of(other)
            assert line.key == "processes.peer_gone"
            assert f"pid {job[1].pid})" in line
            assert " 4 s" in line


@pytest.mark.parametrize(
    "number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.chaos)]
)
def test_without_process_0_jax_ends_the_others(
    config: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """If process 0 ends, JAX aborts the others. `run_process` detects this by JAX's message."""
    run = tmp_path / "run"
    more = (*ENDLESS, "mesh.distributed.silence_seconds=4")
    with start("pretrain", config, f"run_dir={run}", *more, count=2, directory=tmp_path) as job:
        until_it_trains(job, run)
        job[0].send(number)
        sent = time.monotonic()
        assert job[1].wait() == -signal.SIGABRT, job.said()
        assert job[1].ended_at is not None
        assert job[1].ended_at - sent < IN_TIME
    assert COORDINATOR_GONE in job[1].err


@pytest.mark.parametrize("killed", [0, pytest.param(1, marks=pytest.mark.chaos)])
def test_a_death_at_shutdown_does_not_delay_the_others(
    config: Path, tmp_path: Path, killed: int
) -> None:
    """JAX would wait five minutes for the killed process, and then abort the others."""
    few = ("train.phases.0.steps=4", *ENDLESS[1:])
    with start(
        *("pretrain", config, f"run_dir={tmp_path / 'run'}", *few),
        program=("-m", "tests.processes.killed_at_shutdown", killed),
        count=2,
        directory=tmp_path,
    ) as job:
        codes = job.wait()
        assert codes[killed] == -signal.SIGKILL, job.said()
        assert codes[1 - killed] == 0, job.said()
        ends = [host.ended_at or 0.0 for host in job]
        assert max(ends) - min(ends) < IN_TIME
    assert "done: 4 steps" in job[0].out
    for trace in ("Traceback", "Check failure", "bert-jax: "):
        assert trace not in job[1 - killed].err, job.said()


def test_a_missing_process_is_named(config: Path, tmp_path: Path) -> None:
    host = start_one(
        "pretrain",
        config,
        f"run_dir={tmp_path / 'run'}",
        *joining(0, count=2, port=free_port()),
        "mesh.distributed.timeout_seconds=1",
        directory=tmp_path,
    )
    assert host.wait() == 4
    line = line_of(host)
    assert line.key == "processes.missing"
    assert "process 1." in line  # its host and process id are unknown
    assert not (tmp_path / "run").exists()


def test_an_error_after_the_meeting_ends_both(config: Path, tmp_path: Path) -> None:
    mistake = "mesh.compilation_cache.directory=/dev/null/cache"
    with start(
        *("pretrain", config, f"run_dir={tmp_path / 'run'}"),
        count=2,
        each=[[], [mistake]],
        directory=tmp_path,
    ) as job:
        assert job.wait() == [2, 2], job.said()
    keys = [line_of(host).key for host in job]
    assert keys == ["processes.peer_ended", "compilation_cache.unwritable"]
    assert f"pid {job[1].pid}) ended with exit code 2: " in line_of(job[0])
    assert all("/dev/null/cache" in line_of(host) for host in job)


@pytest.mark.chaos  # for one process: tests/train/test_watchdog.py
def test_a_hanging_step_ends_with_all_threads_stacks(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    quick = [
        "mesh.distributed.silence_seconds=400",  # only the watchdog notices
        "train.watchdog.floor_seconds=2",
    ]
    with start(
        "pretrain", config, f"run_dir={run}", *ENDLESS, *quick, count=2, directory=tmp_path
    ) as job:
        job.wait_until(lambda: "step 12/" in job[0].out)  # the median is known
        job[1].send(signal.SIGSTOP)
        assert job[0].wait() == 43, job.said()
    assert "[watchdog.no_step]" in job[0].err
    stacks = (run / "stacks_0.txt").read_text()
    assert "in finish" in stacks  # in the hanging step
    assert "in finish" in job[0].err
