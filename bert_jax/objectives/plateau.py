"""The plateau at the unigram entropy, where BERT runs get stuck.

A masked language model first learns how often each piece occurs. Its loss then equals the unigram
entropy of the corpus, and can stay there for thousands of steps before attention starts to use the
context.
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import Final

# Relative distance from the entropy that counts as on it: small runs scatter by about that.
TOLERANCE: Final = 0.02
# Steps after which a BERT with a sane learning rate has left the plateau: the paper's warm-up.
PATIENCE_STEPS: Final = 10_000
# Reports that must all be on the plateau before a warning.
WINDOW: Final = 5


class PlateauWatch:
    """Compares the masked-language-model loss with the normal loss for the corpus."""

    def __init__(
        self, *, unigram_entropy: float, vocab_size: int, patience: int = PATIENCE_STEPS
    ) -> None:
        """Takes the entropy in nats; within `patience` steps a loss on the plateau is normal."""
        self._entropy = unigram_entropy
        self._start = math.log(vocab_size)
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._patience = patience
        self._warned = False

    @property
    def expectation(self) -> str:
        """The line shown when a run starts."""
        return (
            f"normal MLM loss: {self._start:.1f} at the start (ln of the vocabulary), then near "
            f"{self._entropy:.2f} (unigram entropy of this corpus) while the model knows only how "
            f"frequent each piece is; below it once it reads the context"
        )

    def remark(self, scores: Mapping[str, float]) -> str:
        """Returns where the MLM loss is, relative to the entropy."""
        mlm_loss = scores["mlm_loss"]
        if mlm_loss > self._entropy * (1 + TOLERANCE):
            return "above the unigram entropy"
        if mlm_loss >= self._entropy * (1 - TOLERANCE):
            return "on the unigram plateau"
        return f"{self._entropy - mlm_loss:.2f} below the unigram entropy"

    def warn(self, *, step: int, scores: Mapping[str, float]) -> str | None:
        """Returns a warning, once, when the loss has been on the plateau for too long."""
        mlm_loss = scores["mlm_loss"]
        self._recent.append(mlm_loss)
        stuck = len(self._recent) == WINDOW and all(
            abs(loss - self._entropy) <= TOLERANCE * self._entropy for loss in self._recent
        )
        if self._warned or not stuck or step < self._patience:
            return None
        self._warned = True
        return (
            f"step {step}: MLM loss {mlm_loss:.2f} has stayed at the unigram entropy "
            f"{self._entropy:.2f}: the model does not use the context yet. Usual causes: learning "
            f"rate too high or too low, warm-up too short, batch too small, post-LayerNorm with "
            f"many layers and no warm-up"
        )
