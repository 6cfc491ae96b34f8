"""Parameters and a split → one record for every example of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from bert_jax.parallel.mesh import process_share
from bert_jax.parallel.rules import batch_parts, batch_sharding, replicated
from bert_jax.task import Batch
from bert_jax.tasks.batches import INPUTS, ROW, evaluation_batches
from bert_jax.tasks.family import Family, Record, Split
from bert_jax.tasks.task import logits
from bert_jax.train.prefetch import to_devices
from bert_jax.train.state import ModelDefinition


class Predictor:
    """Runs every row of a split through the model once, whatever the batch and the mesh."""

    def __init__(
        self, model: ModelDefinition, mesh: Mesh, *, batch_size: int, max_length: int, pad_id: int
    ) -> None:
        """Sets up; programs are compiled when the first row of their length comes.

        Args:
            model: with a task head.
            mesh: over which rows are split.
            batch_size: rows at a time, rounded up to what the mesh divides; changes no figure.
            max_length: no row is longer.
            pad_id: of the tokenizer.
        """
        parts = batch_parts(mesh)
        self._rows = -(-batch_size // parts) * parts
        self._mesh, self._max_length, self._pad_id = mesh, max_length, pad_id
        self._programs: dict[tuple[int, ...], Any] = {}

        def forward(params: Any, batch: Batch) -> jax.Array:
            return logits(nnx.merge(model.graphdef, params), batch, dropout_key=None)

        self._forward = jax.jit(forward, out_shardings=replicated(mesh))

    def __call__(self, params: Any, split: Split) -> list[Record]:
        """Returns a record for every example, in the order of the file."""
        collector = split.collect()
        share = process_share(self._mesh)
        mine = self._rows // share.count
        pending: tuple[Mapping[str, np.ndarray], jax.Array] | None = None
        with jax.set_mesh(self._mesh):
            for batch in evaluation_batches(
                split, batch_size=self._rows, max_length=self._max_length, pad_id=self._pad_id
            ):
                local = {
                    name: batch[name][share.index * mine : (share.index + 1) * mine]
                    for name in INPUTS
                }
                on_devices = to_devices(local, batch_sharding(self._mesh), shares=share.count)
                found = self._program(params, on_devices)(params, on_devices)
                # Read only now, so that the devices work while the host collects.
                if pending is not None:
                    _collect(collector, *pending)
                pending = (batch, found)
        if pending is not None:
            _collect(collector, *pending)
        return collector.records()

    def _program(self, params: Any, batch: Batch) -> Any:
        shape = batch["input_ids"].shape
        if shape not in self._programs:
            self._programs[shape] = self._forward.lower(params, batch).compile()
        return self._programs[shape]


def predict_splits(
    predictor: Predictor, params: Any, family: Family, names: Sequence[str]
) -> dict[str, list[Record]]:
    """Returns the records of several splits by name."""
    return {name: predictor(params, family.splits[name]) for name in names}


def score_splits(family: Family, records: Mapping[str, Sequence[Record]]) -> dict[str, float]:
    """Returns the figures of dev splits: those of the first as they are, others by split.

    ``{"accuracy": 0.84, "dev_mismatched/accuracy": 0.83}``
    """
    scores: dict[str, float] = {}
    for number, (name, found) in enumerate(records.items()):
        prefix = f"{name}/" if number else ""
        scores |= {prefix + metric: value for metric, value in family.score(found).items()}
    return scores


def _collect(collector: Any, batch: Mapping[str, np.ndarray], found: jax.Array) -> None:
    values = np.asarray(jax.device_get(found), np.float32)
    sizes = (batch["segment_ids"] > 0).sum(axis=-1)
    for at, row in enumerate(batch[ROW].tolist()):
        if row < 0:
            continue
        # Only what has a value per piece is as long as its row.
        cut = values[at, : sizes[at]] if values.ndim == 3 else values[at]
        collector.add(row, cut)
