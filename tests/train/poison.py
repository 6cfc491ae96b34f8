"""Corrupts chosen batches and gradients of a real run in this process."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bert_jax.data.loader.loader import Loader
from bert_jax.objectives.masked_lm import MaskedLanguageModel
from bert_jax.task import Batch, Metrics

Poison = Callable[[np.ndarray], None]
MARK = 7.0  # masked-token weight at which `poison_gradient` makes the gradient NaN


def nan(weights: np.ndarray) -> None:
    weights.flat[0] = np.nan


def spike(weights: np.ndarray) -> None:
    """Makes the sum of weights nearly 0, so loss and gradient are about 100 times too large."""
    weights[:] = 0
    weights[:, :2] = 100, -99.9


def mark(weights: np.ndarray) -> None:
    weights.flat[0] = MARK


def poison_pretraining(patch: pytest.MonkeyPatch, at: Mapping[int, Poison]) -> list[int]:
    """Corrupts the batches with the indices `at` in every phase; returns the indices read."""
    read: list[int] = []

    class Poisoned(Loader):
        def batches(self, *, first_step: int, **others: Any) -> Any:
            whole = super().batches(first_step=first_step, **others)
            return _spoilt(whole, first_step, at, "masked_lm_weights", read)

    patch.setattr("bert_jax.workflows.phases.Loader", Poisoned)
    return read


def poison_gradient(patch: pytest.MonkeyPatch) -> None:
    """Makes the gradient NaN for batches that contain `MARK`; the loss stays finite."""

    class Poisoned(MaskedLanguageModel):
        """A separate class, so that it shares no compiled step with `MaskedLanguageModel`."""

        def loss(self, model: Any, batch: Batch, **others: Any) -> tuple[jax.Array, Metrics]:
            marked = (batch["masked_lm_weights"] == MARK).any()
            weights = jnp.where(batch["masked_lm_weights"] == MARK, 1.0, batch["masked_lm_weights"])
            clean = {**batch, "masked_lm_weights": weights}
            value, metrics = super().loss(model, clean, **others)
            # The slope of √x is infinite at 0, so the backward pass computes 0 · ∞ = NaN.
            return value + 0.0 * jnp.sqrt(value * 0.0 + jnp.where(marked, 0.0, 1.0)), metrics

    patch.setattr("bert_jax.objectives.masked_lm.MaskedLanguageModel", Poisoned)


@contextlib.contextmanager
def _spoilt(
    whole: Any, first: int, at: Mapping[int, Poison], name: str, read: list[int]
) -> Iterator[Iterator[Any]]:
    def batches() -> Iterator[Any]:
        for step, batch in enumerate(rows, first):
            read.append(step)
            if step in at:
                batch = {**batch, name: np.array(batch[name])}
                at[step](batch[name])
            yield batch

    with whole as rows:
        yield batches()
