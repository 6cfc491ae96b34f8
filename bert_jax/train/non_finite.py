"""Stopping a run whose loss or gradient is not finite, with all that led to it written out."""

from __future__ import annotations

import json
from collections.abc import Mapping

import jax
import numpy as np
from etils import epath

from bert_jax.errors import RunStopped
from bert_jax.task import StepBatch, Sums
from bert_jax.train.state import TrainState


def dump_non_finite(
    run_dir: epath.Path,
    step: int,
    state: TrainState,
    batch: StepBatch,
    metrics: Sums,
) -> None:
    """Writes the batch, the metrics and the parameters before it, then stops the run.

    Args:
        run_dir: where ``non_finite_<step>/`` is made.
        step: the step that was not finite.
        state: after the step, which left it unchanged.
        batch: the step's batch.
        metrics: of the step.

    Raises:
        RunStopped: always.
    """
    folder = run_dir / f"non_finite_{step}"
    folder.mkdir(parents=True, exist_ok=True)
    process = jax.process_index()
    for name, tree in (("batch", batch), ("params", state.params)):
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        arrays = {
            jax.tree_util.keystr(path, simple=True, separator="/"): _local(leaf)
            for path, leaf in leaves
        }
        _save(folder / f"{name}_{process}.npz", arrays)
    figures = {name: {"sum": repr(s), "count": repr(c)} for name, (s, c) in metrics.items()}
    (folder / f"metrics_{process}.json").write_text(json.dumps({"step": step, **figures}, indent=1))
    bad = [name for name, (total, _) in metrics.items() if not np.isfinite(total)]
    raise RunStopped(
        f"step {step}: {', '.join(bad) or 'a gradient'} not finite; batch, metrics and the "
        f"parameters before it are in {folder}, the last checkpoint is untouched"
    )


def _local(array: jax.Array) -> np.ndarray:
    """Returns this process's part of an array, each row once."""
    parts = {str(shard.index): shard for shard in array.addressable_shards}
    if len(parts) == 1 or array.is_fully_replicated:
        return jax.device_get(array.addressable_shards[0].data)
    if array.is_fully_addressable:
        return jax.device_get(array)
    return np.stack([jax.device_get(shard.data) for shard in parts.values()])


def _save(path: epath.Path, arrays: Mapping[str, np.ndarray]) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
