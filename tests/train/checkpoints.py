"""Saves checkpoints of small states with the real `Checkpointer`, without training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax

from bert_jax.train.checkpoint_manifest import SelectionScore
from bert_jax.train.checkpointer import Checkpointer
from bert_jax.train.sections import CheckpointSection
from bert_jax.train.state import TrainState

STEPS = (4, 8, 12)


def state_at(step: int) -> TrainState:
    """Returns a state whose values depend on `step`."""
    device = jax.devices()[0]
    params = {
        "dense": {"kernel": np.full((8, 4), step, np.float32), "bias": np.arange(4.0) + step},
        "table": np.arange(64, dtype=np.float32).reshape(16, 4) * step,
    }
    params = jax.tree.map(lambda leaf: jax.device_put(np.float32(leaf), device), params)
    return TrainState(
        step=jax.device_put(np.int32(step), device),
        rng=jax.device_put(np.array([1, step], np.uint32), device),
        params=params,
        opt_state=jax.tree.map(lambda leaf: jax.device_put(leaf, device), _moments(params)),
        healthy=jax.device_put(np.bool_(True), device),
    )


def _moments(params: Any) -> Any:
    return optax.scale_by_adam().init(params)


def abstract() -> TrainState:
    """Returns the abstract arrays of `state_at`."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding),
        state_at(0),
    )


def save_steps(
    directory: Path, steps: Sequence[int] = STEPS, *, section: CheckpointSection | None = None
) -> Path:
    """Saves states of these steps, each better than the previous; returns the directory."""
    with Checkpointer(directory, section or CheckpointSection()) as checkpoints:
        for step in steps:
            checkpoints.save(
                state_at(step),
                step=step,
                progress={"step": step},
                selection_score=SelectionScore(1.0 / (step + 1), "dev"),
            )
    return directory
