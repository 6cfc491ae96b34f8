"""Steps and evaluations that hang. See `tests/processes/test_deaths.py` for a real hang."""

import contextlib
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from etils import epath

from bert_jax.errors import RunStopped
from bert_jax.parallel.compiling import compiling
from bert_jax.parallel.stop_signal import STOP
from bert_jax.train import watchdog
from bert_jax.train.goodput import Stopwatch
from bert_jax.train.prefetch import waiting_for_input
from bert_jax.train.sections import WatchdogSection
from bert_jax.train.watchdog import Watchdog
from tests.project import ROOT

QUICK = WatchdogSection(floor_seconds=0.2)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Returns an event that the watchdog sets instead of ending the process."""
    event = threading.Event()

    def end(self: Watchdog, hang: RunStopped) -> None:
        event.set()
        self._ended.set()

    monkeypatch.setattr(Watchdog, "_end", end)
    return event


@pytest.fixture
def watch(tmp_path: Path) -> Stopwatch:
    return Stopwatch(epath.Path(tmp_path), started=time.time())


def steps(dog: Watchdog, watch: Stopwatch) -> None:
    """Runs ten empty steps, each of which waits briefly for input."""
    for _ in range(10):
        with watch.on("input"):
            time.sleep(0.005)
        dog.step_done()


def test_a_step_hangs_but_waiting_for_input_does_not(
    watch: Stopwatch, ended: threading.Event, tmp_path: Path
) -> None:
    with watch.on("train"), Watchdog(QUICK, watch, epath.Path(tmp_path)) as dog:
        steps(dog, watch)
        with watch.on("input"):
            assert not ended.wait(0.6)
        assert not ended.wait(0.05)  # the wait for input does not count
        assert ended.wait(60)


@pytest.mark.parametrize("reads", [False, True], ids=["computes", "reads"])
def test_an_evaluation_hangs_when_no_batch_finishes(
    watch: Stopwatch, ended: threading.Event, tmp_path: Path, *, reads: bool
) -> None:
    """Waiting for input has a longer limit, as in training."""
    with watch.on("train"), Watchdog(QUICK, watch, epath.Path(tmp_path)) as dog:
        steps(dog, watch)
        with watch.on("evaluate"):
            for _ in range(12):  # together longer than the limit
                STOP.between_batches()
                assert not ended.wait(0.05)
            with waiting_for_input() if reads else contextlib.nullcontext():
                assert ended.wait(0.6 if reads else 60) is not reads


def test_missing_input_hangs(
    watch: Stopwatch, ended: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_INPUT_SECONDS", 0.4)
    with watch.on("train"), Watchdog(QUICK, watch, epath.Path(tmp_path)) as dog:
        steps(dog, watch)
        with watch.on("input"):
            assert ended.wait(60)


def test_compiling_is_not_a_hang(watch: Stopwatch, ended: threading.Event, tmp_path: Path) -> None:
    with watch.on("train"), Watchdog(QUICK, watch, epath.Path(tmp_path)) as dog:
        steps(dog, watch)
        with compiling("a step"):
            assert not ended.wait(0.6)
        assert ended.wait(20)


def test_the_last_save_after_a_signal_is_not_a_hang(
    watch: Stopwatch, ended: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with watch.on("train"), Watchdog(QUICK, watch, epath.Path(tmp_path)) as dog:
        steps(dog, watch)
        monkeypatch.setattr(STOP, "ending", True)
        assert not ended.wait(0.6)


HANGS_WITH_ITS_STORAGE = """
import os, sys, time
from etils import epath
from bert_jax.train import watchdog
from bert_jax.train.goodput import Stopwatch
from bert_jax.train.sections import WatchdogSection

class Storage:
    def __truediv__(self, name):
        return self
    def __str__(self):
        return "gs://bucket/run/stacks_0.txt"
    def write_text(self, text):
        time.sleep(600)

if sys.argv[1] == "unread":
    reader, writer = os.pipe()
    os.dup2(writer, 2)
    os.close(reader)
watchdog._WRITING_SECONDS = 0.5
watch = Stopwatch(epath.Path(sys.argv[2]), started=time.time())
section = WatchdogSection(floor_seconds=0.2)
with watch.on("train"), watchdog.Watchdog(section, watch, Storage()) as dog:
    for _ in range(10):
        dog.step_done()
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("storage", "why"),
    [("hangs", "no answer within 0.5 s"), ("unread", None)],  # standard error fails too
)
def test_a_hang_ends_the_process_even_without_stacks(
    tmp_path: Path, storage: str, why: str | None
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS_WITH_ITS_STORAGE, storage, str(tmp_path)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == watchdog.HANGS, done.stderr
    if why is None:
        return
    assert "(most recent call first):" in done.stderr
    assert " in <module>" in done.stderr
    assert "[watchdog.no_step]" in done.stderr
    assert f"(gs://bucket/run/stacks_0.txt: {why})" in done.stderr
