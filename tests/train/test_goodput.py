"""Accounting of wall time over kills and restarts."""

import time
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from etils import epath

from bert_jax.train import goodput
from bert_jax.train.goodput import Stopwatch
from bert_jax.train.metrics_writer import GOODPUT, RunWriter
from bert_jax.train.time_account import KINDS, describe_goodput, read_goodput


class FakeTime:
    """Both clocks at once."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def time(self) -> float:
        return self.now

    monotonic = time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(goodput, "time", fake)
    return fake


def attempt(
    run_dir: Path, clock: FakeTime, *, first: int, save_at: int | None, last: int, finish: bool
) -> None:
    """Simulates a process: 5 s of start, 2 s of restore, then steps of 9 s and 1 s of input."""
    started = clock.now
    clock.now += 5
    watch = Stopwatch(epath.Path(run_dir), started=started)
    with watch.on("restore"):
        clock.now += 2
    watch.resume(first)
    writer = RunWriter(run_dir, resume_step=first)
    with watch.on("train"):
        writer.write(GOODPUT, first, watch.figures())
        for step in range(first + 1, last + 1):
            clock.now += 9
            with watch.on("input"):
                clock.now += 1
            writer.write(GOODPUT, step, watch.figures())
            if step == save_at:
                with watch.on("save"):
                    clock.now += 3
                writer.write(GOODPUT, step, watch.figures())
    if finish:
        writer.write(GOODPUT, last, watch.figures(finished=True))
    writer.close()


def test_repeated_work_after_a_kill_counts_as_lost(tmp_path: Path, clock: FakeTime) -> None:
    attempt(tmp_path, clock, first=0, save_at=2, last=4, finish=False)  # killed after step 4
    clock.now += 100  # idle until the restart
    attempt(tmp_path, clock, first=2, save_at=None, last=5, finish=True)
    found = read_goodput(tmp_path)
    assert found is not None
    assert found.seconds == {
        "train": 5 * 9,
        "input": 5,
        "evaluate": 0,
        "save": 3,
        "start": 10,
        "restore": 4,
        "compile": 0,
        "lost": 20,
        "down": 100,
    }
    assert found.total == clock.now - 1_000.0
    assert sum(found.shares.values()) == pytest.approx(1)
    assert (found.starts, found.finished) == (2, True)
    assert describe_goodput(found) == (
        "down 53.5%, train 24.1%, lost 10.7%, start 5.3%, input 2.7%, restore 2.1%, save 1.6% "
        "of 0:03:07, 2 starts"
    )


def test_time_after_a_finished_run_does_not_count(tmp_path: Path, clock: FakeTime) -> None:
    attempt(tmp_path, clock, first=0, save_at=None, last=2, finish=True)
    clock.now += 1_000_000
    attempt(tmp_path, clock, first=2, save_at=None, last=4, finish=True)
    found = read_goodput(tmp_path)
    assert found is not None
    assert (found.seconds["down"], found.seconds["train"], found.seconds["lost"]) == (0, 36, 0)


def test_steps_undone_by_a_rollback_count_as_lost(tmp_path: Path, clock: FakeTime) -> None:
    watch = Stopwatch(epath.Path(tmp_path), started=clock.now)
    watch.resume(0)
    with watch.on("train"):
        for step in range(1, 8):
            clock.now += 9
            with watch.on("input"):
                clock.now += 1
            if step in (2, 4):
                watch.saved(step)
        watch.rewind(4)
        found = watch.read().seconds
        assert (found["train"], found["input"], found["lost"]) == (36, 4, 30)
        clock.now += 10
        watch.rewind(2)  # the newer checkpoint is damaged
        found = watch.read().seconds
        assert (found["train"], found["input"], found["lost"]) == (18, 2, 60)
        clock.now += 10
        watch.rewind(0)
    found = watch.read().seconds
    assert (found["train"], found["input"], found["lost"]) == (0, 0, 90)


def test_foreign_and_incomplete_lines_are_ignored(tmp_path: Path) -> None:
    assert read_goodput(tmp_path) is None
    (tmp_path / "metrics.jsonl").write_text('{"kind": "goodput", "step": 1, "train": 2.0}\n')
    assert read_goodput(tmp_path) is None
    Stopwatch(epath.Path(tmp_path), started=time.time()).resume(1)


def test_compiling_is_separated_from_running(tmp_path: Path) -> None:
    watch = Stopwatch(epath.Path(tmp_path), started=time.time())

    @jax.jit
    def inner(x: jax.Array) -> jax.Array:
        return jnp.sin(x) @ jnp.cos(x)

    @jax.jit
    def outer(x: jax.Array) -> jax.Array:
        return inner(x) + inner(2 * x)

    began = time.monotonic()
    with watch.on("train"):
        outer(jnp.ones((3, 3))).block_until_ready()
        compiled = watch.read().seconds["compile"]
        outer(jnp.ones((3, 3))).block_until_ready()
    seconds = time.monotonic() - began
    found = watch.read().seconds
    assert 0 < compiled <= seconds
    assert found["compile"] == pytest.approx(compiled, abs=1e-3)  # the second call runs
    assert found["train"] + found["compile"] == pytest.approx(seconds, abs=0.05)
    assert set(found) == set(KINDS)
