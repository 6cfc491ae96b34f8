"""The Task protocol: all that the train loop knows of an objective or a fine-tuning task.

This file sits below every package and imports none of them; JAX's types are named for the type
checker only, so that data code can import it in processes that never load JAX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import jax
    from flax import nnx

Params: TypeAlias = dict[str, Any]
"""Parameters by name, dicts nested in dicts: arrays, or the ShapeDtypeStructs of abstract ones."""

Row: TypeAlias = dict[str, np.ndarray]
Batch: TypeAlias = "Mapping[str, jax.Array]"

HostBatch: TypeAlias = Mapping[str, np.ndarray]

# Every metric is a (sum, count) pair until the very end: pairs of microbatches, of batches and of
# hosts add up to the pair of the whole, means of means do not.
Metrics: TypeAlias = "dict[str, tuple[jax.Array, jax.Array]]"
Sums: TypeAlias = Mapping[str, tuple[float, float]]


class Watch(Protocol):
    """What an objective knows about normal scores of a run, for the person who watches it."""

    @property
    def expectation(self) -> str:
        """The line shown when the run starts."""
        ...

    def remark(self, scores: Mapping[str, float]) -> str:
        """Returns a few words on the scores of an evaluation."""
        ...

    def warn(self, *, step: int, scores: Mapping[str, float]) -> str | None:
        """Returns a warning, or None when the scores since the last report are as they should be.

        Args:
            step: optimizer steps done.
            scores: means since the last report.
        """
        ...


class RowTransform(Protocol):
    """Makes rows out of examples. Picklable and free of JAX: it runs in loader processes."""

    @property
    def seq_length(self) -> int:
        """Tokens in a row; no example of the dataset may be longer."""
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
        """Returns the same transform with several examples per row.

        Raises:
            UserError: its examples cannot share a row.
        """
        ...

    def batch(
        self, records: Sequence[Sequence[Any]], rngs: Sequence[Sequence[np.random.Generator]]
    ) -> Row:
        """Returns a batch: arrays ``[rows, ...]`` of shapes and dtypes that do not depend on data.

        Args:
            records: the examples of each row.
            rngs: the random stream of each example.
        """
        ...

    def fingerprint(self) -> dict[str, str | int | float]:
        """Returns the settings that rows depend on; a run resumes only with the same."""
        ...


class Task(Protocol):
    """An objective or a fine-tuning task, as the loop sees it.

    Hashable. Equal tasks have the same `build`, `weights` and `loss`, and share one compiled step;
    an object that is equal to itself alone shares it with nothing.
    """

    def build(self) -> nnx.Module:
        """Returns the model: its parameters' shapes and how each starts, but no numbers."""
        ...

    def weights(self, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the divisor of each loss term over the batch handed in (float32 scalars).

        The step calls it for the GLOBAL batch, before the batch is cut into microbatches: only so
        do the losses of unevenly masked microbatches add up to the loss of the batch.
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

        Args:
            model: what `build` returned, with the current parameters.
            batch: a microbatch.
            weights: what `weights` returned for the whole batch.
            dropout_key: None in evaluation.
        """
        ...

    def score(self, sums: Sums) -> dict[str, float]:
        """Returns named scores from summed metrics."""
        ...


class Objective(Task, Protocol):
    """A pretraining objective: a task over a dataset of examples."""

    @property
    def best_metric(self) -> str:
        """The key of `score` that selects the best checkpoint; smaller is better."""
        ...

    def features(
        self, *, seq_length: int, max_predictions: int | None, evaluation: bool
    ) -> RowTransform:
        """Returns the transform from stored examples to rows.

        Args:
            seq_length: positions of a row.
            max_predictions: slots for masked pieces; None for the objective's own rule.
            evaluation: mask as evaluation does (BERT: always 15%).
        """
        ...

    def flops_per_row(self, *, seq_length: int, predictions: int) -> float:
        """Returns the model FLOPs of one row, forward and backward, for the progress line's MFU."""
        ...

    def watch(self, *, unigram_entropy: float, total_steps: int) -> Watch:
        """Returns what to watch in a run.

        Args:
            unigram_entropy: of the training text, in nats per token.
            total_steps: of the run.
        """
        ...
