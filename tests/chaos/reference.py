"""Compares the output of a run bit for bit with an undisturbed run."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bert_jax.config import load_config
from bert_jax.optim.optimizer import make_optimizer
from bert_jax.parallel.mesh import make_mesh
from bert_jax.parallel.section import MeshSection
from bert_jax.runs.open_checkpoints import open_checkpoints
from bert_jax.runs.run_directory import open_run
from bert_jax.train.metrics_writer import read_metrics
from bert_jax.train.state import TrainState, abstract_state, define_model
from bert_jax.workflows.objective_of_run import objective_of

# Kinds of metrics that contain times, which differ between runs.
TIMES = ("speed", "goodput")


class Reference:
    """An undisturbed run that kept every checkpoint."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._abstract = _abstract(run_dir)
        self._state = functools.cache(lambda step: self._read(run_dir, step))

    def newest(self, run_dir: Path) -> int | None:
        """Returns the step of a run's newest complete checkpoint, or None."""
        if not (run_dir / "checkpoints").exists():
            return None
        with open_checkpoints(run_dir) as checkpoints:
            return checkpoints.on_disk.newest()

    def check_checkpoint(self, run_dir: Path, step: int) -> None:
        """Compares the arrays and the progress of a checkpoint with the undisturbed run."""
        (state, progress), (expected, made) = self._read(run_dir, step), self._state(step)
        assert progress == made, f"progress of step {step} differs"
        leaves = jax.tree_util.tree_leaves_with_path(expected)
        for (path, leaf), found in zip(leaves, jax.tree.leaves(state), strict=True):
            name = f"step {step}: {jax.tree_util.keystr(path)}"
            np.testing.assert_array_equal(found, leaf, err_msg=name)

    def check(self, run_dir: Path) -> None:
        """Compares a finished run."""
        assert figures(run_dir) == figures(self.run_dir)
        step = self.newest(self.run_dir)
        assert step is not None
        assert self.newest(run_dir) == step
        self.check_checkpoint(run_dir, step)

    def _read(self, run_dir: Path, step: int) -> tuple[Any, dict[str, Any]]:
        with open_checkpoints(run_dir) as checkpoints:
            state = checkpoints.restore_state(self._abstract(), step=step)
            return jax.device_get(state), dict(checkpoints.progress(step))


def figures(run_dir: Path) -> list[dict[str, Any]]:
    """Returns the entries of metrics.jsonl except times."""
    return [line for line in read_metrics(run_dir) if line["kind"] not in TIMES]


def _abstract(run_dir: Path) -> Callable[[], TrainState]:
    @functools.cache
    def make() -> TrainState:
        config = load_config(str(run_dir / "config.yaml"), [])
        assert config.train is not None
        mesh = make_mesh(MeshSection(), jax.devices()[:1])
        model = define_model(objective_of(open_run(run_dir)).build)
        optimizer = make_optimizer(config.optimizer, model.axes)
        return abstract_state(model, optimizer, mesh)

    return make
