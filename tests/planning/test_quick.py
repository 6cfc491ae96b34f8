"""The quick form: figures of deep programs from shallow ones."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result

from bert_jax.config import load_config
from bert_jax.planning import compiler
from bert_jax.planning.collectives import Collective
from bert_jax.planning.compiled_step import STEP, CompiledStep, Memory
from bert_jax.planning.cycles import Cycles, KernelCycles
from bert_jax.planning.extrapolation import COMPILED_DEPTHS, extrapolated
from bert_jax.planning.planning import PlanSettings
from bert_jax.planning.quick import with_layers
from bert_jax.planning.request import CompileRequest
from bert_jax.planning.work import Work
from bert_jax.section import need
from tests.planning.test_plan import CONFIG
from tests.project import invoke

CLOCK, HBM = 1e9, 16 * 2**30
LAYERS = 12


def kernel(calls: int) -> KernelCycles:
    """Of 100 cycles a call."""
    return KernelCycles(
        name="attention_forward",
        calls=calls,
        bundles=90,
        cycles=100,
        busiest="VALU",
        busiest_bundles=80,
        slots={"VALU": 80},
        copied_bytes=10,
    )


def collective(name: str, *, trips: int, hidden: int) -> Collective:
    """A sum of 1 MB that takes 10 µs."""
    return Collective(
        name=name,
        kind="all-reduce",
        trips=trips,
        bytes=10**6,
        dtypes=("f32",),
        axes=("data",),
        group=16,
        link="ICI",
        seconds=1e-5,
        hidden_cycles=hidden,
        line="train/step.py:1",
    )


def step(layers: int) -> CompiledStep:
    """Everything grows with the layers, from something of its own."""
    return CompiledStep(
        rows=256,
        useful_flops=1e9 + layers * 1e8,
        memory=Memory(
            parameters=1000 + 10 * layers,
            optimizer=2000 + 20 * layers,
            batch=7,
            temporaries=5000 + 300 * layers,
            program=50 + layers,
            peak=8000 + 331 * layers,
        ),
        cycles=Cycles(
            scheduled=700 + 60 * layers,
            by_bytes=30,
            in_kernels=100 * layers,
            by_kind={"matrix products": 700 + 60 * layers, "copies": 30, "custom": 100 * layers},
            by_line={"model/layers.py:1": 60 * layers, "model/heads.py:1": 700},
            kernels=(kernel(layers),),
            uncounted={f"other.{at}": 1 for at in range(layers)},
            unknown_loops=(),
        ),
        work=Work(
            product_flops=500 + 40 * layers, kernel_flops=3 * layers, hbm_bytes=900 + 8 * layers
        ),
        collectives=(
            *(collective(f"layer.{at}", trips=1, hidden=0) for at in range(layers)),
            *(collective(f"hidden.{at}", trips=2, hidden=4000) for at in range(layers)),
            collective("head", trips=1, hidden=0),
        ),
        compile_seconds=10.0,
    )


def whole() -> CompiledStep:
    """Twelve layers from two programs."""
    shallow, deep = map(step, COMPILED_DEPTHS)
    return extrapolated(shallow, deep, layers=LAYERS, hbm_bytes=HBM, clock_hz=CLOCK)


def test_what_grows_with_the_layers_is_that_of_all_layers() -> None:
    found, exact = whole(), step(LAYERS)
    assert found.extrapolated
    assert (found.memory, found.work) == (exact.memory, exact.work)
    assert found.useful_flops == exact.useful_flops
    assert found.cycles is not None
    assert found.cycles == dataclasses.replace(exact.cycles, uncounted={"other": LAYERS})  # pyright: ignore


def test_collectives_are_as_many_as_long_and_as_exposed() -> None:
    found, exact = whole().collectives, step(LAYERS).collectives
    assert len(found) == 2  # hidden and not
    for of in ("trips", "bytes", "seconds"):
        sums = [
            sum(getattr(one, of) * (1 if of == "trips" else one.trips) for one in each)
            for each in (found, exact)
        ]
        assert sums[0] == pytest.approx(sums[1])
    exposed = [sum(one.exposed_seconds(CLOCK) for one in each) for each in (found, exact)]
    assert exposed[0] == pytest.approx(exposed[1])


def test_what_outgrows_the_memory_does_not_fit() -> None:
    shallow, deep = map(step, COMPILED_DEPTHS)
    found = extrapolated(shallow, deep, layers=LAYERS, hbm_bytes=11_000, clock_hz=CLOCK)
    assert found.memory is None
    assert (found.needed_bytes, found.available_bytes) == (8000 + 331 * LAYERS, 11_000)


def request_of(path: Path) -> CompileRequest:
    """The train step of a configuration, as `plan` asks for it."""
    config = load_config(str(path), ())
    return PlanSettings(
        vocab_size=1000,
        model=need(config.model, "model", "test"),
        objective=config.objective,
        mesh=config.mesh,
        optimizer=config.optimizer,
        train=need(config.train, "train", "test"),
    ).request("v5e:2x2")


def keep(request: CompileRequest, step: CompiledStep) -> None:
    """As if the compiler had said so."""
    kept = compiler._kept_at(request)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(STEP.dump_json(step))


@pytest.fixture
def deep_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of twelve layers; what the compiler says of one and two is kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    values: dict[str, Any] = json.loads(json.dumps(CONFIG))
    values["model"]["architecture"]["num_hidden_layers"] = LAYERS
    values["train"]["evaluation"] = None
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    for depth in COMPILED_DEPTHS:
        keep(with_layers(request_of(path), depth), step(depth))
    return path


def run_plan(path: Path, *arguments: str) -> Result:
    """As a user does."""
    return invoke("plan", path, "--vocab-size", 1000, "--topology", "v5e:2x2", *arguments)


def test_a_deep_run_is_planned_from_shallow_programs_and_says_so(deep_run: Path) -> None:
    result = run_plan(deep_run, "--json")
    assert result.exit_code == 0, result.stderr
    (found,) = json.loads(result.stdout)
    (note,) = found["notes"]
    assert note.startswith("quick: figures of 12 layers from programs of 1 and 2")
    assert "--exact" in note
    train = found["phases"][0]["train"]
    assert train["extrapolated"]
    assert train["compiled"]["cycles"]["total"] == 700 + 30 + 160 * LAYERS
    assert train["compiled"]["memory"]["peak"] == 8000 + 331 * LAYERS


def test_the_exact_program_is_taken_where_it_has_been_compiled_before(deep_run: Path) -> None:
    exact = dataclasses.replace(step(LAYERS), compile_seconds=300.0)
    keep(request_of(deep_run), exact)
    for arguments in ((), ("--exact",)):
        result = run_plan(deep_run, "--json", *arguments)
        (found,) = json.loads(result.stdout)
        assert found["notes"] == []
        assert found["phases"][0]["train"]["compiled"]["seconds_to_compile"] == 300.0
        assert "figures of 20" in result.stderr
