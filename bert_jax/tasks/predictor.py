"""Predicts the records of a split, given parameters."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

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
from bert_jax.task import Batch, Row
from bert_jax.tasks.batches import collate_inputs
from bert_jax.tasks.family import Family, Record, Split
from bert_jax.tasks.task import logits
from bert_jax.train.state import ModelDefinition

# `Predictor.stream` holds the logits and records of this many batches in memory.
WINDOW_BATCHES: Final = 64


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
            task_forward(model),
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
        (records,) = self._windows(params, split, len(split.lengths))
        return records

    def stream(self, params: Any, split: Split) -> Iterator[list[Record]]:
        """Yields the records in the order of the file, some at a time.

        Rows are batched by length within a window. Raises Diverged if logits are not finite.
        """
        return self._windows(params, split, WINDOW_BATCHES * self._inference.batch_size)

    def _windows(self, params: Any, split: Split, size: int) -> Iterator[list[Record]]:
        """Yields the records of windows of at least `size` rows, without cutting an example."""
        total, done, start = len(split.lengths), 0, 0
        with doing(lambda: f"predicting: {done:,} of {total:,} rows"):
            while True:
                end = min(start + size, total)
                while end < total and not split.starts_example(end):
                    end += 1
                reduced: list[Any] = [None] * (end - start)
                for row, found in self._logits(params, split, range(start, end)):
                    reduced[row - start] = split.reduce(row, found)
                    done += 1
                yield split.records(reduced, first=start)
                start = end
                if start == total:
                    return

    def _logits(self, params: Any, split: Split, window: range) -> Iterator[tuple[int, np.ndarray]]:
        """Yields each row of a window with its logits, see `Split.reduce`, shortest rows first."""

        def make(rows: np.ndarray, *, batch_size: int, length: int) -> Row:
            rows = rows + window.start
            return collate_inputs(
                split, rows, batch_size=batch_size, length=length, pad_id=self._pad_id
            )

        for batch in self._inference(params, split.lengths[window.start : window.stop], make):
            for row, values in zip(
                (batch.rows + window.start).tolist(), batch.outputs, strict=True
            ):
                # Per-token logits [length, ...] include padding, other logits do not.
                found = values[: split.lengths[row]] if values.ndim == 2 else values
                if not np.isfinite(found).all():
                    raise Diverged(
                        "predict.not_finite", f"found NaN or infinity in the logits of row {row}"
                    )
                yield row, found


@made_once
def task_forward(model: ModelDefinition) -> Callable[[Any, Batch], jax.Array]:
    """Returns the forward function of a task head. See `logits` for its outputs."""

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
