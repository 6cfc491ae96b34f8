"""Metrics of objectives as (sum, count), and a warning if the loss stays at the unigram entropy."""

import math
from collections import deque
from collections.abc import Mapping
from typing import Final

import jax
import jax.numpy as jnp

from bert_jax.model.cross_entropy import Scored
from bert_jax.task import Batch, Metrics, Sums


def token_weights(batch: Batch) -> jax.Array:
    """Returns 1 for tokens and 0 for padding, float32 [B, L]."""
    return (batch["segment_ids"] > 0).astype(jnp.float32)


def summed(term: str, scored: Scored, weights: jax.Array) -> Metrics:
    """Returns loss and accuracy of a term as (sum, count): ``mlm_loss``, ``mlm_accuracy``."""
    count = weights.sum()
    return {
        f"{term}_loss": ((scored.loss * weights).sum(), count),
        f"{term}_accuracy": ((scored.right * weights).sum(), count),
    }


def means(sums: Sums, *names: str) -> dict[str, float]:
    """Returns sum / count of the named metrics. A count below 1 counts as 1."""
    return {name: sums[name][0] / max(sums[name][1], 1.0) for name in names}


# A loss within this relative distance of the entropy is on the plateau. In small runs, the noise of
# the loss is about as large.
TOLERANCE: Final = 0.02
# Maximum number of steps before a warning is possible: the warm-up steps in the paper. With a good
# learning rate, BERT leaves the plateau during warm-up.
PATIENCE_STEPS: Final = 10_000
# Consecutive reports on the plateau before a warning.
WINDOW: Final = 5
_NAMES: Final = {"mlm_loss": "MLM loss", "next_token_loss": "next-token loss"}


class PlateauWatch:
    """Compares the loss of a language model with the unigram entropy of the corpus.

    A language model first learns how often each piece occurs. Its loss then equals the
    unigram entropy, and can stay on this plateau for thousands of steps, until attention starts to
    use the context.
    """

    def __init__(
        self,
        *,
        unigram_entropy: float,
        vocab_size: int,
        total_steps: int,
        metric: str = "mlm_loss",
    ) -> None:
        """Takes the entropy in nats. `metric` is the name of the loss in the scores.

        A warning is possible after a quarter of `total_steps`, or after `PATIENCE_STEPS` if that is
        earlier.
        """
        self._metric, self._name = metric, _NAMES[metric]
        self._entropy = unigram_entropy
        self._start = math.log(vocab_size)
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._patience = min(PATIENCE_STEPS, total_steps // 4)
        self._warned = False

    def expectation(self, *, trained: bool) -> str:
        """Returns the normal course of the loss, as a message for the start of a run.

        `trained` is whether the parameters are those of a trained model.
        """
        start = "" if trained else f"{self._start:.1f} at the start (ln of the vocabulary size), "
        return (
            f"normal {self._name}: {start}near {self._entropy:.2f} (unigram entropy of this "
            f"corpus) while the model ignores the context, and lower once it uses the context"
        )

    def remark(self, scores: Mapping[str, float]) -> str:
        """Returns a comparison of the loss with the unigram entropy, in words."""
        if (loss := scores.get(self._metric)) is None:  # each of several sets has its own
            return ""
        if loss > self._entropy * (1 + TOLERANCE):
            return "above the unigram entropy"
        if loss >= self._entropy * (1 - TOLERANCE):
            return "on the unigram plateau"
        return f"{self._entropy - loss:.2f} below the unigram entropy"

    def warn(self, *, step: int, scores: Mapping[str, float]) -> str | None:
        """Returns a warning once, when the loss has been on the plateau for too long."""
        loss = scores[self._metric]
        self._recent.append(loss)
        stuck = len(self._recent) == WINDOW and all(
            abs(each - self._entropy) <= TOLERANCE * self._entropy for each in self._recent
        )
        if self._warned or not stuck or step < self._patience:
            return None
        self._warned = True
        return (
            f"step {step}: {self._name} {loss:.2f} has stayed at the unigram entropy "
            f"{self._entropy:.2f}: the model does not use the context yet. Usual causes: learning "
            f"rate too high or too low, warm-up too short, batch too small, post-LayerNorm with "
            f"many layers and no warm-up"
        )
