"""What counts as a step that hangs. That a real one ends: `tests/processes/test_deaths.py`."""

import threading
import time
from pathlib import Path

import pytest
from etils import epath

from bert_jax.train import watchdog
from bert_jax.train.goodput import Stopwatch
from bert_jax.train.sections import WatchdogSection
from bert_jax.train.watchdog import Watchdog

QUICK = WatchdogSection(floor_seconds=0.2, factor=1.5)


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set where the process would end."""
    event = threading.Event()

    def end(self: Watchdog, waited: float, median: float) -> None:
        event.set()
        self._ended.set()

    monkeypatch.setattr(Watchdog, "_end", end)
    return event


@pytest.fixture
def watch(tmp_path: Path) -> Stopwatch:
    return Stopwatch(epath.Path(tmp_path), started=time.time())


def steps(dog: Watchdog, watch: Stopwatch) -> None:
    """Ten steps of nothing, which waited for input a little."""
    for _ in range(10):
        with watch.on("input"):
            time.sleep(0.005)
        dog.step_done()


def test_a_step_hangs_and_waiting_for_input_is_no_step(
    watch: Stopwatch, ended: threading.Event, tmp_path: Path
) -> None:
    with watch.on("train"), Watchdog(QUICK, watch, epath.Path(tmp_path)) as dog:
        steps(dog, watch)
        with watch.on("input"):
            assert not ended.wait(0.6)
        assert not ended.wait(0.05)  # that was no part of the step which goes on
        with watch.on("evaluate"):
            assert not ended.wait(0.6)
        assert ended.wait(60)


def test_input_that_never_comes_hangs_too(
    watch: Stopwatch, ended: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_INPUT_SECONDS", 0.4)
    with watch.on("train"), Watchdog(QUICK, watch, epath.Path(tmp_path)) as dog:
        steps(dog, watch)
        with watch.on("input"):
            assert ended.wait(60)


def test_watching_a_step_costs_microseconds(watch: Stopwatch, tmp_path: Path) -> None:
    with watch.on("train"), Watchdog(WatchdogSection(), watch, epath.Path(tmp_path)) as dog:
        began = time.process_time()
        for _ in range(10_000):
            with watch.on("input"):
                pass
            dog.step_done()
        assert time.process_time() - began < 1.0  # 100 µs each, ten times what it takes
