"""Where a run stands."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bert_jax.data.loader.data_position import DataPosition

# What stands in an imported checkpoint's progress: it has a step and no place in any data.
IMPORTED: Final = "imported"


@dataclasses.dataclass
class Cursor:
    """Where the run stands; saved with the state."""

    step: int = 0  # of the run
    phase: int = 0
    phase_step: int = 0
    position: DataPosition | None = None
    window: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)
    best_rank: float | None = None  # of all evaluations so far, smaller is better
    without_better: int = 0  # evaluations since

    @classmethod
    def at(cls, step: int, phases: Sequence[int]) -> Cursor:
        """Returns where a run of these phases stands after so many steps, its data unread.

        ``Cursor.at(120, [100, 50])`` is in the second phase, 20 steps into it.

        Args:
            step: optimizer steps done elsewhere, fewer than the phases have.
            phases: steps of each phase.
        """
        ends = list(itertools.accumulate(phases))
        phase = bisect.bisect_right(ends, step)
        return cls(step=step, phase=phase, phase_step=step - (ends[phase] - phases[phase]))

    def evaluated(self, rank: float) -> None:
        """Takes note of an evaluation, for the run that stops when none gets better."""
        if self.best_rank is None or rank < self.best_rank:
            self.best_rank, self.without_better = rank, 0
        else:
            self.without_better += 1

    def to_json(self) -> dict[str, Any]:
        """Returns plain JSON."""
        position = None if self.position is None else self.position.model_dump()
        return {**dataclasses.asdict(self), "position": position}

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Cursor:
        """Reads what `to_json` returned."""
        position = saved["position"]
        return cls(
            step=saved["step"],
            phase=saved["phase"],
            phase_step=saved["phase_step"],
            position=None if position is None else DataPosition.model_validate(position),
            window={name: (pair[0], pair[1]) for name, pair in saved["window"].items()},
            best_rank=saved["best_rank"],
            without_better=saved["without_better"],
        )
