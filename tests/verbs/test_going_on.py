"""Runs that resume after an interrupted evaluation, and runs that lose their lock."""

import os
import signal
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from bert_jax.files.lock import LocalLock, LockLost
from bert_jax.parallel.stop_signal import STOP
from bert_jax.runs.open_checkpoints import load_params
from bert_jax.runs.run_directory import open_run
from bert_jax.train.goodput import Stopwatch
from bert_jax.train.metrics_writer import read_metrics
from bert_jax.train.progress import StepTracker
from tests.project import invoke, ok, one_phase, refused, write_config


@pytest.fixture(scope="module")
def config(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight steps that evaluates two sets, and saves, every four steps."""
    sets = dict.fromkeys(("first", "second"), str(project / "dataset32"))
    evaluation, checkpoint = {"every": 4, "examples": 24, "sets": sets}, {"every": 4}
    values = one_phase(project, steps=8, evaluation=evaluation, checkpoint=checkpoint, log_every=1)
    return write_config(tmp_path_factory.mktemp("config") / "run.yaml", values)


@pytest.fixture(scope="module")
def undisturbed(config: Path) -> Path:
    run_dir = config.parent / "undisturbed"
    ok("pretrain", config, f"run_dir={run_dir}")
    return run_dir


def assert_same_run(found: Path, expected: Path) -> None:
    ours, theirs = (
        sorted(str(line) for line in read_metrics(run) if line["kind"] not in ("speed", "goodput"))
        for run in (found, expected)
    )
    assert ours == theirs
    params = [
        jax.device_get(load_params(open_run(run), checkpoint="last").params)
        for run in (found, expected)
    ]
    jax.tree.map(np.testing.assert_array_equal, *params)


class Killed(Exception):
    """Simulates the end of the process."""


def die(*_: object) -> None:
    raise Killed


def test_an_interrupted_evaluation_is_made_up_for(
    config: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, batches = tmp_path / "run", []

    def signal_in_the_second_set() -> None:
        batches.append(len(batches))
        if len(batches) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
            while not STOP.name:  # wait for the signal thread
                time.sleep(0.001)
        between_batches()

    between_batches = STOP.between_batches
    with monkeypatch.context() as patched:
        patched.setattr(STOP, "between_batches", signal_in_the_second_set)
        result = invoke("pretrain", config, f"run_dir={run_dir}")
    assert result.exit_code == 3, result.output
    assert "stopped at step 4, saved" in result.output
    assert len(batches) == 5
    assert not read_metrics(run_dir, kind="validation")
    with monkeypatch.context() as patched:  # end after the evaluation
        patched.setattr(StepTracker, "remaining_phases", die)
        assert isinstance(invoke("pretrain", config, f"run_dir={run_dir}").exception, Killed)
    assert [line["step"] for line in read_metrics(run_dir, kind="validation")] == [4]
    said = ok("pretrain", config, f"run_dir={run_dir}")
    assert said.index("resuming at step 4") < said.index("step 4 validation")
    assert_same_run(run_dir, undisturbed)
    steps = [load_params(open_run(r), checkpoint="best").step for r in (run_dir, undisturbed)]
    assert steps[0] == steps[1]


def test_a_run_without_its_lock_stops_writing(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    watches: list[Stopwatch] = []
    checks: list[str] = []
    resume = Stopwatch.resume

    def remember(watch: Stopwatch, step: int) -> None:
        watches.append(watch)
        resume(watch, step)

    def lose_lock(lock: LocalLock) -> None:
        checks.append(watches[-1].kind)
        if len(checks) == 2:
            raise LockLost("lock.lost", "lost by this test")

    monkeypatch.setattr(Stopwatch, "resume", remember)
    monkeypatch.setattr(LocalLock, "check", lose_lock)
    assert refused("pretrain", config, f"run_dir={run_dir}", code=1).key == "lock.lost"
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == ["4"]
    assert checks == ["save"] * 2  # the watchdog ignores a slow bucket
