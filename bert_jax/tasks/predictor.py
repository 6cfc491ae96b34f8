"""Predicts the records of a split, given parameters."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from bert_jax.errors import Diverged
from bert_jax.inference.bucketed import BucketedInference
from bert_jax.model.architecture import EncoderArchitecture
from bert_jax.model.shape_cost import inference_cost
from bert_jax.narration import doing
from bert_jax.parallel.compiling import made_once
from bert_jax.task import Batch
from bert_jax.tasks.batches import collate_inputs
from bert_jax.tasks.family import Family, Record, Split
from bert_jax.tasks.task import logits
from bert_jax.train.state import ModelDefinition


class Predictor:
    """Predicts the rows of a split. Predictions do not depend on the batch size or the mesh."""

    def __init__(
        self,
        model: ModelDefinition,
        mesh: Mesh,
        *,
        batch_size: int,
        max_length: int,
        pad_id: int,
        architecture: EncoderArchitecture,
        few_rows: bool = False,
        passes: int = 1,
    ) -> None:
        """Compiles nothing: each batch shape is compiled at its first batch.

        `batch_size` is rounded up to a multiple of the mesh's data-parallel size. `architecture`
        and `passes`, the number of predictions per row, determine whether another padded length
        saves more time than its compilation costs. See `BucketedInference` for `few_rows`.
        """
        self.mesh, self._pad_id = mesh, pad_id
        self._inference = BucketedInference(
            _forward(model),
            mesh,
            batch_size=batch_size,
            max_length=max_length,
            few_rows=few_rows,
            cost=inference_cost(architecture, mesh, max_length=max_length, passes=passes),
        )

    def __call__(self, params: Any, split: Split) -> list[Record]:
        """Returns the records of all examples in the order of the file.

        Raises Diverged if logits are not finite.
        """
        make = functools.partial(collate_inputs, split, pad_id=self._pad_id)
        rows, done = len(split.lengths), 0
        reduced: list[Any] = [None] * rows
        with doing(lambda: f"predicting: {done:,} of {rows:,} rows"):
            for batch in self._inference(params, split.lengths, make):
                for row, values in zip(batch.rows.tolist(), batch.outputs, strict=True):
                    # Per-token logits [length, ...] include padding, other logits do not.
                    found = values[: split.lengths[row]] if values.ndim == 2 else values
                    if not np.isfinite(found).all():
                        raise Diverged(
                            "predict.not_finite",
                            f"found NaN or infinity in the logits of row {row}. The model has "
                            "diverged.",
                        )
                    reduced[row] = split.reduce(row, found)
                done += len(batch.rows)
            return split.records(reduced)


@made_once
def _forward(model: ModelDefinition) -> Callable[[Any, Batch], jax.Array]:
    def forward(params: Any, batch: Batch) -> jax.Array:
        return logits(nnx.merge(model.graphdef, params), batch, dropout_key=None)

    return forward


def score_splits(family: Family, records: Mapping[str, Sequence[Record]]) -> dict[str, float]:
    """Returns the scores of dev splits. All but the first split have a prefix.

    ``{"accuracy": 0.84, "dev_mismatched/accuracy": 0.83}``
    """
    scores: dict[str, float] = {}
    for number, (name, found) in enumerate(records.items()):
        prefix = f"{name}/" if number else ""
        scores |= {prefix + metric: value for metric, value in family.score(found).items()}
    return scores
