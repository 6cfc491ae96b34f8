"""N + M steps equal N steps, kill -9, resume, M steps: bit for bit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from bert_jax.config import load_config
from bert_jax.objectives.registry import objective_of
from bert_jax.optim.optimizer import make_optimizer
from bert_jax.optim.schedule import join
from bert_jax.parallel.mesh import make_mesh
from bert_jax.runs.directory import CHECKPOINTS, open_run
from bert_jax.train.checkpoint import Checkpointer
from bert_jax.train.restore import restore_state
from bert_jax.train.sections import schedule_segments
from bert_jax.train.state import abstract_state, define_model
from tests.project import ROOT, bert_jax, environment, project_config, write_config

# A step takes a few milliseconds: enough of them that a kill still comes before the end.
SECOND_PHASE = 30
TOTAL_STEPS = 10 + SECOND_PHASE
LAST_BEFORE_KILLS = (6, 14)  # in the first phase, between checkpoints, and in the second


@pytest.mark.slow
def test_a_killed_run_resumes_bit_for_bit_across_phases_and_loader_workers(
    project: Path, tmp_path: Path
) -> None:
    settings = project_config(project)
    settings["train"]["phases"][1]["steps"] = SECOND_PHASE
    config = write_config(tmp_path / "run.yaml", settings)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = bert_jax("pretrain", config, f"run_dir={whole}")
    assert done.returncode == 0, done.stderr

    for step in LAST_BEFORE_KILLS:
        kill_after(step, "pretrain", config, f"run_dir={killed}")
        assert max(reported_steps(killed)) < TOTAL_STEPS
    done = bert_jax("pretrain", config, f"run_dir={killed}", "loader.workers=1")
    assert done.returncode == 0, done.stderr

    assert figures(killed) == figures(whole)
    expected, found = final_state(whole), final_state(killed)
    assert found[1] == expected[1]
    leaves = jax.tree_util.tree_leaves_with_path(expected[0])
    for (path, leaf), other in zip(leaves, jax.tree.leaves(found[0]), strict=True):
        np.testing.assert_array_equal(other, leaf, err_msg=jax.tree_util.keystr(path))


def kill_after(step: int, *arguments: object) -> None:
    """Starts the command line and kills it, with no warning, once it has reported a step."""
    run_dir = Path(str(arguments[-1]).partition("=")[2])
    process = subprocess.Popen(
        [sys.executable, "-m", "bert_jax.cli", *map(str, arguments)],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 180
        while not any(seen >= step for seen in reported_steps(run_dir)):
            assert process.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.002)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def reported_steps(run_dir: Path) -> list[int]:
    return [line["step"] for line in lines(run_dir) if line["kind"] == "train"]


def figures(run_dir: Path) -> list[dict[str, Any]]:
    """Every line of metrics.jsonl but speeds and times, which no two runs share."""
    return [line for line in lines(run_dir) if line["kind"] not in ("speed", "goodput")]


def lines(run_dir: Path) -> list[dict[str, Any]]:
    try:
        text = (run_dir / "metrics.jsonl").read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def final_state(run_dir: Path) -> tuple[Any, dict[str, Any]]:
    """Parameters, optimizer, random key and step of the last checkpoint, and its progress."""
    run = open_run(run_dir)
    config = load_config(run_dir / "config.yaml")
    assert config.train is not None
    mesh = make_mesh(config.mesh, jax.devices()[: config.mesh.simulated_devices])
    model = define_model(objective_of(run).build)
    schedule = join(schedule_segments(config.train, config.optimizer))
    abstract = abstract_state(model, make_optimizer(config.optimizer, schedule, model.axes), mesh)
    with Checkpointer(run_dir / CHECKPOINTS, config.train.checkpoint) as checkpointer:
        assert checkpointer.latest_step() == TOTAL_STEPS
        state = restore_state(checkpointer, abstract, step=TOTAL_STEPS)
        return jax.device_get(state), dict(checkpointer.progress(TOTAL_STEPS))
