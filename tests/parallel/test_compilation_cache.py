"""A later process reads compiled programs from the cache directory."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bert_jax.train.metrics_writer import read_metrics
from tests.project import ROOT, environment, project_config, refused, says, write_config


def configuration(project: Path, folder: Path, name: str, **mesh: Any) -> Path:
    """Writes a configuration of two steps on one device."""
    values = project_config(project)
    values["train"]["phases"] = [values["train"]["phases"][0] | {"steps": 2}]
    values["train"]["evaluation"] = None
    values["optimizer"]["warmup_steps"] = 1
    values["mesh"] = {"platform": "cpu", **mesh}
    return write_config(folder / f"{name}.yaml", values | {"run_dir": str(folder / name)})


def pretrain(config: Path, home: Path) -> dict[str, Any]:
    """Runs `pretrain` with default cache settings. Returns the cache's requests and hits."""
    settings = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    inherited = {name: value for name, value in environment().items() if name not in settings}
    done = subprocess.run(
        [sys.executable, "-m", "tests.parallel.count_compilations", "pretrain", str(config)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        cwd=ROOT,
        env=inherited | {"XDG_CACHE_HOME": str(home)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def losses(run_dir: Path) -> list[float]:
    """Returns the loss of every entry in metrics.jsonl."""
    return [line["loss"] for line in read_metrics(run_dir) if "loss" in line]


@pytest.mark.slow
def test_a_second_start_compiles_no_step_and_agrees(project: Path, tmp_path: Path) -> None:
    first = pretrain(configuration(project, tmp_path, "first"), tmp_path)
    kept = tmp_path / "bert_jax" / "xla"
    entries = {path.name for path in kept.glob("*-cache")}
    assert any("step" in name for name in entries)
    assert first["hits"] == 0
    # Simulate a kill during a write. JAX would neither read nor replace such an entry.
    entry = next(path for path in kept.glob("*-cache") if "step" in path.name)
    (kept / f"{entry.name.removesuffix('-cache')}-atime").unlink()
    entry.write_bytes(entry.read_bytes()[:100])
    second = pretrain(configuration(project, tmp_path, "second"), tmp_path)
    assert second["hits"] == len(entries) - 1
    assert entry.stat().st_size > 100  # written again
    assert losses(tmp_path / "first") == losses(tmp_path / "second")


def test_an_unwritable_cache_is_one_line(project: Path, tmp_path: Path) -> None:
    config = configuration(
        project, tmp_path, "run", compilation_cache={"directory": "/proc/nowhere"}
    )
    line = refused("pretrain", config)
    assert line.key == "compilation_cache.unwritable"
    says(line, found="/proc/nowhere")


SETTINGS = """
import itertools, json, os, sys, jax
from bert_jax.parallel.compiling import use_compilation_cache
from bert_jax.parallel.section import CompilationCacheSection

first = {name: value for name, value in jax.config.values.items() if "cache" in name}
for section, own, devices in json.loads(sys.argv[1]):
    for name, value in first.items():
        jax.config.update(name, value)
    jax.config.update("jax_compilation_cache_dir", own)
    jax.config.update("jax_num_cpu_devices", devices)
    use_compilation_cache(None if section is None else CompilationCacheSection(**section))
    config = jax.config
    print(config.jax_enable_compilation_cache, config.jax_compilation_cache_dir,
          config.jax_compilation_cache_max_size)
"""


def test_jaxs_cache_settings(tmp_path: Path) -> None:
    """The cases: off, default, several CPU devices, the user's directory, a configured one."""
    named = {"directory": str(tmp_path / "named")}
    cases = [
        (None, None, 1, "False None -1"),
        ({}, None, 1, f"True {tmp_path}/bert_jax/xla 10000000000"),
        ({}, None, 8, "False None -1"),
        ({}, "/elsewhere", 8, "True /elsewhere -1"),
        (named, "/elsewhere", 8, f"True {tmp_path}/named 10000000000"),
    ]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    done = subprocess.run(
        [sys.executable, "-c", SETTINGS, json.dumps([case[:3] for case in cases])],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        cwd=ROOT,
        env=kept | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.splitlines() == [case[3] for case in cases]
