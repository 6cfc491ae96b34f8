"""Where a run stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from bert_jax.data.position import Position


@dataclasses.dataclass
class Cursor:
    """Where the run stands; saved with the state."""

    step: int = 0  # of the run
    phase: int = 0
    phase_step: int = 0
    position: Position | None = None
    window: dict[str, tuple[float, float]] = dataclasses.field(default_factory=dict)

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
            position=None if position is None else Position.model_validate(position),
            window={name: (pair[0], pair[1]) for name, pair in saved["window"].items()},
        )
