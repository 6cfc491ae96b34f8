"""Executables saved by `plan` in one process, loaded by `pretrain` in another."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import pickle
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console

from bert_jax.config import RunConfig, parse_config
from bert_jax.errors import UserError
from bert_jax.train.executables import Executables, facts_of, save_executable
from bert_jax.train.writer import read_metrics
from bert_jax.verbs.plan import plan
from bert_jax.verbs.pretrain import pretrain
from tests.project import project_config

STEPS = 6


def configuration(root: Path, run_dir: Path, **train: Any) -> RunConfig:
    """A few steps with evaluations, on all simulated devices."""
    values = project_config(root)
    first = values["train"]["phases"][0]
    values["train"] |= {
        "phases": [first | {"steps": STEPS}],
        "evaluation": {"every": 3, "examples": 16},
        "checkpoint": {"every": 100},
        "log_every": 1,
        **train,
    }
    return parse_config(
        values | {"run_dir": str(run_dir), "mesh": {"platform": "cpu"}}, source="test"
    )


@pytest.fixture(scope="module")
def saved(project: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The directory of the run's executables, and what was said when another process saved them."""
    folder, said = tmp_path_factory.mktemp("executables"), io.StringIO()
    console = Console(file=said, width=200)
    topology = f"cpu:{len(jax.devices())}"
    config = configuration(project, folder / "never")
    assert plan(config, [topology], save_executable=str(folder), console=console) == []
    return folder, said.getvalue()


@contextlib.contextmanager
def counted_compilations() -> Iterator[Counter[str]]:
    """Yields how often programs of each name are compiled."""
    counts: Counter[str] = Counter()

    def heard(event: str, _: float, **facts: Any) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            counts[facts["fun_name"]] += 1

    jax.monitoring.register_event_duration_secs_listener(heard)
    try:
        yield counts
    finally:
        jax.monitoring.unregister_event_duration_listener(heard)


def trained(config: RunConfig) -> tuple[str, Counter[str]]:
    """Trains; returns what was said and what was compiled."""
    said = io.StringIO()
    with counted_compilations() as counts:
        pretrain(config, console=Console(file=said, width=200))
    return said.getvalue(), counts


def numbers(run_dir: Path) -> list[dict[str, Any]]:
    """What the run computed, without what it took."""
    return [line for line in read_metrics(run_dir) if line["kind"] in ("train", "validation")]


@pytest.mark.slow
def test_a_run_with_saved_executables_compiles_no_step_and_has_the_same_numbers(
    project: Path, saved: tuple[Path, str], tmp_path: Path
) -> None:
    folder, said = saved
    assert said.count("saved ") == 2
    loading = configuration(project, tmp_path / "loaded", executables=str(folder))
    output, loaded = trained(loading)
    assert "train step loaded from" in output
    assert "evaluation step loaded from" in output
    assert "compiling it took" in output
    _, compiled = trained(configuration(project, tmp_path / "compiled"))
    assert {name: compiled[name] - loaded[name] for name in compiled} | {"step": 0} == {
        name: 0 for name in compiled
    }
    assert compiled["step"] - loaded["step"] == 2
    assert loaded["step"] == 0
    assert numbers(tmp_path / "loaded") == numbers(tmp_path / "compiled")
    assert len(numbers(tmp_path / "loaded")) == STEPS + STEPS // 3


@pytest.mark.slow
def test_executables_of_another_configuration_are_named_and_compiled_anew(
    project: Path, saved: tuple[Path, str], tmp_path: Path
) -> None:
    folder, _ = saved
    other = configuration(project, tmp_path / "run", executables=str(folder))
    other = other.model_copy(
        update={"optimizer": other.optimizer.model_copy(update={"learning_rate": 2e-3})}
    )
    output, compiled = trained(other)
    (train_file,) = folder.glob("train-*")
    assert f"{train_file} is for another program" in output
    assert "the train step is compiled anew" in output
    assert "evaluation step loaded from" in output  # which has no learning rate
    assert compiled["step"] == 1


def double(mesh: Mesh) -> jax.stages.Lowered:
    """A step of its own, cheap to compile."""
    x = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("a")))
    return jax.jit(lambda x: x * 2).lower(x)


@pytest.fixture
def small(tmp_path: Path) -> tuple[Path, Mesh]:
    """A directory with the executable of `double`."""
    mesh = jax.make_mesh((8,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    lowered = double(mesh)
    facts = facts_of(lowered, mesh, kind="train")
    save_executable(tmp_path, lowered.compile(), facts, seconds=1.5)
    return tmp_path, mesh


def loaded(folder: Path, mesh: Mesh) -> str:
    """Loads `double`, runs it, returns what was said."""
    said: list[str] = []
    program = Executables(str(folder), mesh, say=said.append).compile_train(double(mesh))
    x = jax.device_put(jnp.arange(8.0), NamedSharding(mesh, PartitionSpec("a")))
    assert program(x).tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    (line,) = said
    return line


def test_an_executable_is_loaded_and_what_it_saves_is_said(small: tuple[Path, Mesh]) -> None:
    assert loaded(*small).endswith("compiling it took 1.5 s")


@pytest.mark.parametrize(
    ("fact", "value", "expected"),
    [
        ("jax", "0.1.0", f'jax "0.1.0" (here "{jax.__version__}")'),
        ("devices", "4 × cpu", 'devices "4 × cpu" (here "8 × cpu")'),
        ("flags", "--fast", 'flags "--fast" (here'),
        ("processor", "other", "a processor with other instructions"),
    ],
)
def test_one_for_something_else_is_named(
    small: tuple[Path, Mesh], fact: str, value: str, expected: str
) -> None:
    folder, mesh = small
    (path,) = folder.iterdir()
    path.unlink()
    lowered = double(mesh)
    facts = facts_of(lowered, mesh, kind="train") | {fact: value}
    save_executable(folder, lowered.compile(), facts, seconds=1.5)
    assert expected in loaded(folder, mesh)


def test_a_damaged_one_is_not_loaded(small: tuple[Path, Mesh]) -> None:
    folder, mesh = small
    (path,) = folder.iterdir()
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    assert "is damaged: the train step is compiled anew" in loaded(folder, mesh)
    path.write_bytes(b"not one of ours")
    assert "is no executable of bert-jax" in loaded(folder, mesh)


class Hostile:
    """What a pickle could run."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("hostile",)


def test_a_pickle_runs_nothing(
    small: tuple[Path, Mesh], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, mesh = small
    monkeypatch.chdir(tmp_path)
    (path,) = folder.glob("train-*")
    head = json.loads(path.read_bytes().partition(b"\n")[0])
    payload = pickle.dumps(Hostile())
    head["sha256"] = hashlib.sha256(payload).hexdigest()
    path.write_bytes(json.dumps(head).encode() + b"\n" + payload)
    assert "names posix.mkdir, which no executable does" in loaded(folder, mesh)
    assert not (tmp_path / "hostile").exists()


def test_none_there_and_no_directory(small: tuple[Path, Mesh]) -> None:
    folder, mesh = small
    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"train\.executables: found .* no directory"):
        Executables(str(folder), mesh)
    folder.mkdir()
    assert "holds no train step: the train step is compiled anew" in loaded(folder, mesh)
