"""Which checkpoint is the best."""

import dataclasses
import math
import sys
from collections.abc import Mapping

from bert_jax.train.manifest import SelectionScore


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointSelection:
    """The metric by which the best checkpoint is selected."""

    metric: str
    larger_is_better: bool

    def score(self, scores: Mapping[str, float], *, phase: int, data: str) -> SelectionScore:
        """Returns the selection score, smaller for the better; the largest float for NaN.

        Args:
            scores: of an evaluation.
            phase: index of the phase, whose rows differ in length from another's.
            data: what was evaluated on. Scores of another phase, metric or data are not compared.
        """
        value = scores[self.metric]
        if math.isnan(value):
            value = sys.float_info.max
        elif self.larger_is_better:
            value = -value
        return SelectionScore(value, f"phase {phase}, {self.metric} on {data}")
