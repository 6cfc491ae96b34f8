"""Executables saved by `plan` in one process, loaded by `pretrain` in another."""

import hashlib
import io
import json
import os
import pickle
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from rich.console import Console

from bert_jax.config import parse_config
from bert_jax.errors import UserError
from bert_jax.train.executables import Executables, facts_of, save_executable
from bert_jax.train.writer import read_metrics
from bert_jax.verbs.plan import plan
from tests.forked.forks import forked_python
from tests.project import ROOT, environment, project_config, write_config

STEPS = 6


def configuration(root: Path, run_dir: Path, **train: Any) -> dict[str, Any]:
    """A few steps with evaluations, on two simulated devices."""
    values = project_config(root)
    first = values["train"]["phases"][0]
    values["train"] |= {
        "phases": [first | {"steps": STEPS}],
        "evaluation": {"every": 3, "examples": 16},
        "checkpoint": {"every": 100},
        "log_every": 1,
        **train,
    }
    return values | {"run_dir": str(run_dir)}


@pytest.fixture(scope="module")
def saved(project: Path, tmp_path_factory: pytest.TempPathFactory, compilers_forked: None) -> Path:
    """The directory of the run's executables, saved by processes of their own."""
    folder, said = tmp_path_factory.mktemp("executables"), io.StringIO()
    config = parse_config(configuration(project, folder / "never"), source="test")
    console = Console(file=said, width=200)
    assert plan(config, ["cpu:2"], save_executable=str(folder), console=console) == []
    assert said.getvalue().count("saved ") == 2
    return folder


def trained(folder: Path, config: dict[str, Any]) -> tuple[str, Counter[str]]:
    """Trains in another process; returns what was said and how often programs were compiled."""
    path = write_config(folder / f"{Path(config['run_dir']).name}.yaml", config)
    done = subprocess.run(
        [forked_python(), "-m", "tests.parallel.count_compilations", "pretrain", str(path)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=ROOT,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    output, _, counts = done.stdout.rstrip().rpartition("\n")
    return output, Counter(json.loads(counts)["programs"])


def steps_compiled(programs: Counter[str]) -> int:
    """How often a train or evaluation step was."""
    return sum(count for name, count in programs.items() if "step" in name)


def numbers(run_dir: Path) -> list[dict[str, Any]]:
    """What the run computed, without what it took."""
    return [line for line in read_metrics(run_dir) if line["kind"] in ("train", "validation")]


@pytest.mark.slow
def test_a_run_with_saved_executables_compiles_no_step_and_has_the_same_numbers(
    project: Path, saved: Path, tmp_path: Path
) -> None:
    loading = configuration(project, tmp_path / "loaded", executables=str(saved))
    other = {"learning_rate": 2e-3, "warmup_steps": 1}  # which are no part of the program
    loading["optimizer"] |= other
    output, loaded = trained(tmp_path, loading)
    assert "train step loaded from" in output
    assert "evaluation step loaded from" in output
    assert "compiling it took" in output
    compiling = configuration(project, tmp_path / "compiled")
    compiling["optimizer"] |= other
    output, compiled = trained(tmp_path, compiling)
    assert "loaded from" not in output
    assert steps_compiled(loaded) == 0
    assert steps_compiled(compiled) == (compiled - loaded).total() == 2  # train and evaluation
    assert numbers(tmp_path / "loaded") == numbers(tmp_path / "compiled")
    assert len(numbers(tmp_path / "loaded")) == STEPS + STEPS // 3


@pytest.mark.chaos
def test_executables_of_another_configuration_are_named_and_compiled_anew(
    project: Path, saved: Path, tmp_path: Path
) -> None:
    other = configuration(project, tmp_path / "run", executables=str(saved))
    other["optimizer"] |= {"weight_decay": 0.1}
    output, compiled = trained(tmp_path, other)
    (train_file,) = saved.glob("train-*")
    assert f"{train_file} is for another program" in output
    assert "the train step is compiled anew" in output
    assert "evaluation step loaded from" in output  # which has no optimizer
    assert steps_compiled(compiled) == 1


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
    program = Executables(str(folder), mesh, say=said.append).compile(double(mesh), kind="train")
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
