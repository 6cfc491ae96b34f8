"""What counts as a step that hangs. That a real one ends: `tests/processes/test_deaths.py`."""

import functools
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from etils import epath
from jax.sharding import NamedSharding, PartitionSpec

from bert_jax.parallel.compiling import compiling
from bert_jax.train import watchdog
from bert_jax.train.compiled import StepPrograms
from bert_jax.train.executables import Executables, facts_of, save_executable
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


def lowered(state: Any, batch: Any, schedule: Any) -> jax.stages.Lowered:
    """A step, cheap to compile."""
    step = jax.jit(lambda state, batch, limits, schedule: (state + batch["rows"], schedule))
    return step.lower(state, batch, None, schedule)


def test_a_step_that_was_loaded_hangs_as_one_that_was_compiled(
    watch: Stopwatch, ended: threading.Event, tmp_path: Path
) -> None:
    mesh = jax.make_mesh((8,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    ones: Any = jax.device_put(jnp.ones(8), NamedSharding(mesh, PartitionSpec("a")))
    batch: Any = {"rows": ones}
    for kind in ("train", "evaluation"):
        compiled = lowered(ones, batch, ones)
        facts = facts_of(compiled, mesh, kind=kind)
        save_executable(tmp_path, compiled.compile(), facts, seconds=1.0)
    said: list[str] = []
    load = Executables(str(tmp_path), mesh, say=said.append).compile
    train, evaluation = (
        StepPrograms(lowered, shapes=1, compile_step=functools.partial(load, kind=kind))
        for kind in ("train", "evaluation")
    )
    nothing: Any = None
    with watch.on("train"), Watchdog(QUICK, watch, epath.Path(tmp_path)) as dog:
        state = ones
        for _ in range(10):
            state, _ = train(state, batch, nothing, ones)
            dog.step_done()
        with watch.on("evaluate"):
            evaluation(ones, batch, nothing, ones)
        assert [" loaded from " in line for line in said] == [True, True], said
        assert ended.wait(20)


def test_what_is_compiled_is_no_step_that_hangs(
    watch: Stopwatch, ended: threading.Event, tmp_path: Path
) -> None:
    with watch.on("train"), Watchdog(QUICK, watch, epath.Path(tmp_path)) as dog:
        steps(dog, watch)
        with compiling("a step"):
            assert not ended.wait(0.6)
        assert ended.wait(20)


def test_watching_a_step_costs_microseconds(watch: Stopwatch, tmp_path: Path) -> None:
    with watch.on("train"), Watchdog(WatchdogSection(), watch, epath.Path(tmp_path)) as dog:
        began = time.process_time()
        for _ in range(10_000):
            with watch.on("input"):
                pass
            dog.step_done()
        assert time.process_time() - began < 1.0  # 100 µs each, ten times what it takes
