"""The Task protocol: the train loop's interface to objectives and fine-tuning tasks.

Imports JAX only for type checkers, because processes without JAX import this file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

if TYPE_CHECKING:
    import jax
    from flax import nnx

Params: TypeAlias = dict[str, Any]
"""Nested dict of arrays, or of ShapeDtypeStructs for abstract parameters."""

GENERATOR: Final = "generator"
"""The part of the parameters with the generator of an objective such as ELECTRA."""
DELTAS: Final = "deltas"
"""The part with arrays that are added to parameters of the same paths below the model."""
TRAINING_PARTS: Final = (GENERATOR, DELTAS)
"""Parts that are trained and saved with the model in pretraining, but no run's own model has.

A reader of the run's own model adds the `DELTAS` and skips the other parts.
"""

Row: TypeAlias = dict[str, np.ndarray]
Batch: TypeAlias = "Mapping[str, jax.Array]"
HostBatch: TypeAlias = Mapping[str, np.ndarray]

# A metric stays a (sum, count) pair until it is reported. Pairs of microbatches, batches and hosts
# can be added; means cannot.
Metrics: TypeAlias = "dict[str, tuple[jax.Array, jax.Array]]"
# Metrics on the host. In evaluations, a pair may also be two arrays, such as histograms.
Sums: TypeAlias = Mapping[str, tuple[Any, Any]]


class Watch(Protocol):
    """Comments on the scores of a run, for the user."""

    def expectation(self, *, trained: bool) -> str:
        """Returns the line shown when a phase starts.

        `trained` is whether the parameters are those of a trained model.
        """
        ...

    def remark(self, scores: Mapping[str, float]) -> str:
        """Returns a few words on the scores of an evaluation."""
        ...

    def warn(self, *, step: int, scores: Mapping[str, float]) -> str | None:
        """Returns a warning after `step` steps, or None if the mean scores are normal."""
        ...


class RowTransform(Protocol):
    """Makes rows from examples.

    A transform runs in loader processes: it must be picklable and must not import JAX.
    """

    @property
    def seq_length(self) -> int:
        """Number of tokens in a row. A longer example does not fit."""
        ...

    @property
    def max_examples(self) -> int:
        """Maximum number of examples in a row; 1 without packing."""
        ...

    def batch(
        self, records: Sequence[Sequence[Any]], rngs: Sequence[Sequence[np.random.Generator]]
    ) -> Row:
        """Returns a batch of arrays ``[rows, ...]``. Shapes and dtypes do not depend on the data.

        `records` has the examples of each row, and `rngs` has one random stream per example.
        """
        ...

    def fingerprint(self) -> dict[str, str | int | float]:
        """Returns the settings that rows depend on. A run resumes only with equal settings."""
        ...


@runtime_checkable
class ChangingTransform(RowTransform, Protocol):
    """A row transform that changes during the run, such as one with a falling masking rate."""

    def at(self, progress: float) -> RowTransform:
        """Returns the transform after a share of the run's steps. The shapes of rows are equal."""
        ...


class Rngs(NamedTuple):
    """Random keys of a batch or microbatch, with the numbers of its rows, and the step.

    See `bert_jax.model.row_key`. Each is a threefry key for a whole batch.
    """

    draws: jax.Array  # for draws of the task; in evaluation, rows have the numbers of examples
    dropout: jax.Array | None  # None in evaluation
    step: jax.Array | None = None  # number of updates before this one; None in evaluation


class FrozenModel(NamedTuple):
    """A model that a task uses but does not train, such as the teacher of a distillation."""

    build: Callable[[], nnx.Module]  # for `define_model`, as `Task.build`
    # (abstract parameters) → parameters with the same shardings. Every process calls it.
    load: Callable[[Params], Params]
    # (its parameters, abstract parameters of the trained model) → the modules of the trained model
    # that start from it. None: no module does.
    initial: Callable[[Params, Params], Params] | None = None


class Task(Protocol):
    """An objective or a fine-tuning task.

    Tasks are hashable. Equal tasks share one compiled step, so their methods must be equivalent.
    """

    def build(self) -> nnx.Module:
        """Returns the model with abstract parameters: their shapes and initialisers."""
        ...

    def frozen_models(self) -> Mapping[str, FrozenModel]:
        """Returns the models that the loss uses but does not train, by name.

        Their parameters are sharded like the trained ones, but have no gradient and no moments.
        Checkpoints record their hashes and not their values.
        """
        ...

    def divisors(self, batch: Batch) -> Mapping[str, jax.Array]:
        """Returns the divisor of each loss term over a batch (float32 scalars).

        The step passes the global batch, before it splits the batch into microbatches. So the
        losses of microbatches add up to the loss of the batch, even if one microbatch has more
        masked tokens than another.
        """
        ...

    def loss(
        self,
        model: nnx.Module,
        batch: Batch,
        *,
        divisors: Mapping[str, jax.Array],
        rngs: Rngs,
        frozen: Mapping[str, nnx.Module],
    ) -> tuple[jax.Array, Metrics]:
        """Returns the contribution of a batch or microbatch to the loss, and its metrics.

        `divisors` is the result of the method of this name for the global batch. `frozen` has the
        models of `frozen_models` with their parameters.
        """
        ...

    def score(self, sums: Sums) -> dict[str, float]:
        """Returns named scores from summed metrics."""
        ...


class Objective(Task, Protocol):
    """A pretraining objective: a task over a dataset of examples."""

    @property
    def best_metric(self) -> str:
        """Name of the score that selects the best checkpoint. Smaller is better."""
        ...

    def features(
        self,
        *,
        seq_length: int,
        max_predictions: int | None = None,
        max_examples: int = 1,
        evaluation: bool,
    ) -> RowTransform:
        """Returns the transform from stored examples to rows of `seq_length` positions.

        Args:
            seq_length: number of tokens in a row.
            max_predictions: number of slots for masked tokens. If it is None, the objective chooses
                the number.
            max_examples: maximum number of examples in a row. Above 1, rows are packed.
            evaluation: whether the rows are for an evaluation, in which masked language models use
                the default masking.
        """
        ...

    def flops_per_row(self, batch: Mapping[str, Any]) -> float:
        """Returns the model FLOPs of one row, forward and backward, for the reported MFU.

        `batch` has the arrays of a batch, or their shapes.
        """
        ...

    def watch(self, *, unigram_entropy: float, total_steps: int) -> Watch:
        """Returns the watch of a run. `unigram_entropy` is in nats per token."""
        ...
