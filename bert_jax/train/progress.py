"""The progress of a run."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pydantic

from bert_jax.data.loader.data_position import DataPosition
from bert_jax.train.bad_steps import StepHistory
from bert_jax.train.manifest import SelectionScore

# The progress of an imported checkpoint, which has a step and no data position.
IMPORTED: Final = "imported"


@dataclasses.dataclass
class TrainProgress:
    """The progress of a run; saved with the state, under the names of the fields."""

    step: int = 0  # of the run
    phase: int = 0
    phase_step: int = 0
    position: DataPosition | None = None
    window: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    best_rank: float | None = None  # best selection score so far, smaller is better
    without_better: int = 0  # evaluations since
    history: StepHistory = dataclasses.field(default_factory=StepHistory)  # of the phase
    comparison: str | None = None  # of the best selection score
    unevaluated: bool = False  # a signal cut the evaluation of this step short

    @classmethod
    def at(cls, step: int, phases: Sequence[int]) -> TrainProgress:
        """Returns the progress after `step` steps of phases of these lengths, its data unread.

        ``TrainProgress.at(120, [100, 50])`` is in the second phase, 20 steps into it.
        """
        ends = list(itertools.accumulate(phases))
        phase = bisect.bisect_right(ends, step)
        return cls(step=step, phase=phase, phase_step=step - (ends[phase] - phases[phase]))

    def record_evaluation(self, score: SelectionScore) -> None:
        """Counts evaluations in a row that were no better than the best of one comparison."""
        best = self.best_rank if self.comparison in (score.comparison, None) else None
        self.comparison = score.comparison
        if best is None or score.value < best:
            self.best_rank, self.without_better = score.value, 0
        else:
            self.without_better += 1

    def start_phase(self, index: int) -> None:
        """Moves to the first step of a later phase."""
        self.phase, self.phase_step, self.position = index, 0, None
        self.history = StepHistory()

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON."""
        return _PLAIN.dump_python(self)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> TrainProgress:
        """Reads the result of `to_json`."""
        return _PLAIN.validate_python(saved)


_PLAIN: Final = pydantic.TypeAdapter(TrainProgress)
