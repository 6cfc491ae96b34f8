"""The Task protocol: what the train loop knows of an objective or a fine-tuning task.

Only the type checker imports JAX here: processes that never load JAX import this file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import jax
    from flax import nnx

Params: TypeAlias = dict[str, Any]
"""Nested dict of arrays, or of ShapeDtypeStructs for abstract parameters."""

Row: TypeAlias = dict[str, np.ndarray]
Batch: TypeAlias = "Mapping[str, jax.Array]"
HostBatch: TypeAlias = Mapping[str, np.ndarray]

# Every metric is a (sum, count) pair to the end: pairs of microbatches, batches and hosts add up to
# the pair of the whole, and means do not.
Metrics: TypeAlias = "dict[str, tuple[jax.Array, jax.Array]]"
Sums: TypeAlias = Mapping[str, tuple[float, float]]


class Watch(Protocol):
    """An objective's comments on the scores of a run, for its user."""

    @property
    def expectation(self) -> str:
        """The line shown when the run starts."""
        ...

    def remark(self, scores: Mapping[str, float]) -> str:
        """Returns a few words on the scores of an evaluation."""
        ...

    def warn(self, *, step: int, scores: Mapping[str, float]) -> str | None:
        """Returns a warning after `step` steps, or None if the mean scores are normal."""
        ...


class RowTransform(Protocol):
    """Makes rows from examples. Picklable and without JAX: it runs in loader processes."""

    @property
    def seq_length(self) -> int:
        """Tokens in a row; the longest example that fits."""
        ...

    @property
    def max_predictions(self) -> int:
        """Slots for masked tokens in a row."""
        ...

    @property
    def max_examples(self) -> int:
        """Most examples in a row; 1 without packing."""
        ...

    def packed(self, max_examples: int) -> RowTransform:
        """Returns the same with several examples per row; UserError: they cannot share a row."""
        ...

    def batch(
        self, records: Sequence[Sequence[Any]], rngs: Sequence[Sequence[np.random.Generator]]
    ) -> Row:
        """Returns a batch: arrays ``[rows, ...]``, in shapes and dtypes independent of the data.

        `records` are the examples of each row, `rngs` the random stream of each example.
        """
        ...

    def fingerprint(self) -> dict[str, str | int | float]:
        """Returns the settings that rows depend on; a run resumes only with the same settings."""
        ...


class Task(Protocol):
    """An objective or a fine-tuning task, as the loop sees it.

    Hashable. Equal tasks have the same `build`, `weights` and `loss`, and share one compiled step.
    """

    def build(self) -> nnx.Module:
        """Returns the model with abstract parameters: their shapes and initialisers."""
        ...

    def weights(self, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the divisor of each loss term over a batch (float32 scalars).

        The step calls it for the GLOBAL batch, before it cuts the batch into microbatches. Then the
        losses of unevenly masked microbatches add up to the loss of the batch.
        """
        ...

    def loss(
        self,
        model: nnx.Module,
        batch: Batch,
        *,
        weights: Mapping[str, jax.Array],
        dropout_key: jax.Array | None,
    ) -> tuple[jax.Array, Metrics]:
        """Returns this (micro)batch's share of the loss, and its metrics.

        `weights` belong to the whole batch; `dropout_key` is None in evaluation.
        """
        ...

    def score(self, sums: Sums) -> dict[str, float]:
        """Returns named scores from summed metrics."""
        ...


class Objective(Task, Protocol):
    """A pretraining objective: a task over a dataset of examples."""

    @property
    def best_metric(self) -> str:
        """Key of `score` that selects the best checkpoint; smaller is better."""
        ...

    def features(
        self, *, seq_length: int, max_predictions: int | None, evaluation: bool
    ) -> RowTransform:
        """Returns the transform from stored examples to rows of `seq_length` positions.

        `max_predictions` are slots for masked pieces, None for the objective's own rule. Masking
        for `evaluation` may differ (BERT: always 15%).
        """
        ...

    def flops_per_row(self, *, seq_length: int, predictions: int) -> float:
        """Returns the model FLOPs of one row, forward and backward, for the reported MFU."""
        ...

    def watch(self, *, unigram_entropy: float, total_steps: int) -> Watch:
        """Returns the watch of a run; the entropy of its text is in nats per token."""
        ...
