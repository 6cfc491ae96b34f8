"""Which checkpoint is the best."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointSelection:
    """The metric by which the best checkpoint is selected."""

    metric: str
    larger_is_better: bool

    def score(self, scores: Mapping[str, float]) -> float:
        """Returns the selection score, smaller for the better; infinity for NaN."""
        value = scores[self.metric]
        if math.isnan(value):
            return math.inf
        return -value if self.larger_is_better else value
